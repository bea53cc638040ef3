"""Where messages go that leave a pull queue unacknowledged; see _alternate.pyx."""

from libc.stdint cimport uint32_t


cdef class Alternate:
    cdef object sink              # None: there is none, and they are dropped
    cdef bint refused             # what it was given last, and that was logged
    cdef readonly object undelivered

    cdef int divert(self, object item, uint32_t reason, bint keep) except -1
    cdef int deliver(self, tuple message) except -1
    cdef int deliver_again(self, Py_ssize_t count) except -1
