"""Who waits for an item without blocking a thread; see _waiter.pyx."""

from fairsched._fairqueue cimport FairQueue
from fairsched._waitingroom cimport Seat


cdef class Waiter:
    cdef FairQueue queue
    cdef object callback
    cdef Seat* seat

cdef Waiter waiter_of(FairQueue q, object callback, object priority)
