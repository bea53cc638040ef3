"""Declarations of the store for other compiled modules."""

from libc.stdint cimport uint64_t

from fairsched.core.broker.durability.journal cimport Journal

cdef class Store:
    cdef Journal journal
    cdef object connection
    cdef object thread
    cdef readonly object error
    cdef readonly str path
    cdef list files            # path and identity of the files that SQLite has open
    cdef list chunks           # chunks read: the records point into them
    cdef int copy(self, uint64_t number, tuple row) except -1
