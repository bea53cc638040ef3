"""One stay of a thread inside a pull queue's engine: in, asking filters meanwhile, out, and what is to be done then.

Exclusion. The engine needs none. Each call is one stay inside it: no Python code runs in there, nothing waits but for a
few instructions of another thread, and the GIL is held (it costs more to give it up than to be done). What Python code
has to be run, for filters that the engine asks about, callbacks, and what left the queue, is noted in the visit, with
references, and run after it.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc

from fairsched._hall cimport consumer_destroy
from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched.core.interest cimport interest_enter, interest_leave
from fairsched.core.message cimport MESSAGE_ACQUIRED, Message
from fairsched.core.overflow cimport overflow_resumes
from fairsched.core.queuequestion cimport Question, queue_question, queue_question_for
from fairsched.core.queuestate cimport (
    OWED_HAND_OVER, OWED_PASS_ON, Call, Queue, QueueConsumer, call_init, queue_forget, queue_lock, queue_unlock,
)
from fairsched.core.queuewake cimport queue_drop, queue_give_back, queue_hand_over, queue_pass_on

cdef extern from "Python.h":
    # With the GIL, or attached: for code that is nogil because headers call it.
    void keep "Py_INCREF"(PyObject* o) noexcept nogil


cdef void visit_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """Note whom to tell. With the GIL."""
    cdef Visit* visit = <Visit*> call
    cdef Py_ssize_t size
    cdef PyObject** larger
    if visit.told_count == visit.told_size:
        size = 2 * visit.told_size + 8
        larger = <PyObject**> realloc(visit.told, size * sizeof(PyObject*))
        if larger == NULL:
            return
        visit.told = larger
        visit.told_size = size
    keep(<PyObject*> c.owner)
    visit.told[visit.told_count] = <PyObject*> c.owner
    visit.told_count += 1


cdef void visit_keep(uint64_t token) noexcept nogil:
    """Hold what was pulled. With the GIL."""
    keep(<PyObject*> <uintptr_t> token)


cdef int visit_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """What a filter has said in this visit. O(answers); O(1) if they are looked up in the order in which they came."""
    cdef Visit* visit = <Visit*> call
    cdef Py_ssize_t _i, at = visit.answer_next
    for _i in range(visit.answer_count):
        if at >= visit.answer_count:
            at = 0
        if visit.answers[at].message == m and visit.answers[at].consumer == c.id:
            visit.answer_next = at + 1
            return visit.answers[at].accepted
        at += 1
    return -1


cdef int visit_enter(Visit* visit, PullQueue q) except -1:
    """Go inside; the clock is read where something depends on it."""
    cdef int64_t now = 0
    if q.hall.queue.timed.load() != 0:
        now = q.now()
    visit_enter_at(visit, q, now)
    return 0


cdef void visit_enter_at(Visit* visit, PullQueue q, int64_t now) noexcept:
    call_init(&visit.call, &q.hall.queue, now)
    visit.call.tell = visit_tell
    visit.call.keep = visit_keep
    if q.filters != 0:
        visit.call.accepts = visit_accepts
    visit.told = NULL
    visit.told_count = visit.told_size = 0
    visit.answers = NULL
    visit.answer_count = visit.answer_next = 0
    visit.call.pin = interest_enter(&q.hall.queue.interest)


cdef int visit_leave(Visit* visit, PullQueue q) except -1:
    """Go outside, and see to what the visit has left to do."""
    try:
        if visit.call.owed != 0 or visit.call.back != NULL:
            visit_pay_debts(visit, q)
    finally:
        visit_go(visit, q)
    return 0


cdef int visit_pay_debts(Visit* visit, PullQueue q) except -1:
    """Tell those whom the engine left to us, because filters have to be asked first."""
    cdef Message* back
    cdef uint32_t owed = visit.call.owed
    visit.call.owed = 0
    try:
        if visit.call.back != NULL:
            visit_ask(visit, q, visit.call.back)
    finally:
        if visit.call.back != NULL:
            back = visit.call.back
            visit.call.back = NULL
            queue_give_back(&visit.call, back)
        try:
            visit_ask(visit, q, NULL)
        finally:
            if owed & OWED_PASS_ON:
                queue_pass_on(&visit.call)
            if owed & OWED_HAND_OVER:
                queue_hand_over(&visit.call)
    return 0


cdef int visit_go(Visit* visit, PullQueue q) except -1:
    """Go outside, all told."""
    interest_leave(visit.call.pin)
    if visit.answers != NULL:
        visit_forget_answers(visit, q)
    if visit.call.removed != NULL or visit.told != NULL or q.stopped != 0 or q.hall.morgue.load() != 0:
        visit_follow_up(visit, q)
    return 0


cdef void visit_forget_answers(Visit* visit, PullQueue q) noexcept:
    cdef Py_ssize_t i
    for i in range(visit.answer_count):
        queue_drop(&q.hall.queue, visit.answers[i].message)
    free(visit.answers)
    visit.answers = NULL
    visit.answer_count = 0


cdef int visit_follow_up(Visit* visit, PullQueue q) except -1:
    """Tell who was claimed, pass on what left the queue, let producers go on. Nothing of it stops the rest."""
    cdef Py_ssize_t i
    cdef list told = []
    cdef list removed = take_removed(visit) if visit.call.removed != NULL else None
    for i in range(visit.told_count):
        told.append(<object> visit.told[i])
        Py_DECREF(<object> visit.told[i])
    free(visit.told)
    visit.told = NULL
    visit.told_count = 0
    queue_forget(&q.hall.queue, &visit.call)
    if q.hall.morgue.load() != 0:
        visit_bury(q)
    if q.stopped != 0 and (q.hall.queue.closed.load() or has_resumed(&q.hall.queue)):
        with cython.critical_section(q):
            q.room.wake_all()
    try:
        for subscription in told:
            (<Subscription> subscription).tell()
    finally:
        if removed is not None:
            q.alternate.divert(removed)
    return 0


cdef void visit_bury(PullQueue q) noexcept:
    """Free the memory of consumers that nobody can hold any more."""
    cdef QueueConsumer* c = <QueueConsumer*> q.hall.morgue.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        q.members.discard(<object> c.owner)
        consumer_destroy(c)
        c = following


cdef int visit_ask(Visit* visit, PullQueue q, Message* about) except -1:
    """Ask all filters that matter before work is announced (about it), or passed on (NULL)."""
    cdef Question question
    while visit.call.accepts != NULL and queue_question(&visit.call, about, &question):
        visit_answer(visit, q, &question)
    return 0


cdef int visit_ask_for(Visit* visit, PullQueue q, Subscription subscription) except -1:
    """Ask all filters that matter before a consumer becomes interested."""
    cdef Question question
    while (
        visit.call.accepts != NULL and subscription.consumer != NULL
        and queue_question_for(&visit.call, subscription.consumer, &question)
    ):
        visit_answer(visit, q, &question)
    return 0


cdef int visit_answer(Visit* visit, PullQueue q, Question* question) except -1:
    """Ask one filter, outside."""
    cdef Answer* larger = <Answer*> realloc(visit.answers, (visit.answer_count + 1) * sizeof(Answer))
    cdef Subscription subscription
    cdef object item = None
    cdef bint there
    if larger != NULL:
        visit.answers = larger
        visit.answers[visit.answer_count].consumer = question.consumer.id
        visit.answers[visit.answer_count].message = question.message
        visit.answers[visit.answer_count].accepted = False
        visit.answer_count += 1
    subscription = <Subscription> question.consumer.owner
    queue_lock(&q.hall.queue)
    there = question.message.state <= <uint32_t> MESSAGE_ACQUIRED and question.message.token != 0
    if there:
        item = <object> <PyObject*> <uintptr_t> question.message.token
    queue_unlock(&q.hall.queue)
    interest_leave(visit.call.pin)
    try:
        if larger == NULL:
            queue_drop(&q.hall.queue, question.message)
            raise MemoryError()
        if there:
            visit.answers[visit.answer_count - 1].accepted = subscription.judge(item)
    finally:
        visit.call.pin = interest_enter(&q.hall.queue.interest)
    return 0


cdef list take_removed(Visit* visit):
    """The items, with their references, of what left the queue in a visit, oldest first; and why it did."""
    cdef list removed = []
    cdef Message* m = visit.call.removed
    while m != NULL:
        item = <object> <PyObject*> <uintptr_t> m.token
        removed.append((item, m.reason))
        m.token = 0
        Py_DECREF(item)
        m = m.child
    removed.reverse()
    return removed


cdef bint has_resumed(Queue* q) noexcept:
    """Whether who waits for room may go on."""
    return overflow_resumes(&q.overflow, q.depth.load(), q.bytes.load())
