"""Who consumes from a pull queue: how subscriptions join it, take over from each other, and leave it.

A subscription's consumer is in the engine's lists from its join until it leaves. Its memory is freed when nobody can
hold its node any more (see _hall.pxd); until then the queue's `members` keep the subscription.
"""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t

from fairsched._hall cimport consumer_create, consumer_destroy, consumer_dispose
from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched._visit cimport Visit, visit_ask_for, visit_bury, visit_enter, visit_enter_at, visit_leave
from fairsched.core.consumernode cimport ConsumerNode, node_retire
from fairsched.core.interest cimport interest_enter, interest_leave
from fairsched.core.interestwalk cimport (
    LIST_ALL, InterestList, InterestWalk, interestwalk_init, interestwalk_next,
)
from fairsched.core.queuecredit cimport consumer_set_credit
from fairsched.core.queuemembers cimport (
    ADMISSION_CLOSED, ADMISSION_EXCLUSIVE_EXISTS, ADMISSION_OTHERS_EXIST, ADMITTED, Admission, consumer_init,
    consumer_is_live, queue_cancel, queue_first_idle, queue_subscribe,
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
    cdef Subscription subscription = Subscription.__new__(Subscription)
    cdef QueueConsumer* c = consumer_create()
    if c == NULL:
        raise MemoryError()
    q.named += 1
    subscription.queue = q
    subscription.filter = filter
    subscription.on_work = on_work
    subscription.name = f"subscription-{q.named}" if name is None else name
    subscription.priority = priority
    consumer_init(c, priority, acquires and not q.hall.queue.nondestructive)
    c.filtered = filter is not None
    c.owner = <void*> <PyObject*> subscription
    c.node.token = <uint64_t> <uintptr_t> c.owner
    subscription.acquires = c.node.acquires
    subscription.consumer = c
    return subscription


cdef int subscription_join(Subscription subscription, int64_t credit, bint interested) except -1:
    """Have a new one join; it is interested only once the filters were asked, where there are any."""
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c = subscription.consumer
    cdef Admission admission
    if subscription.filter is not None:
        q.filters += 1
    if not interested or q.filters != 0:
        c.wishes.fetch_and(~<uint32_t> WISH_USER)
    consumer_set_credit(c, credit)
    q.members.add(subscription)
    admission = admit(q, subscription)
    if admission != ADMITTED:
        refuse(q, subscription, c, admission)
    if interested and q.filters != 0:
        subscription.interested = True  # which asks the filters before it is told of anything
    return 0


cdef Admission admit(PullQueue q, Subscription subscription) except <Admission> 0:
    """Put its consumer in the lists, or take it from the subscription."""
    cdef Visit visit
    cdef Admission admission
    visit_enter(&visit, q)
    admission = queue_subscribe(&visit.call, subscription.consumer)
    if admission != ADMITTED:
        subscription.consumer = NULL
    visit_leave(&visit, q)
    return admission


cdef int refuse(PullQueue q, Subscription subscription, QueueConsumer* c, Admission admission) except -1:
    """Nobody has seen this consumer: it can go at once."""
    others = ", ".join(repr(name) for name in subscription_names(q, LIST_ALL))
    if subscription.filter is not None:
        q.filters -= 1
    q.members.discard(subscription)
    consumer_destroy(c)
    if admission == ADMISSION_CLOSED:
        raise ShutDown("the queue is closed")
    if admission == ADMISSION_EXCLUSIVE_EXISTS:
        raise ExistingExclusiveConsumer(f"the queue has an exclusive subscription: {others}")
    if admission == ADMISSION_OTHERS_EXIST:
        raise ExistingConsumerPreventsExclusive(
            f"a subscription cannot be exclusive: the queue has others, {others}"
        )
    raise MemoryError()


cdef int subscription_leave(Subscription subscription, bint release) except -1:
    """Cancel one: others take over."""
    cdef PullQueue q = subscription.queue
    cdef Visit visit
    cdef QueueConsumer* c
    visit_enter(&visit, q)
    try:
        ask_next_live(&visit, q, subscription)
    finally:
        with cython.critical_section(subscription):
            c = subscription.consumer
            subscription.consumer = NULL
        if c != NULL:
            queue_cancel(&visit.call, c)
            if subscription.filter is not None:
                q.filters -= 1
            if release:
                queue_release_all(&visit.call, c.id)
            node_retire(visit.call.pin, &c.node, consumer_dispose)
        visit_leave(&visit, q)
    subscription.wake()
    dispose(q)
    return 0


cdef int ask_next_live(Visit* visit, PullQueue q, Subscription leaving) except -1:
    """Ask the filter of the consumer that takes the place of one that leaves."""
    cdef QueueConsumer* c
    if visit.call.accepts == NULL or leaving.consumer == NULL or not consumer_is_live(leaving.consumer):
        return 0
    c = queue_first_idle(&visit.call)
    if c != NULL:
        visit_ask_for(visit, q, <Subscription> c.owner)
    return 0


cdef int dispose(PullQueue q) except -1:
    """Let epochs pass, so that a consumer's memory is freed now, unless others are inside."""
    cdef Pin* pin
    cdef int _i
    for _i in range(DISPOSAL_ROUNDS):
        pin = interest_enter(&q.hall.queue.interest)
        reclaim_flush(pin)
        interest_leave(pin)
    visit_bury(q)
    return 0


cdef void subscriptions_end(PullQueue q) noexcept:
    """The queue is garbage: cancel all, tell nobody."""
    cdef Visit visit
    cdef QueueConsumer* c
    visit_enter_at(&visit, q, 0)
    for subscription in q.members:
        c = (<Subscription> subscription).consumer
        (<Subscription> subscription).consumer = NULL
        if c != NULL:
            queue_cancel(&visit.call, c)
            node_retire(visit.call.pin, &c.node, consumer_dispose)
    interest_leave(visit.call.pin)


cdef list subscription_names(PullQueue q, InterestList which):
    """The names in a list, in its order."""
    cdef InterestWalk walk
    cdef ConsumerNode* node
    cdef Pin* pin = interest_enter(&q.hall.queue.interest)
    cdef list found = []
    interestwalk_init(&walk, &q.hall.queue.interest, pin, which)
    node = interestwalk_next(&walk)
    while node != NULL:
        found.append((<Subscription> (<QueueConsumer*> node).owner).name)
        node = interestwalk_next(&walk)
    interest_leave(pin)
    return found
