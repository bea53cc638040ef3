"""Threads of one kind that wait for one thing; see _waitingroom.pyx."""

from libc.stdint cimport int64_t

from fairsched.core.parking cimport Parking


cdef class WaitingRoom:
    cdef Parking* parking
    cdef int64_t waiting    # registered, and not yet sent a wake-up
    cdef object clock
    cdef bint own_clock

    cdef object deadline(self, object block, object timeout)
    cdef bint wait(self, object deadline) except? -1
    cdef bint withdraw(self) noexcept
    cdef void wake(self, int64_t wanted) noexcept
    cdef int64_t look_around_ns(self, object deadline) except -2
