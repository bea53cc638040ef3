"""Counts of what one consumer has done so far, and histograms of how long its messages took."""

cimport cython
from libc.stdint cimport int64_t

from fairsched.core.delay.buckets cimport BUCKETS, BUCKETS_FIRST, Buckets, bucket_bounds

#: Names of the counters, in the order in which they are reported.
COUNTER_NAMES = (
    "received", "acked", "nacked", "rejected", "errors", "stale_settlements", "reconnects",
    "shed", "kept_alone", "kept_budget", "timed_out",
)

#: Where the buckets of `Durations` end, as multiples of the first; the last has no end.
BUCKET_ENDS = tuple(bucket_bounds.end[place] // BUCKETS_FIRST for place in range(BUCKETS - 1))

cdef dict COUNTER_NUMBERS = {name: number for number, name in enumerate(COUNTER_NAMES)}


@cython.final
cdef class Durations:
    """Durations()
    --

    How long the messages of one queue took, as histograms of fixed size.

    Notes
    -----
    `snapshot` is safe from any thread and O(1).
    """

    def snapshot(self):
        """snapshot($self)
        --

        A dict of (counts, sum in seconds) by name: ``sojourn``, from a message's arrival until it was handed out;
        ``service``, its handler's time; and ``age``, from its `timestamp` until it was handed out.

        The counts are per bucket of `BUCKET_ENDS`, not cumulative; bucket ends are in units of 100 us for ``sojourn``
        and ``service``, of seconds for ``age``.
        """
        cdef Buckets sojourn, service, age
        with cython.critical_section(self):
            sojourn, service, age = self.sojourn, self.service, self.age
        return {
            "sojourn": bucket_figures(&sojourn, 1e9),
            "service": bucket_figures(&service, 1e9),
            "age": bucket_figures(&age, AGE_TICKS),
        }


cdef tuple bucket_figures(const Buckets* buckets, double second):
    return [buckets.counts[place] for place in range(BUCKETS)], buckets.sum / second


@cython.final
cdef class Counters:
    """Counters()
    --

    Counters of what one consumer has done so far, kept by the I/O thread and the workers.

    Notes
    -----
    `add`, `snapshot` and `durations` are safe from any thread and O(1).
    """

    def __cinit__(self):
        self.by_queue = {}

    cdef void count(self, int number, int64_t amount) noexcept:
        with cython.critical_section(self):
            self.counts[number] += amount

    def add(self, name, int64_t amount=1):
        """add($self, name, amount=1)
        --

        Add to one counter.
        """
        self.count(COUNTER_NUMBERS[name], amount)

    def snapshot(self):
        """snapshot($self)
        --

        All counters: a dict of int by name.
        """
        return {name: self.counts[number] for number, name in enumerate(COUNTER_NAMES)}

    def durations(self, queue):
        """durations($self, queue)
        --

        How long the messages of a queue took: its `Durations`, created by the first call.
        """
        return self.durations_of(queue)

    def forget(self, queue):
        """forget($self, queue)
        --

        Forget the durations of a queue that is not consumed any more.
        """
        self.by_queue.pop(queue, None)

    cdef Durations durations_of(self, object queue):
        return self.by_queue.setdefault(queue, Durations())
