"""One stay of a thread inside a pull queue's engine, and what it leaves to be done; see _visit.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched.core.message cimport Message
from fairsched.core.queuequestion cimport Question
from fairsched.core.queuestate cimport Call


cdef struct Answer:
    uint64_t consumer
    Message* message   # referenced
    int accepted

cdef struct Visit:  # one call, and what is to be done after it
    Call call                 # must be first
    PyObject** told           # subscriptions, with a reference each
    Py_ssize_t told_count
    Py_ssize_t told_size
    Answer* answers
    Py_ssize_t answer_count
    Py_ssize_t answer_next    # the one after that which was found last

cdef int visit_enter(Visit* visit, PullQueue q) except -1
cdef void visit_enter_at(Visit* visit, PullQueue q, int64_t now) noexcept
cdef int visit_leave(Visit* visit, PullQueue q) except -1
cdef void visit_bury(PullQueue q) noexcept
cdef int visit_ask(Visit* visit, PullQueue q, Message* about) except -1
cdef int visit_ask_for(Visit* visit, PullQueue q, Subscription subscription) except -1
cdef int visit_answer(Visit* visit, PullQueue q, Question* question) except -1
