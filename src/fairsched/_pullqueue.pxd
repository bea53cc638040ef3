"""A queue whose consumers pull; see _pullqueue.pyx."""

from libc.stdint cimport int64_t, uint64_t
from libcpp.atomic cimport atomic

from fairsched._alternate cimport Alternate
from fairsched._hall cimport Hall
from fairsched._waitingroom cimport WaitingRoom


cdef class PullQueue:
    cdef Hall* hall
    cdef set members            # subscriptions whose consumers may still be held by somebody
    cdef dict slot_of           # of a fair queue: name -> index
    cdef object key
    cdef Alternate alternate
    cdef object clock
    cdef int64_t ttl            # nanoseconds; -1: none
    cdef bint made
    cdef bint keyed             # keys mean something
    cdef atomic[int64_t] filters  # subscriptions with a filter
    cdef atomic[int64_t] stopped  # threads that wait for room
    cdef WaitingRoom room       # where they wait
    cdef atomic[uint64_t] named
    cdef object __weakref__

    cdef int64_t now(self) except? -1
    cdef object next_due(self, object deadline)
    cdef int add_slot(self, object name, int64_t quantum) except -1
    cdef void tear_down(self) noexcept
