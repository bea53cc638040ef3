"""Who consumes from a pull queue: how subscriptions join it and leave it; see _membership.pyx."""

from libc.stdint cimport int32_t, int64_t

from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched.core.interestwalk cimport InterestList

cdef Subscription subscription_create(
    PullQueue q, object name, int32_t priority, bint acquires, object filter, object on_work
)
cdef int subscription_join(Subscription subscription, int64_t credit, bint interested) except -1
cdef int subscription_leave(Subscription subscription, bint release) except -1
cdef void subscriptions_end(PullQueue q) noexcept
cdef list subscription_names(PullQueue q, InterestList which)
