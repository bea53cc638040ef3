"""Where messages go that leave a pull queue unacknowledged; see _alternate.pyx."""


cdef class Alternate:
    cdef object sink              # None: there is none, and they are dropped
    cdef bint refused             # what it was given last, and that was logged
    cdef readonly object undelivered

    cdef int divert(self, list removed) except -1
    cdef int deliver(self, tuple message) except -1
    cdef int deliver_again(self, Py_ssize_t count) except -1
