"""Who consumes from a pull queue: how subscriptions join it, take over from each other, and leave it.

A subscription's consumer is in the engine's lists from its join until it leaves. Its memory is freed when nobody can
hold its node any more (see _hall.pxd); until then the queue's `members` keep the subscription.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc

from fairsched._hall cimport consumer_create, consumer_destroy, consumer_dispose
from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched._visit cimport (
    Visit, visit_ask_for, visit_bury, visit_end, visit_enter, visit_enter_at, visit_now, visit_raise, visit_step_in,
    visit_step_out,
)
from fairsched.core.consumernode cimport ConsumerNode, node_retire
from fairsched.core.interest cimport interest_enter, interest_leave
from fairsched.core.interestwalk cimport (
    LIST_ALL, InterestList, InterestWalk, interestwalk_init, interestwalk_next,
)
from fairsched.core.queuecredit cimport consumer_set_credit
from fairsched.core.queuemembers cimport (
    ADMISSION_CLOSED, ADMISSION_EXCLUSIVE_EXISTS, ADMISSION_OTHERS_EXIST, ADMITTED, Admission, consumer_init,
    consumer_is_live, queue_cancel, queue_first_idle, queue_set_wish, queue_subscribe,
)
from fairsched.core.queuesettle cimport queue_release_all
from fairsched.core.queuestate cimport WISH_USER, QueueConsumer
from fairsched.core.reclaim cimport Pin, reclaim_flush

from fairsched.errors import ExistingConsumerPreventsExclusive, ExistingExclusiveConsumer, ShutDown

cdef enum:
    DISPOSAL_ROUNDS = 4  # epochs until a consumer's memory is nobody's


cdef Subscription subscription_create(
    PullQueue q, object name, int32_t priority, bint acquires, object filter, object on_work
):
    """A subscription with a consumer that nobody knows yet."""
    cdef Subscription subscription = Subscription.__new__(Subscription, q)
    cdef QueueConsumer* c
    subscription.filter = filter
    subscription.on_work = on_work
    subscription.name = f"subscription-{q.named.fetch_add(1) + 1}" if name is None else name
    subscription.priority = priority
    c = consumer_create()
    if c == NULL:
        raise MemoryError()
    consumer_init(c, priority, acquires and not q.hall.queue.nondestructive)
    c.filtered = filter is not None
    c.owner = <void*> <PyObject*> subscription
    c.node.token = <uint64_t> <uintptr_t> c.owner
    subscription.acquires = c.node.acquires
    subscription.consumer = c
    return subscription


cdef int subscription_join(Subscription subscription, int64_t credit, bint interested) except -1:
    """Have a new one join; it is interested only once the filters were asked, where there are any.

    Whoever is interrupted meanwhile does not get the subscription, so it leaves again.
    """
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c = subscription.consumer
    cdef int64_t now = visit_now(q)  # before anything is changed: a clock may raise
    cdef Visit visit, again
    cdef Admission admission
    q.members.add(subscription)
    if subscription.filter is not None:
        q.filters.fetch_add(1)
    if not interested or q.filters.load() != 0:
        c.wishes.fetch_and(~<uint32_t> WISH_USER)
    consumer_set_credit(c, credit)
    visit_enter_at(&visit, q, now)
    admission = queue_subscribe(&visit.call, c)
    if admission != ADMITTED:
        subscription.consumer = NULL
    elif interested and q.filters.load() != 0:
        visit_ask_for(&visit, q, subscription)
        if subscription.consumer != NULL:
            queue_set_wish(&visit.call, subscription.consumer, WISH_USER, True)
    visit_end(&visit, q)
    if admission != ADMITTED:
        refuse(q, subscription, c, admission)
    if visit.error != NULL:
        visit_enter_at(&again, q, now)
        leave(&again, subscription, False)
        if again.error != NULL:
            Py_DECREF(<object> again.error)
        visit_raise(&visit)
    return 0


cdef int refuse(PullQueue q, Subscription subscription, QueueConsumer* c, Admission admission) except -1:
    """Nobody has seen this consumer: it can go at once."""
    if subscription.filter is not None:
        q.filters.fetch_sub(1)
    q.members.discard(subscription)
    consumer_destroy(c)
    if admission == ADMISSION_CLOSED:
        raise ShutDown("the queue is closed")
    others = ", ".join(repr(name) for name in subscription_names(q, LIST_ALL))
    if admission == ADMISSION_EXCLUSIVE_EXISTS:
        raise ExistingExclusiveConsumer(f"the queue has an exclusive subscription: {others}")
    if admission == ADMISSION_OTHERS_EXIST:
        raise ExistingConsumerPreventsExclusive(
            f"a subscription cannot be exclusive: the queue has others, {others}"
        )
    raise MemoryError()


cdef int subscription_leave(Subscription subscription, bint release) except -1:
    """Cancel one: others take over."""
    cdef Visit visit
    visit_enter(&visit, subscription.queue)
    leave(&visit, subscription, release)
    if visit.error != NULL:
        visit_raise(&visit)
    return 0


cdef void leave(Visit* visit, Subscription subscription, bint release) noexcept:
    """Cancel one in a visit that has begun. Its threads that wait are woken before anybody is called back."""
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c
    ask_next_live(visit, q, subscription)
    with cython.critical_section(subscription):
        c = subscription.consumer
        subscription.consumer = NULL
    visit_step_out(visit)  # the consumer is this call's now
    subscription.wake_all()
    visit_step_in(visit, q)
    if c != NULL:
        queue_cancel(&visit.call, c)
        if subscription.filter is not None:
            q.filters.fetch_sub(1)
        if release:
            queue_release_all(&visit.call, c.id)
        node_retire(visit.call.pin, &c.node, consumer_dispose)
    visit_end(visit, q)
    dispose(q)


cdef void ask_next_live(Visit* visit, PullQueue q, Subscription leaving) noexcept:
    """Ask the filter of the consumer that takes the place of one that leaves."""
    cdef QueueConsumer* c
    if visit.call.accepts == NULL or leaving.consumer == NULL or not consumer_is_live(leaving.consumer):
        return
    c = queue_first_idle(&visit.call)
    if c != NULL:
        visit_ask_for(visit, q, <Subscription> c.owner)


cdef void dispose(PullQueue q) noexcept:
    """Let epochs pass, so that a consumer's memory is freed now, unless others are inside."""
    cdef Pin* pin
    cdef int _i
    for _i in range(DISPOSAL_ROUNDS):
        pin = interest_enter(&q.hall.queue.interest)
        reclaim_flush(pin)
        interest_leave(pin)
    visit_bury(q)


cdef void subscriptions_end(PullQueue q) noexcept:
    """The queue is garbage: cancel all, tell nobody."""
    cdef Visit visit
    cdef QueueConsumer* c
    visit_enter_at(&visit, q, 0)
    visit.call.tell = NULL  # who takes another's place would be kept to be told
    for subscription in q.members:
        c = (<Subscription> subscription).consumer
        (<Subscription> subscription).consumer = NULL
        if c != NULL:
            queue_cancel(&visit.call, c)
            node_retire(visit.call.pin, &c.node, consumer_dispose)
    interest_leave(visit.call.pin)


cdef list subscription_names(PullQueue q, InterestList which):
    """The names in a list, in its order. The list is made outside, since that may run Python code."""
    cdef PyObject** found = NULL
    cdef Py_ssize_t i, count = find_members(q, which, &found)
    try:
        if count < 0:
            raise MemoryError()
        return [(<Subscription> found[i]).name for i in range(count)]
    finally:
        for i in range(count):
            Py_DECREF(<object> found[i])
        free(found)


cdef Py_ssize_t find_members(PullQueue q, InterestList which, PyObject*** found) noexcept:
    """The subscriptions in a list, with a reference each; -1: memory is exhausted, and there are none."""
    cdef InterestWalk walk
    cdef ConsumerNode* node
    cdef Py_ssize_t count = 0, size = 0
    cdef PyObject** larger
    cdef Pin* pin = interest_enter(&q.hall.queue.interest)
    interestwalk_init(&walk, &q.hall.queue.interest, pin, which)
    node = interestwalk_next(&walk)
    while node != NULL:
        if count == size:
            size = 2 * size + 8
            larger = <PyObject**> realloc(found[0], size * sizeof(PyObject*))
            if larger == NULL:
                break
            found[0] = larger
        found[0][count] = <PyObject*> (<QueueConsumer*> node).owner
        Py_INCREF(<object> found[0][count])
        count += 1
        node = interestwalk_next(&walk)
    interest_leave(pin)
    if node == NULL:
        return count
    while count > 0:
        count -= 1
        Py_DECREF(<object> found[0][count])
    return -1
