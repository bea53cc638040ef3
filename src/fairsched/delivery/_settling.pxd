"""Settling many messages at once, as other modules see it; see _settling.pyx."""

cdef enum:  # for which reason messages are settled, and which of them therefore are not
    BY_USER = 0     # all that a call of `Message.ack` would not settle
    BY_RETURN = 1   # these, and those that were deferred or failed
    BY_FAILURE = 2  # those that the function `on_error` was asked about

cdef Py_ssize_t settle_some(list messages, int verdict, int reason) except -1
