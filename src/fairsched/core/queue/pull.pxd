"""Take messages from a queue: a notified consumer pulls until it gets none.

A pull that succeeds leaves the consumer notified, at the tail of that list: a steady stream costs no wake-ups. The
first pull after a notification also offers the rest to another consumer, since this one may be busy from then on, and
not come back. A pull that fails leaves the consumer interested, and passes the work on, if there is some that it may
not take. Different from the source: a notified consumer first checks from the list where it is, and moves to Interested
only before the check that may be its last. So a success costs one move instead of two, and none if no other consumer is
to be let past; to others the consumer seems to have been interested for no time.

Where cursors matter, filters are asked without the lock, and the consumers that outrank this one are found without it;
a candidate is taken only if it still comes first (queue_stands). The consumer passes messages that are for consumers of
higher priority (work.pxd). In a fair queue turns are granted at that moment, and only then.

Thread safety: any, pinned, without the queue's lock; one thread at a time pulls for a consumer.
Complexity: O(1) a message if no consumer has a cursor; else O(messages passed), and a check of the consumers of higher
priority.
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.atomics cimport rarely
from fairsched.core.queue.consumercredit cimport consumer_paid, consumer_pay
from fairsched.core.queue.cursor cimport cursor_late, cursor_match, cursor_set
from fairsched.core.queue.groups cimport GROUPS_NONE, groups_assign
from fairsched.core.queue.late cimport late_drop
from fairsched.core.queue.members cimport queue_follow
from fairsched.core.queue.message cimport HEAP_NONE, MESSAGE_ACQUIRED, MESSAGE_AVAILABLE, Message, message_before
from fairsched.core.queue.next cimport queue_next, queue_next_for, queue_stands
from fairsched.core.queue.order.order cimport KIND_FAIR, order_taken
from fairsched.core.queue.state cimport (
    Call, Pulled, Queue, QueueConsumer, consumer_desired, queue_accepts, queue_count, queue_lock,
    queue_unlock, queue_unref,
)
from fairsched.core.queue.time cimport queue_release_due
from fairsched.core.queue.turn cimport turn_reach
from fairsched.core.queue.wake cimport queue_move, queue_owe, queue_recall, queue_served
from fairsched.core.queue.work cimport Question, queue_work
from fairsched.core.queue.yields cimport yields_end
from fairsched.core.waiting.levels cimport LEVEL_NOTIFIED
from fairsched.core.waiting.node cimport INTERESTED, NOTIFIED, SERVED, node_state
from fairsched.core.waiting.wakeup cimport wakeup_higher, wakeup_outranked

cdef enum:
    PULL_ASK = -1  # a filter has to be asked first

cdef inline bint queue_acquire(Queue* q, QueueConsumer* c, Message* m) noexcept nogil:
    """Locked. Acquire an available message, and reference it; False: there is no credit for it."""
    cdef bint fresh = False
    if not consumer_pay(c):
        return False
    order_taken(&q.order, m, True)
    m.state = MESSAGE_ACQUIRED
    m.paid = consumer_paid(c)
    m.holder = c.id
    m.lease += 1
    if m.deliveries < 0:
        m.deliveries = 0
    m.references += 1
    queue_count(&q.available, -1)
    q.acquired_bytes += m.size
    if q.groups.kind != GROUPS_NONE:
        fresh = groups_assign(&q.groups, m, c.id)
    if c.walks:
        if c.match != NULL:
            cursor_match(q, c, NULL)
        if q.order.kind != KIND_FAIR and (c.last == NULL or message_before(c.last, m)):
            cursor_set(q, c, m)
    if fresh:  # the rest of the group is not for those above any more
        yields_end(q, c)
    return True

cdef inline void pull_hand_out(Call* call, QueueConsumer* c, Message* m, Pulled* out) noexcept nogil:
    """Locked. Copy the pulled message's fields: after this it may be taken back, pulled by another, and freed."""
    out.message = m
    out.token = m.token
    out.holder = m.holder
    out.lease = m.lease
    out.deliveries = m.deliveries
    out.redelivered = m.redelivered
    out.paid = consumer_paid(c)
    if call.keep != NULL:
        call.keep(m.token)

cdef inline bint queue_take(Call* call, QueueConsumer* c, Pulled* out) noexcept nogil:
    """Take the next message for a consumer that never waits: `c` is in no list, has no cursor, and is never told.

    False: there is none. For a queue without groups.
    """
    cdef Queue* q = call.queue
    cdef Message* m
    cdef bint taken
    if q.timed.load() != 0:
        queue_release_due(call)
    queue_lock(q)
    m = queue_next(call, True)
    taken = m != NULL and queue_acquire(q, c, m)
    if taken:
        pull_hand_out(call, c, m, out)
    queue_unlock(q)
    return taken

cdef inline int64_t pull_plainly(Call* call, QueueConsumer* c, int64_t limit, Pulled* out) noexcept nogil:
    """Acquire up to `limit` messages, where no consumer has a cursor."""
    cdef Queue* q = call.queue
    cdef Message* m
    cdef int64_t taken = 0
    if rarely(wakeup_higher(&q.interest, c.node.priority)) and wakeup_outranked(
        &q.interest, call.pin, c.node.priority, NULL, NULL
    ):
        return 0
    queue_lock(q)
    while taken < limit and consumer_desired(c) and not c.walks:  # it may have rejected something meanwhile
        m = queue_next(call, True)
        if m == NULL or not queue_acquire(q, c, m):
            break
        pull_hand_out(call, c, m, &out[taken])
        taken += 1
    queue_unlock(q)
    return taken

cdef inline bint pull_this(Call* call, QueueConsumer* c, Message* m, Pulled* out) noexcept nogil:
    """Take a candidate, if it is still available; the reference passes to the consumer, or is given up."""
    cdef Queue* q = call.queue
    cdef bint taken
    queue_lock(q)
    taken = m.state == <uint32_t> MESSAGE_AVAILABLE and consumer_desired(c) and queue_stands(call, c, m)
    if not c.node.acquires:
        taken = taken and consumer_pay(c)
        if taken:
            cursor_match(q, c, NULL)
            cursor_set(q, c, m)
    else:
        if taken and q.order.kind == KIND_FAIR and m.heap == HEAP_NONE:
            turn_reach(call, c)
        taken = taken and queue_acquire(q, c, m)
        queue_unref(q, m)
    if taken:
        pull_hand_out(call, c, m, out)
    elif not c.node.acquires:
        queue_unref(q, m)
    queue_unlock(q)
    return taken

cdef inline int64_t pull_late(Call* call, QueueConsumer* c, Pulled* out, Question* question) noexcept nogil:
    """Find a message that a browser is to see from behind its cursor: 1 and the message, referenced, 0, or PULL_ASK."""
    cdef Queue* q = call.queue
    cdef Message* m
    cdef int answer = 0
    queue_lock(q)
    m = cursor_late(call, c)
    while m != NULL:
        answer = queue_accepts(call, c, m)
        m.references += 1
        if answer == 1 and not consumer_pay(c):
            queue_unref(q, m)
            m = NULL
            break
        if answer == -1:
            break
        late_drop(c.late)
        if answer == 1:
            pull_hand_out(call, c, m, out)
            break
        queue_unref(q, m)
        m = cursor_late(call, c)
    queue_unlock(q)
    if m == NULL:
        return 0
    if answer == 1:
        return 1
    question.consumer = c
    question.message = m
    return PULL_ASK

cdef inline int64_t pull_next(Call* call, QueueConsumer* c, Message** found, Question* question) noexcept nogil:
    """Find the message to be taken next, where cursors and filters matter: 1, referenced, 0, or PULL_ASK."""
    cdef bint known
    if c.node.acquires:
        return queue_work(call, c, found, question)
    found[0] = queue_next_for(call, c, &known)
    if found[0] == NULL or known:
        return found[0] != NULL
    question.consumer = c
    question.message = found[0]
    return PULL_ASK

cdef inline int64_t pull_walking(Call* call, QueueConsumer* c, Pulled* out, Question* question) noexcept nogil:
    """Take one message, where cursors and filters matter; or PULL_ASK."""
    cdef Message* m
    cdef int64_t found
    while consumer_desired(c):
        found = pull_late(call, c, out, question) if not c.node.acquires else 0
        if found != 0:
            return found
        found = pull_next(call, c, &m, question)
        if found != 1:
            return found
        if pull_this(call, c, m, out):
            return 1
    return 0

cdef inline bint pull_walks(Call* call, QueueConsumer* c) noexcept nogil:
    """Whether cursors matter."""
    return c.walks or call.queue.walkers.load() != 0

cdef inline int64_t pull_once(
    Call* call, QueueConsumer* c, bint walks, int64_t limit, Pulled* out, Question* question
) noexcept nogil:
    """Pull without moving the node."""
    if rarely(walks):
        return pull_walking(call, c, out, question)
    return pull_plainly(call, c, limit, out)

cdef inline bint pull_is_last(QueueConsumer* c) noexcept nogil:
    """Whether the node is already the served one at the tail of its priority, so that no move is needed."""
    return (
        node_state(&c.node) == <uint32_t> SERVED
        and c.node.level.lists[<int> LEVEL_NOTIFIED].tail.load() == c.node.entry.load()
    )

cdef inline int64_t queue_pull(
    Call* call, QueueConsumer* c, int64_t limit, Pulled* out, Question* question
) noexcept nogil:
    """Take up to `limit` messages, at least one if there is one for this consumer; or PULL_ASK, and then again.

    Each is referenced: by its settlement, or, for browsers, until queue_drop. Where cursors matter it is one.
    """
    cdef Queue* q = call.queue
    cdef int64_t taken, more
    # Read once: a consumer that has taken messages plainly must not come back with a question, which would be
    # written over them.
    cdef bint walks = pull_walks(call, c)
    if not consumer_desired(c) or limit < 1:
        return 0
    if q.timed.load() != 0:
        queue_release_due(call)
    taken = pull_once(call, c, walks, limit, out, question)
    if taken == PULL_ASK:
        return PULL_ASK
    if not c.node.acquires:
        if not consumer_desired(c):
            queue_follow(call, c)
        return taken
    if taken < limit and (taken == 0 or not walks) and consumer_desired(c):
        queue_move(call, c, NOTIFIED | SERVED, INTERESTED)
        more = pull_once(call, c, walks, limit - taken, out + taken, question)
        if more == PULL_ASK:
            return PULL_ASK
        taken += more
        if taken < limit:
            if consumer_desired(c):
                queue_recall(call, c)  # others come back to messages, which their filters have to be asked about
                queue_owe(call)
            else:
                queue_follow(call, c)
            return taken
    if not consumer_desired(c):
        queue_follow(call, c)
    elif call.was_told or not pull_is_last(c):
        queue_served(call, c)
    return taken
