"""One stay of a thread inside a pull queue's engine, and what it leaves to be done; see _visit.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched.core.answers cimport Answers
from fairsched.core.message cimport Message
from fairsched.core.queuequestion cimport Question
from fairsched.core.queuestate cimport Call


cdef struct Visit:  # one call, and what is to be done after it
    Call call                 # must be first
    PyObject** told           # subscriptions, with a reference each
    Py_ssize_t told_count
    Py_ssize_t told_size
    Answers answers           # their messages are referenced
    PyObject* asked           # who owns the consumers of the call's stand, with a reference each, or NULL
    PyObject* above
    PyObject* error           # what interrupted a callback first, with a reference; NULL: nothing did

cdef int64_t visit_now(PullQueue q) except? -1
cdef int visit_enter(Visit* visit, PullQueue q) except -1
cdef void visit_enter_at(Visit* visit, PullQueue q, int64_t now) noexcept
cdef void visit_step_out(Visit* visit) noexcept
cdef void visit_step_in(Visit* visit, PullQueue q) noexcept
cdef int visit_leave(Visit* visit, PullQueue q) except -1
cdef void visit_end(Visit* visit, PullQueue q) noexcept
cdef int visit_raise(Visit* visit) except -1
cdef void visit_note(Visit* visit, object error) noexcept
cdef void visit_bury(PullQueue q) noexcept
cdef void visit_ask(Visit* visit, PullQueue q, Message* about) noexcept
cdef void visit_ask_for(Visit* visit, PullQueue q, Subscription subscription) noexcept
cdef void visit_answer(Visit* visit, PullQueue q, Question* question) noexcept
