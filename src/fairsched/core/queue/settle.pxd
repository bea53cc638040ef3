"""Settle a pulled message: it is done, or returned.

  ACK      it leaves the queue.
  RELEASE  the delivery failed: it returns to its place, redelivered, for any consumer; after `max_deliveries` of these
           it leaves the queue instead.
  REJECT   this consumer does not want it: it returns for other consumers, and the delivery does not count.
  UNDO     it was pulled, but could not be handed out: it returns as if it had never been pulled.
A returned message may leave at once: expired, superseded by a newer message of its key, or dropped by a full ring.
Which of two settlements counts is decided by the lease, under the lock, which unlinking needs anyway.

Source: Qpid Broker-J's QueueEntryImpl. Thread safety: any, pinned, without the queue's lock; from any thread, for each
message pulled once. Complexity: O(1); O(walkers) for what goes back; queue_release_all O(messages).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.atomics cimport rarely
from fairsched.core.queue.consumercredit cimport consumer_restore
from fairsched.core.queue.cursor cimport cursor_begin, cursors_recall, cursors_unblock
from fairsched.core.queue.late cimport late_add
from fairsched.core.queue.members cimport queue_follow
from fairsched.core.queue.message cimport (
    MESSAGE_AVAILABLE, REASON_CLOSED, REASON_DELIVERIES, REASON_EXPIRED, REASON_SUPERSEDED, Message, message_expired,
    message_holder, message_reject, message_taken, message_unyield,
)
from fairsched.core.queue.order.order cimport KIND_FAIR, order_after, order_available
from fairsched.core.queue.ring cimport queue_ring
from fairsched.core.queue.state cimport (
    Call, Queue, QueueConsumer, queue_count, queue_delete_taken, queue_lock, queue_remove, queue_settled,
    queue_unlock, queue_unref,
)
from fairsched.core.queue.wake cimport queue_announce_back, queue_give_back, queue_owe, queue_tell

cdef enum Verdict:
    SETTLE_ACK
    SETTLE_RELEASE
    SETTLE_REJECT
    SETTLE_UNDO

cdef inline bint settle_back(Queue* q, Call* call, Message* m, Verdict verdict) noexcept nogil:
    """Locked. An acquired message, its group settled, goes back; False: it left the queue instead."""
    if verdict == SETTLE_RELEASE:
        m.deliveries += 1
    if verdict != SETTLE_UNDO:
        m.redelivered = True
    if q.drains:
        queue_remove(q, call, m, REASON_CLOSED)
    elif q.max_deliveries != 0 and verdict == SETTLE_RELEASE and m.deliveries >= q.max_deliveries:
        queue_remove(q, call, m, REASON_DELIVERIES)
    elif m.superseded:
        queue_remove(q, call, m, REASON_SUPERSEDED)
    elif message_expired(m, call.now) and (q.order.kind == KIND_FAIR or not q.expires_next):
        queue_remove(q, call, m, REASON_EXPIRED)
    else:
        m.holder = 0
        m.state = MESSAGE_AVAILABLE
        queue_count(&q.available, 1)
        q.acquired_bytes -= m.size
        if rarely(m.rejections != NULL):
            message_unyield(m)
        order_available(&q.order, m)
        cursors_recall(q, m, True)
        if not q.expires_next:  # else the caller trims the queue once all are back
            queue_ring(q, call, <uint64_t> -1)
    return m.state == <uint32_t> MESSAGE_AVAILABLE

cdef inline bint settle_locked(
    Queue* q, Call* call, Message* m, Verdict verdict, bint* back, bint* unblocked
) noexcept nogil:
    """Settle an acquired message: whether it goes back, and whether its group is free now."""
    cdef Message* skipped = queue_settled(q, m)
    back[0] = False
    if verdict == SETTLE_ACK:
        queue_delete_taken(q, m)
        m.token = 0  # its owner has it
    else:
        back[0] = settle_back(q, call, m, verdict)
    unblocked[0] = skipped != NULL
    if skipped != NULL:
        cursors_unblock(q, skipped)
    return True

cdef inline void settle_credit(Call* call, QueueConsumer* c) noexcept nogil:
    """Restore a consumer's credit for one message."""
    cdef bint regained
    queue_lock(call.queue)
    regained = consumer_restore(c)
    queue_unlock(call.queue)
    if regained:
        queue_follow(call, c)

cdef inline void queue_show_again(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """A browser has looked at a message in vain: it is to see it once more, and is told."""
    cdef bint there
    queue_lock(call.queue)
    there = c.walks and m.state == <uint32_t> MESSAGE_AVAILABLE
    if there:
        late_add(&c.late, m)
    queue_unlock(call.queue)
    if there:
        queue_tell(call, c)

cdef inline bint queue_settle(
    Call* call, QueueConsumer* c, Message* m, uint64_t holder, uint32_t lease, Verdict verdict
) noexcept nogil:
    """Settle what consumer `holder` pulled under `lease`; False: it was settled, or taken back, before.

    `c` is that consumer; NULL: it is gone. The reference that came with the message is given up.
    """
    cdef Queue* q = call.queue
    cdef bint settled, back = False, unblocked = False
    queue_lock(q)
    if c != NULL and message_holder(m) == holder and m.lease == lease and m.paid and consumer_restore(c):
        queue_unlock(q)  # first of all: what comes back may be for this consumer
        queue_follow(call, c)
        queue_lock(q)
    settled = message_taken(m) and m.holder == holder and m.lease == lease
    if settled:
        if c != NULL and verdict == SETTLE_REJECT and not c.gone.load():
            cursor_begin(q, c)
            c.refused = message_reject(m, holder) or c.refused
        settle_locked(q, call, m, verdict, &back, &unblocked)
    if not back:
        queue_unref(q, m)
    queue_unlock(q)
    if back and call.accepts != NULL:
        call.back = m
        call.unblocked = unblocked
    elif back:
        queue_give_back(call, m, unblocked)
    elif unblocked:
        queue_owe(call)
    return settled

cdef inline void queue_expire_taken(Queue* q, Message* m, uint64_t holder, uint32_t lease) noexcept nogil:
    """Have a message that `holder` pulled under `lease`, and that may expire, be expired when it comes back."""
    queue_lock(q)
    if message_taken(m) and m.holder == holder and m.lease == lease and m.expiry != 0:
        m.expiry = 1
    queue_unlock(q)

cdef inline int64_t queue_release_all(Call* call, uint64_t holder) noexcept nogil:
    """Release all messages that a consumer has acquired, regardless of leases; return their number."""
    cdef Queue* q = call.queue
    cdef int64_t released = 0
    cdef bint back, unblocked
    cdef Message* past = NULL
    cdef Message* m
    queue_lock(q)
    m = order_after(&q.order, NULL)
    while m != NULL:
        m.references += 1
        back = unblocked = False
        if message_taken(m) and m.holder == holder:
            settle_locked(q, call, m, SETTLE_RELEASE, &back, &unblocked)
            released += 1
        if past != NULL:
            queue_unref(q, past)
        past = m
        queue_unlock(q)
        if back:
            queue_announce_back(call, m, unblocked)
        elif unblocked:
            queue_owe(call)
        queue_lock(q)
        m = order_after(&q.order, m)
    if past != NULL:
        queue_unref(q, past)
    queue_unlock(q)
    return released
