"""Taking messages out of the worker queues, as other modules see it; see _messagesource.pyx."""

from libc.stdint cimport int64_t

from fairsched.delivery._delivery cimport Message, Settlements
from fairsched.scheduling._fairqueue cimport FairQueue


cdef class MessageSource:
    cdef public bint returning  # what is buffered goes back to its queues, and nothing more is handed out
    cdef public bint stopped
    cdef public object shedding
    cdef public object on_redelivered
    cdef readonly Settlements settlements
    cdef public double service_ns       # mean of the handlers' time, in nanoseconds
    cdef readonly int64_t handled_count
    cdef readonly bint deferring
    cdef bint measures
    cdef bint timing             # durations are counted
    cdef double wall             # what the clock of `begin` lacks to the time of day
    cdef unsigned int turns      # messages that were asked for since the last look whether more have come
    cdef unsigned int next_look  # after how many

    cdef Message taken(self, object worker_queue, object priority)
    cdef bint is_usable(self, object worker_queue, Message message) except -1
    cdef int look_for_more(self) except -1
    cdef list take_more(self, object worker_queue, list found, Py_ssize_t limit)
    cdef int take_all(self, FairQueue worker_queue, list found, Py_ssize_t limit) except -1
    cdef int leave_usable(self, FairQueue worker_queue, list found, Py_ssize_t begin) except -1
    cdef bint is_returned(self, object worker_queue, Message message) except -1
    cdef bint is_settled_again(self, Message message) except -1
    cdef int note_handled(self, object worker_queue, Message message, int64_t elapsed) except -1
    cdef int64_t note_time(self, int64_t elapsed, int64_t count) except? -1
    cdef int note_one(self, object worker_queue, Message message, int64_t elapsed) except -1
    cdef int note_begins(self, list messages) except -1
