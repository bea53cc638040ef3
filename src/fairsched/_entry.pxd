"""What a subscription pulled; see _entry.pyx."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched._subscription cimport Subscription
from fairsched.core.message cimport Message
from fairsched.core.queuesettle cimport Verdict
from fairsched.core.queuestate cimport Pulled


cdef class Entry:
    cdef Subscription owner
    cdef Message* message     # referenced while unsettled
    cdef uint64_t holder
    cdef uint32_t lease
    cdef bint paid            # a browser's: it took its subscription's credit
    cdef readonly object item
    cdef readonly int delivery_count
    cdef readonly bint redelivered

    cdef object settle(self, Verdict verdict)

cdef Entry entry_of(Subscription subscription, Pulled* pulled)
cdef void put_back(Subscription subscription, Pulled* found, int64_t count, int64_t now) noexcept
