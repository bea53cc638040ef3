"""The CoDel law for tests and benchmarks: loops without the GIL, and the kernel's fixed-point roots. And buckets."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.delay.buckets cimport BUCKETS, Buckets, buckets_add, buckets_clear
from fairsched.core.delay.codel cimport (
    CODEL_LINUX, CODEL_LINUX_Q16, CODEL_Q16_ONE, CODEL_QUEUEING_CONSUMER, CODEL_RFC, CodelLaw, CodelParams, CodelVars,
    codel_init, codel_newton, codel_reset, codel_should_return,
)
from fairsched.core.schedule.dwrr cimport dwrr_pop, dwrr_push
from fairsched.core.schedule.slots cimport SlotTable, slots_add, slots_clear, slots_init
from fairsched.scheduling._buffers cimport array_data

cdef extern from *:
    """
    #include <chrono>
    static int64_t codel_now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    """
    int64_t codel_now_ns() noexcept nogil

cdef enum:
    SLOTS = 10
    BATCH = 64
    DEPTH = 64


def bucket_counts(list values):
    """How many of some values are in each bucket, and the sum."""
    cdef Buckets buckets
    cdef int place
    buckets_clear(&buckets)
    for value in values:
        buckets_add(&buckets, value)
    return [buckets.counts[place] for place in range(BUCKETS)], buckets.sum


def newton(uint32_t inv_sqrt, uint32_t count):
    """One step of the kernel's root."""
    return codel_newton(inv_sqrt, count)


def inverse_roots(uint32_t last):
    """The kernel's 1/sqrt(count) for count 1 to `last`, one step each."""
    cdef uint32_t count, x = CODEL_Q16_ONE
    roots = [x]
    for count in range(2, last + 1):
        x = codel_newton(x, count)
        roots.append(x)
    return roots


cdef class ProbeCodel:
    """A law and one state of it, driven by C loops."""

    cdef CodelParams params
    cdef CodelVars vars

    def __cinit__(self, law, int64_t target, int64_t interval, int64_t min_backlog, int64_t max_returns):
        cdef CodelLaw chosen = {
            "rfc": CODEL_RFC, "linux": CODEL_LINUX, "linux-q16": CODEL_LINUX_Q16,
            "queueing-consumer": CODEL_QUEUEING_CONSUMER,
        }[law]
        codel_init(&self.params, chosen, target, interval, min_backlog, max_returns)
        codel_reset(&self.vars)

    def decide(self, uint64_t count, sojourns, int64_t gap):
        """Nanoseconds for `count` decisions, `gap` apart, on these sojourn times in turn, and how many came back."""
        cdef const int64_t* sojourn_at = <const int64_t*> array_data(sojourns)
        cdef uint64_t i = 0, _j, size = len(sojourns), returned = 0
        cdef int64_t now = 0, start
        with nogil:
            start = codel_now_ns()
            for _j in range(count):
                now += gap
                returned += codel_should_return(&self.vars, &self.params, now - sojourn_at[i], now, 100)
                i = i + 1 if i + 1 < size else 0
            start = codel_now_ns() - start
        return start, returned


def batched_pull(uint64_t batches, bint with_codel):
    """Nanoseconds to pull `batches` batches from ten slots and fill them again, with and without asking CoDel.

    Every entry's token is the moment at which it was queued; the clock is read once for each batch.
    """
    cdef SlotTable table
    cdef CodelParams params
    cdef CodelVars laws[SLOTS]
    cdef uint64_t _batch, token = 0, returned = 0
    cdef uint32_t index, slot
    cdef int _i
    cdef int64_t start, now
    slots_init(&table)
    codel_init(&params, CODEL_RFC, 5_000_000, 100_000_000, 1, 0)
    for slot in range(<uint32_t> SLOTS):
        slots_add(&table, 10, False)
        codel_reset(&laws[slot])
        for _i in range(DEPTH):
            dwrr_push(&table, slot, codel_now_ns(), 1)
    with nogil:
        start = codel_now_ns()
        for _batch in range(batches):
            now = codel_now_ns()
            for _i in range(BATCH):
                index = dwrr_pop(&table, &token)
                if with_codel:
                    returned += codel_should_return(
                        &laws[index], &params, token, now, table.slots[index].pushed - table.slots[index].served
                    )
                dwrr_push(&table, index, now, 1)
        start = codel_now_ns() - start
        slots_clear(&table)
    return start, returned
