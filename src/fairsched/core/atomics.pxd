"""Names of memory orders, a pause for spin loops, and bit scans: needed by every concurrent header.

`rarely` marks what is not on the shortest way: waiting, growing, what costs much more than a jump anyway. The compiler
then keeps it out of the middle, and inlines what is left; otherwise a lock that is free, too, saves registers for the
loop of the waiting threads.

Rule of these headers: loads and read-modify-writes are sequentially consistent (on x86 a plain load, and the locked
instruction it is anyway), so that the proofs may speak of one order of all steps. Only stores are weaker: a release
store, or a relaxed one to memory that no other thread sees yet. Every such access carries a label: R1 names what is
published and pairs with A1, the load that finds it.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libcpp.atomic cimport memory_order_relaxed, memory_order_release

cdef extern from *:
    """
    #include <cstdint>
    #include <thread>
    #if defined(_MSC_VER)
    #include <intrin.h>
    #endif

    static inline void fairsched_cpu_pause() {
    #if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
    #elif defined(_MSC_VER)
        YieldProcessor();
    #elif defined(__aarch64__)
        __asm__ __volatile__("yield");
    #endif
    }

    #if defined(__has_builtin)
    #if __has_builtin(__builtin_expect_with_probability)
    #define fairsched_rarely(condition) __builtin_expect_with_probability(!!(condition), 0, 0.9999)
    #endif
    #endif
    #if !defined(fairsched_rarely)
    #define fairsched_rarely(condition) (condition)
    #endif

    static inline void fairsched_thread_yield() { std::this_thread::yield(); }

    // Index of the lowest bit that is set; not defined for 0.
    static inline unsigned fairsched_lowest_bit(uint64_t word) {
    #if defined(_MSC_VER)
        unsigned long index;
        _BitScanForward64(&index, word);
        return index;
    #else
        return __builtin_ctzll(word);
    #endif
    }
    """
    void cpu_pause "fairsched_cpu_pause"() noexcept nogil
    void thread_yield "fairsched_thread_yield"() noexcept nogil
    unsigned int lowest_bit "fairsched_lowest_bit"(uint64_t word) noexcept nogil
    bint rarely "fairsched_rarely"(bint condition) noexcept nogil

cdef enum:
    PAUSES_MIN = 8  # about as long as the winner takes for what comes next
    PAUSES_MAX = 128
    SPINS_BEFORE_YIELD = 64  # a holder that runs is done by then; one that does not run needs our processor

cdef inline void spin_wait(unsigned int* spins) noexcept nogil:
    """Wait a moment for another thread: a pause while it may be running, the processor when it may not be."""
    spins[0] += 1
    if spins[0] < SPINS_BEFORE_YIELD:
        cpu_pause()
    else:
        thread_yield()

cdef inline void back_off(unsigned int* pauses) noexcept nogil:
    """After losing a race: a pause that grows, so that the winner works on while it has the cache lines."""
    cdef unsigned int _i
    for _i in range(pauses[0]):
        cpu_pause()
    pauses[0] = min(2 * pauses[0], <unsigned int> PAUSES_MAX)

cdef inline uintptr_t stack_page() noexcept nogil:
    """A number that differs between threads and mostly stays the same in one: where its stack is."""
    cdef char here
    return (<uintptr_t> &here) >> 16
