"""A consumer of a pull queue; see _subscription.pyx."""

from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic

from fairsched._pullqueue cimport PullQueue
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.queuestate cimport QueueConsumer


cdef class Listener:
    """Who waits elsewhere for news of several subscriptions."""

    cdef void heard(self) noexcept


cdef class Subscription:
    cdef PullQueue queue
    cdef QueueConsumer* consumer   # NULL: cancelled. What it points to is good inside a visit that found it
    cdef object filter
    cdef object on_work
    cdef Listener listener         # told when somebody who waits elsewhere should look again
    cdef WaitingRoom room          # made when somebody waits
    cdef atomic[int64_t] news
    cdef bint filter_failed        # and that was logged
    cdef readonly object name
    cdef readonly object priority
    cdef readonly bint acquires
    cdef object __weakref__

    cdef bint wait(self, int64_t news, bint closed, object deadline) except -1
    cdef bint holds_on(self) except -1
    cdef void tell(self) noexcept
    cdef void wake(self) noexcept
    cdef void wake_all(self) noexcept
    cdef int call_back(self) except -1
    cdef void wake_one(self) noexcept
    cdef int judge(self, object item) except -1
    cdef int open_room(self) except -1
    cdef object next_entry(self)
    cdef int listen(self, Listener listener) except -1
    cdef void unlisten(self, Listener listener) noexcept
