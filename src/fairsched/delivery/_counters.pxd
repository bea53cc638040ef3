"""Counts and histograms of one consumer, as other modules see them; see _counters.pyx."""

from libc.stdint cimport int64_t

from fairsched.core.delay.buckets cimport BUCKETS_FIRST, Buckets

cdef enum:
    COUNTERS = 11

cdef enum:  # of the counters that are counted on the delivery path; the three verdicts follow one another
    COUNT_RECEIVED = 0
    COUNT_ACKED = 1
    COUNT_STALE = 5

cdef enum:
    AGE_TICKS = BUCKETS_FIRST  # of an age, to a second: its first bucket ends there


cdef class Durations:
    cdef Buckets sojourn  # in nanoseconds
    cdef Buckets service  # in nanoseconds
    cdef Buckets age      # in units of 10 us


cdef class Counters:
    cdef int64_t counts[COUNTERS]
    cdef dict by_queue  # Durations

    cdef void count(self, int number, int64_t amount) noexcept
    cdef Durations durations_of(self, object queue)
