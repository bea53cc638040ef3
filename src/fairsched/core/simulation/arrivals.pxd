"""Arrival processes: never, at a constant rate, Poisson, in bursts, or as recorded in a trace.

Rates hold from `base` on, the start of the process; the k-th message of a constant rate arrives at base + k * gap, so
that rounding to nanoseconds does not accumulate. Bursts are periods that begin with an "on" phase: of constant length
with a constant rate, or of exponential length with a Poisson process.

Thread safety: none. Complexity: O(1); an empty burst costs one more step.
"""

from libc.stdint cimport int64_t

from fairsched.core.simulation.variate cimport NEVER, whole_nanoseconds
from fairsched.core.simulation.xoshiro cimport Xoshiro, xoshiro_exponential

cdef enum ArrivalsKind:
    ARRIVALS_NONE
    ARRIVALS_CONSTANT
    ARRIVALS_POISSON
    ARRIVALS_BURSTS         # constant
    ARRIVALS_RANDOM_BURSTS  # exponential
    ARRIVALS_TRACE

cdef struct Arrivals:
    int kind
    double gap            # mean nanoseconds between messages, in a burst for bursts
    double on             # mean length of a burst
    double off            # mean length of a pause between bursts
    int64_t base          # start of the process or of the burst
    int64_t count         # messages since base
    int64_t burst_end
    const int64_t* times  # trace: nanoseconds after base, ascending; the owner keeps it
    int64_t size

cdef inline int64_t arrivals_sum(int64_t moment, double nanoseconds) noexcept nogil:
    """Return the sum of a moment and a duration, at most NEVER."""
    cdef int64_t duration = whole_nanoseconds(nanoseconds)
    return moment + duration if duration < NEVER - moment else NEVER

cdef inline void arrivals_start(Arrivals* a, int64_t now, Xoshiro* random) noexcept nogil:
    """Start the process."""
    a.base = now
    a.count = 0
    if a.kind == ARRIVALS_BURSTS:
        a.burst_end = arrivals_sum(now, a.on)
    elif a.kind == ARRIVALS_RANDOM_BURSTS:
        a.burst_end = arrivals_sum(now, a.on * xoshiro_exponential(random))

cdef inline int64_t arrivals_in_bursts(Arrivals* a) noexcept nogil:
    cdef int64_t time
    while True:
        a.count += 1
        time = arrivals_sum(a.base, a.count * a.gap)
        if time <= a.burst_end or a.burst_end >= NEVER:
            return time
        a.base = arrivals_sum(a.burst_end, a.off)
        a.burst_end = arrivals_sum(a.base, a.on)
        a.count = 0

cdef inline int64_t arrivals_in_random_bursts(Arrivals* a, int64_t last, Xoshiro* random) noexcept nogil:
    cdef int64_t time
    while True:
        time = arrivals_sum(last, a.gap * xoshiro_exponential(random))
        if time <= a.burst_end or a.burst_end >= NEVER:
            return time
        last = arrivals_sum(a.burst_end, a.off * xoshiro_exponential(random))
        a.burst_end = arrivals_sum(last, a.on * xoshiro_exponential(random))

cdef inline int64_t arrivals_next(Arrivals* a, int64_t last, Xoshiro* random) noexcept nogil:
    """Return the time of the message after the one at `last` (`base` for the first); NEVER or later: none."""
    if a.kind == ARRIVALS_CONSTANT:
        a.count += 1
        return arrivals_sum(a.base, a.count * a.gap)
    if a.kind == ARRIVALS_POISSON:
        return arrivals_sum(last, a.gap * xoshiro_exponential(random))
    if a.kind == ARRIVALS_BURSTS:
        return arrivals_in_bursts(a)
    if a.kind == ARRIVALS_RANDOM_BURSTS:
        return arrivals_in_random_bursts(a, last, random)
    if a.kind == ARRIVALS_TRACE and a.count < a.size:
        a.count += 1
        return arrivals_sum(a.base, <double> a.times[a.count - 1]) if a.base else a.times[a.count - 1]
    return NEVER
