"""Deliveries that are collected, as other modules see them; see _collected.pyx."""

from libc.stdint cimport int64_t, uint8_t

from fairsched.core.amqp.frames cimport Delivery

cdef struct Collected:  # where a delivery lies in the octets that were copied
    int64_t method
    int64_t header
    int64_t header_end
    int64_t body
    int64_t end
    int64_t received  # microseconds since 1970
    int64_t offset    # in its stream; of a delivery it is in the content header


cdef class CollectedDeliveries:
    cdef Collected* rows
    cdef int64_t held, rows_capacity  # deliveries, those of later parts included
    cdef uint8_t* data
    cdef int64_t size, capacity
    cdef readonly int64_t count, room, space, came
    cdef bint surplus

    cdef int prepare(self) except -1
    cdef int check(self, int64_t i) except -1
    cdef void counted(self) noexcept
    cdef int reserve(self, int64_t size) except -1
    cdef int take(self, const uint8_t* at, const Delivery* d) except -1
    cdef int64_t offset_of(self, int64_t i) noexcept
