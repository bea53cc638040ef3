"""Consumers of a queue: how they are added and removed, and become ready or not.

A consumer is desired when it wants to be, is live, and has credit. These wishes are flags of one word, changed under
the queue's lock. The thread that changed a wish then has the node follow (`queue_follow`): it moves the node, checks
the wishes again, and moves it again if they have changed meanwhile. So the last thread to change the wishes leaves the
node where they say, and a wish is changed before any consumer is judged by it: the stall of Broker-J (a consumer that
has spent its credit still counts as ready while another is sought) cannot happen.

Source: Qpid Broker-J's AbstractQueue. Thread safety: any, pinned, without the queue's lock; one consumer is
added or removed by one thread. Complexity: O(1); removing O(groups), O(consumers) when a place among live ones becomes
free, O(consumers that yield), and O(messages) for one that has refused any.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fairsched.core.queue.consumercredit cimport consumer_set_credit, consumer_wish
from fairsched.core.queue.credit cimport credit_init
from fairsched.core.queue.cursor cimport cursor_begin, cursor_end, cursors_unblock
from fairsched.core.queue.groups cimport GROUPS_NONE, groups_owned, groups_vacate
from fairsched.core.queue.keymap cimport KeyEntry
from fairsched.core.queue.message cimport Message, message_unreject
from fairsched.core.queue.state cimport (
    WISH_CREDIT, WISH_LIVE, WISH_USER, Call, Queue, QueueConsumer, QueueWalk, consumer_desired, queue_count, queue_lock,
    queue_unlock, queuewalk_begin, queuewalk_end, queuewalk_next,
)
from fairsched.core.queue.wake cimport queue_consider, queue_owe, queue_withdraw
from fairsched.core.queue.yields cimport yields_end
from fairsched.core.waiting.interest cimport MOVED, NO_MEMORY, interest_set
from fairsched.core.waiting.membership cimport interest_add, interest_remove
from fairsched.core.waiting.node cimport node_init
from fairsched.core.waiting.walk cimport LIST_ALL, InterestWalk, interestwalk_init, interestwalk_next

cdef enum Admission:
    ADMITTED = 1
    ADMISSION_CLOSED = 2
    ADMISSION_EXCLUSIVE_EXISTS = 3   # an exclusive consumer has the queue to itself
    ADMISSION_OTHERS_EXIST = 4       # exclusive is asked for, and there are others
    ADMISSION_NO_MEMORY = 5

cdef inline void consumer_init(QueueConsumer* c, int32_t priority, bint acquires) noexcept nogil:
    """An interested consumer with unlimited credit; what else it is, the caller sets before queue_subscribe."""
    node_init(&c.node, 0, priority, acquires)
    c.id = 0
    c.filtered = c.sees_requeues = c.exclusive = c.walks = c.refused = False
    c.owner = NULL
    c.last = c.match = c.yielded = NULL
    c.late = c.missed = NULL
    c.next_walker = c.prev_walker = c.next_yielder = c.prev_yielder = NULL
    c.yields = c.outranks = False
    c.epoch = 1
    credit_init(&c.credit, 0, 0)
    c.unsettled = 0
    c.wishes.store(WISH_USER | WISH_CREDIT)
    c.gone.store(0)
    c.told.store(0)
    c.told_of.store(0)

cdef inline void queue_follow(Call* call, QueueConsumer* c) noexcept nogil:
    """Have a consumer's node go where its wishes say, and see to the work."""
    cdef bint desired
    while True:
        desired = consumer_desired(c)
        if not desired:
            if queue_withdraw(call, c):
                queue_owe(call)
        elif interest_set(&call.queue.interest, call.pin, &c.node, True) == MOVED:
            queue_consider(call, c)
        if consumer_desired(c) == desired:
            return

cdef inline void queue_set_wish(Call* call, QueueConsumer* c, uint32_t wish, bint wished) noexcept nogil:
    """Change a wish, and follow it."""
    queue_lock(call.queue)
    consumer_wish(c, wish, wished)
    queue_unlock(call.queue)
    queue_follow(call, c)

cdef inline void queue_set_credit(Call* call, QueueConsumer* c, int64_t messages) noexcept nogil:
    """As consumer_set_credit; then the consumer is where it belongs, and told if there is work for it."""
    queue_lock(call.queue)
    consumer_set_credit(c, messages)
    queue_unlock(call.queue)
    queue_follow(call, c)

cdef inline Admission queue_admit(Queue* q, QueueConsumer* c) noexcept nogil:
    """Locked. Count a consumer in, unless it may not come."""
    if q.closed.load():
        return ADMISSION_CLOSED
    if q.exclusive != 0:
        return ADMISSION_EXCLUSIVE_EXISTS
    if c.exclusive and q.consumers.load() != 0:
        return ADMISSION_OTHERS_EXIST
    q.ids += 1
    c.id = q.ids
    queue_count(&q.consumers, 1)
    if c.exclusive:
        q.exclusive = c.id
    if q.live_limit == 0 or not c.node.acquires or q.live < q.live_limit:
        q.live += c.node.acquires
        c.wishes.fetch_or(WISH_LIVE)
    if c.filtered or not c.node.acquires or q.groups.kind != GROUPS_NONE:
        cursor_begin(q, c)
    return ADMITTED

cdef inline int64_t queue_dismiss(Queue* q, QueueConsumer* c) noexcept nogil:
    """Locked. Count a consumer out; return how many groups have become free for consumers that skipped them."""
    cdef uint64_t at = 0
    cdef KeyEntry* group = groups_owned(&q.groups, c.id, &at)
    cdef Message* skipped
    cdef int64_t unblocked = 0
    while group != NULL:
        skipped = groups_vacate(&q.groups, group)
        if skipped != NULL:
            cursors_unblock(q, skipped)
            unblocked += 1
        group = groups_owned(&q.groups, c.id, &at)
    yields_end(q, c)
    cursor_end(q, c)
    queue_count(&q.consumers, -1)
    if q.exclusive == c.id:
        q.exclusive = 0
    if c.wishes.load() & WISH_LIVE:
        q.live -= c.node.acquires
        consumer_wish(c, WISH_LIVE, False)
    return unblocked

cdef inline void queue_unreject(Queue* q, uint64_t consumer) noexcept nogil:
    """Have all messages forget that a consumer, which is gone, has refused them."""
    cdef QueueWalk w
    cdef Message* m = queuewalk_begin(&w, q)
    while m != NULL:
        message_unreject(m, consumer)
        m = queuewalk_next(&w, m)
    queuewalk_end(&w)

cdef inline bint consumer_is_live(QueueConsumer* c) noexcept nogil:
    return c.wishes.load() & WISH_LIVE != 0

cdef inline QueueConsumer* queue_first_idle(Call* call) noexcept nogil:
    """The consumer that is to be live next, good inside; NULL: there is none. Ids are given in the order of joining."""
    cdef InterestWalk w
    cdef QueueConsumer* c
    cdef QueueConsumer* first = NULL
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_ALL)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL and (first == NULL or not call.queue.live_by_priority):
        if not consumer_is_live(c) and not c.gone.load() and (first == NULL or c.id < first.id):
            first = c
        c = <QueueConsumer*> interestwalk_next(&w)
    return first

cdef inline void queue_promote(Call* call) noexcept nogil:
    """Make consumers live that are not, while there is room."""
    cdef Queue* q = call.queue
    cdef QueueConsumer* c = queue_first_idle(call)
    cdef bint room = True
    while c != NULL and room:
        queue_lock(q)
        room = q.live < q.live_limit
        if room and not c.gone.load() and not consumer_is_live(c):
            q.live += 1
            consumer_wish(c, WISH_LIVE, True)
        queue_unlock(q)
        if room:
            queue_follow(call, c)
            c = queue_first_idle(call)

cdef inline Admission queue_subscribe(Call* call, QueueConsumer* c) noexcept nogil:
    """Register a consumer that is complete, and tell it if there is work for it."""
    cdef Queue* q = call.queue
    cdef Admission admission
    if q.nondestructive:
        c.node.acquires = c.sees_requeues = False
    queue_lock(q)
    admission = queue_admit(q, c)
    queue_unlock(q)
    if admission != ADMITTED:
        return admission
    if interest_add(&q.interest, call.pin, &c.node, consumer_desired(c)) == NO_MEMORY:
        queue_lock(q)
        queue_dismiss(q, c)
        queue_unlock(q)
        return ADMISSION_NO_MEMORY
    if consumer_desired(c):
        queue_consider(call, c)
    queue_follow(call, c)
    if q.live_limit != 0:
        queue_promote(call)  # a place may have become free before this one could be found
    return ADMITTED

cdef inline bint queue_cancel(Call* call, QueueConsumer* c) noexcept nogil:
    """Take a consumer out; what it has acquired stays acquired. False: it was gone. Then node_retire."""
    cdef Queue* q = call.queue
    cdef int64_t unblocked
    cdef bint leaves
    if c.gone.exchange(1):
        return False
    leaves = queue_withdraw(call, c)
    interest_remove(&q.interest, call.pin, &c.node)
    queue_lock(q)
    unblocked = queue_dismiss(q, c)
    queue_unlock(q)
    if c.refused:
        queue_unreject(q, c.id)
    while unblocked > 0:
        queue_owe(call)
        unblocked -= 1
    if q.live_limit != 0:
        queue_promote(call)
    if leaves:
        queue_owe(call)
    return True
