"""Memory: growing arrays, blocks aligned to a cache line, prefetching, and memory no longer needed."""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport realloc

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define fairsched_prefetch(address) __builtin_prefetch(address)
    #else
    #define fairsched_prefetch(address) ((void)(address))
    #endif

    #if defined(__GLIBC__)
    #include <malloc.h>
    #define fairsched_trim() malloc_trim(0)
    #else
    #define fairsched_trim() ((void) 0)
    #endif
    """
    void prefetch "fairsched_prefetch"(const void* address) noexcept nogil
    # Give pages that nothing is in back to the system: glibc keeps those between what is still used. O(pages).
    void heap_trim "fairsched_trim"() noexcept nogil

cdef enum:
    CACHE_LINE = 64

cdef inline void* first_line(void* block) noexcept nogil:
    """Return the first cache line of a block, which must be CACHE_LINE larger than its content."""
    return <void*> ((<uintptr_t> block + CACHE_LINE - 1) & ~<uintptr_t> (CACHE_LINE - 1))

cdef inline bint array_reserve(void** at, int64_t* room, int64_t count, size_t size, int64_t least) noexcept nogil:
    """Have room for `count` elements, one more than before at most; it doubles. False: memory is exhausted."""
    cdef int64_t wanted = 2 * room[0] if room[0] else least
    cdef void* grown
    if count <= room[0]:
        return True
    grown = realloc(at[0], wanted * size)
    if grown == NULL:
        return False
    at[0] = grown
    room[0] = wanted
    return True
