"""One stay of a thread inside a pull queue's engine: in, asking filters meanwhile, out, and what is to be done then.

Exclusion. The engine needs none. Each call is one stay inside it: no Python code runs in there, nothing waits but for a
few instructions of another thread, and the GIL is held (it costs more to give it up than to be done). What Python code
has to be run, for filters that the engine asks about, callbacks, and what left the queue, is noted in the visit, with
references, and run after it. No Python object is made inside either: the collector might run, and finalizers with it,
and who stays inside holds up the memory of all others.

What callbacks raise. An Exception is logged, where the callback is called. Anything else, as KeyboardInterrupt, is
noted in the visit: everything is done and everybody told first, and then the first of these is raised. A filter that is
interrupted has said nothing; no filter is asked any more in that visit, and one consumer is told in addition, since a
filter that was not asked may hide that somebody has work.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc

from fairsched._hall cimport consumer_destroy
from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched.core.answers cimport answers_add, answers_clear, answers_find, answers_init, answers_reserve
from fairsched.core.interest cimport interest_enter, interest_leave
from fairsched.core.message cimport MESSAGE_ACQUIRED, Message
from fairsched.core.overflow cimport overflow_resumes
from fairsched.core.queuequestion cimport Question, queue_question, queue_question_for
from fairsched.core.queuestate cimport (
    OWED_HAND_OVER, OWED_PASS_ON, Call, Queue, QueueConsumer, call_init, queue_lock, queue_unlock,
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
    """What a filter has said in this visit. O(1) expected."""
    return answers_find(&(<Visit*> call).answers, c.id, m)


cdef int64_t visit_now(PullQueue q) except? -1:
    """What the clock says, where something depends on it; else 0. The clock may be Python code."""
    return q.now() if q.hall.queue.timed.load() != 0 else 0


cdef int visit_enter(Visit* visit, PullQueue q) except -1:
    """Go inside."""
    visit_enter_at(visit, q, visit_now(q))
    return 0


cdef void visit_enter_at(Visit* visit, PullQueue q, int64_t now) noexcept:
    call_init(&visit.call, &q.hall.queue, now)
    visit.call.tell = visit_tell
    visit.call.keep = visit_keep
    if q.filters.load() != 0:
        visit.call.accepts = visit_accepts
    visit.told = NULL
    visit.told_count = visit.told_size = 0
    answers_init(&visit.answers)
    visit.asked = visit.above = NULL
    visit.error = NULL
    visit.call.pin = interest_enter(&q.hall.queue.interest)


cdef void visit_step_out(Visit* visit) noexcept:
    """Go outside for a while. Who owns the consumers that the questions stand at is kept until the next time.

    The reference may be the last then, so it is given up outside.
    """
    cdef PyObject* asked = visit.asked
    cdef PyObject* above = visit.above
    visit.asked = owner_of(visit.call.stand.asked)
    visit.above = owner_of(visit.call.stand.above)
    interest_leave(visit.call.pin)
    release(asked)
    release(above)


cdef void visit_step_in(Visit* visit, PullQueue q) noexcept:
    """Come back inside: consumers that are gone meanwhile are not looked at."""
    visit.call.pin = interest_enter(&q.hall.queue.interest)
    if visit.asked != NULL and (<Subscription> visit.asked).consumer == NULL:
        visit.call.stand.asked = NULL
    if visit.above != NULL and (<Subscription> visit.above).consumer == NULL:
        visit.call.stand.above = NULL


cdef PyObject* owner_of(QueueConsumer* c) noexcept:
    """A consumer's subscription, with a reference; NULL: there is none."""
    if c == NULL:
        return NULL
    keep(<PyObject*> c.owner)
    return <PyObject*> c.owner


cdef void release(PyObject* o) noexcept:
    if o != NULL:
        Py_DECREF(<object> o)


cdef int visit_leave(Visit* visit, PullQueue q) except -1:
    """Go outside, see to what the visit has left to do, and raise what interrupted that."""
    visit_end(visit, q)
    if visit.error != NULL:
        visit_raise(visit)
    return 0


cdef void visit_end(Visit* visit, PullQueue q) noexcept:
    """Go outside, and see to what the visit has left to do. Afterwards `error` is the caller's to raise."""
    if visit.call.owed != 0 or visit.call.back != NULL:
        visit_pay_debts(visit, q)
    interest_leave(visit.call.pin)
    if visit.answers.table != NULL or visit.asked != NULL or visit.above != NULL:
        visit_forget_answers(visit, q)
    if visit.call.removed != NULL or visit.told != NULL or q.stopped.load() != 0 or q.hall.morgue.load() != 0:
        visit_follow_up(visit, q)


cdef int visit_raise(Visit* visit) except -1:
    """Raise what was noted."""
    cdef object error = <object> visit.error
    visit.error = NULL
    Py_DECREF(error)
    raise error


cdef void visit_note(Visit* visit, object error) noexcept:
    """Note what is to be raised when everything is done: the first counts."""
    if visit.error == NULL:
        Py_INCREF(error)
        visit.error = <PyObject*> error


cdef void visit_pay_debts(Visit* visit, PullQueue q) noexcept:
    """Tell those whom the engine left to us, because filters have to be asked first."""
    cdef Message* back = visit.call.back
    if back != NULL:
        visit_ask(visit, q, back)
        visit.call.back = NULL
        queue_give_back(&visit.call, back, visit.call.unblocked)
    if visit.call.owed != 0:
        visit_ask(visit, q, NULL)
    if visit.call.owed & OWED_PASS_ON:
        queue_pass_on(&visit.call)
    if visit.call.owed & OWED_HAND_OVER:
        queue_hand_over(&visit.call)
    visit.call.owed = 0


cdef void visit_forget_answers(Visit* visit, PullQueue q) noexcept:
    cdef PyObject* asked = visit.asked
    cdef PyObject* above = visit.above
    cdef uint64_t i
    for i in range(visit.answers.size):
        if visit.answers.table[i].message != NULL:
            queue_drop(&q.hall.queue, visit.answers.table[i].message)
    answers_clear(&visit.answers)
    visit.asked = visit.above = NULL
    release(asked)
    release(above)


cdef void visit_follow_up(Visit* visit, PullQueue q) noexcept:
    """Tell who was claimed, let producers go on, pass on what left the queue. Nothing of it stops the rest.

    Everybody is told before anybody is called back, since that may take as long as it likes.
    """
    cdef Message* removed = oldest_first(visit.call.removed)
    cdef Py_ssize_t i
    visit.call.removed = NULL
    for i in range(visit.told_count):
        (<Subscription> visit.told[i]).tell()
    if q.stopped.load() != 0 and (q.hall.queue.closed.load() or has_resumed(&q.hall.queue)):
        with cython.critical_section(q):
            q.room.wake_all()
    if q.hall.morgue.load() != 0:
        visit_bury(q)
    for i in range(visit.told_count):
        visit_call_back(visit, <Subscription> visit.told[i])
        Py_DECREF(<object> visit.told[i])
    free(visit.told)
    visit.told = NULL
    visit.told_count = visit.told_size = 0
    visit_divert(visit, q, removed)


cdef void visit_call_back(Visit* visit, Subscription subscription) noexcept:
    try:
        subscription.call_back()
    except BaseException as error:
        visit_note(visit, error)


cdef Message* oldest_first(Message* m) noexcept:
    """Turn a chain of what left the queue round."""
    cdef Message* turned = NULL
    cdef Message* following
    while m != NULL:
        following = m.child
        m.child = turned
        turned = m
        m = following
    return turned


cdef void visit_divert(Visit* visit, PullQueue q, Message* m) noexcept:
    """Hand a chain of what left the queue to the alternate; what an interrupt has left is kept."""
    cdef Message* following
    cdef uint32_t reason
    cdef object item
    cdef bint interrupted = False
    while m != NULL:
        following = m.child
        reason = m.reason
        item = <object> <PyObject*> <uintptr_t> m.token
        m.token = 0
        Py_DECREF(item)  # the message's
        queue_drop(&q.hall.queue, m)
        try:
            q.alternate.divert(item, reason, interrupted)
        except BaseException as error:
            interrupted = True
            visit_note(visit, error)
        m = following


cdef void visit_bury(PullQueue q) noexcept:
    """Free the memory of consumers that nobody can hold any more."""
    cdef QueueConsumer* c = <QueueConsumer*> q.hall.morgue.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        q.members.discard(<object> c.owner)
        consumer_destroy(c)
        c = following


cdef void visit_ask(Visit* visit, PullQueue q, Message* about) noexcept:
    """Ask all filters that matter before work is announced (about it), or passed on (NULL)."""
    cdef Question question
    while visit_asks(visit) and queue_question(&visit.call, about, &question):
        visit_answer(visit, q, &question)


cdef void visit_ask_for(Visit* visit, PullQueue q, Subscription subscription) noexcept:
    """Ask all filters that matter before a consumer becomes interested."""
    cdef Question question
    while (
        visit_asks(visit) and subscription.consumer != NULL
        and queue_question_for(&visit.call, subscription.consumer, &question)
    ):
        visit_answer(visit, q, &question)


cdef bint visit_asks(Visit* visit) noexcept:
    """Whether filters are asked, still."""
    return visit.call.accepts != NULL and visit.error == NULL


cdef void visit_answer(Visit* visit, PullQueue q, Question* question) noexcept:
    """Ask one filter, outside. If it is interrupted, there is no answer, and `error` is noted."""
    cdef bint room = answers_reserve(&visit.answers)
    cdef Message* m = question.message
    cdef uint64_t consumer = question.consumer.id
    cdef Subscription subscription = <Subscription> question.consumer.owner
    cdef object item = None
    cdef int accepted = -1
    queue_lock(&q.hall.queue)
    if m.state <= <uint32_t> MESSAGE_ACQUIRED and m.token != 0:
        item = <object> <PyObject*> <uintptr_t> m.token
    else:
        accepted = False
    queue_unlock(&q.hall.queue)
    visit_step_out(visit)
    try:
        if not room:
            raise MemoryError()
        if accepted == -1:
            accepted = subscription.judge(item)
    except BaseException as error:
        accepted = -1
        visit_note(visit, error)
        visit.call.owed |= OWED_PASS_ON
    item = subscription = None  # whatever their finalizers do, they do it outside
    visit.call.stand.refused = NULL
    if accepted == -1:
        queue_drop(&q.hall.queue, m)
    else:
        answers_add(&visit.answers, consumer, m, accepted)
        if not accepted:
            visit.call.stand.refuser = consumer
            visit.call.stand.refused = m
    visit_step_in(visit, q)


cdef bint has_resumed(Queue* q) noexcept:
    """Whether who waits for room may go on."""
    return overflow_resumes(&q.overflow, q.depth.load(), q.bytes.load())
