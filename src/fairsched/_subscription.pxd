"""A consumer of a pull queue; see _subscription.pyx."""

from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic

from fairsched._pullqueue cimport PullQueue
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.queuestate cimport QueueConsumer


cdef class Subscription:
    cdef PullQueue queue
    cdef QueueConsumer* consumer   # NULL: cancelled. What it points to is good inside a visit that found it
    cdef object filter
    cdef object on_work
    cdef object listener           # called when somebody who waits elsewhere should look again
    cdef WaitingRoom room          # made when somebody waits
    cdef atomic[int64_t] news
    cdef bint filter_failed        # and that was logged
    cdef readonly object name
    cdef readonly object priority
    cdef readonly bint acquires
    cdef object __weakref__

    cdef bint wait(self, int64_t news, object deadline) except -1
    cdef int tell(self) except -1
    cdef void wake(self) noexcept
    cdef int judge(self, object item) except -1
