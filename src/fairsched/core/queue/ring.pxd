"""A ring queue above its limits drops its least significant messages.

These are the oldest; in a priority queue the oldest of the lowest level, then of the next; in a sorted queue the oldest
by arrival. A message that a consumer has stays, unless it may be stolen. Source: Qpid Broker-J's RingOverflowPolicy.

Thread safety: under the queue's lock, but queue_trim. Complexity: O(messages acquired before the victim);
sorted O(messages).
"""

from libc.stdint cimport uint32_t, uint64_t

from fairsched.core.queue.cursor cimport cursors_unblock
from fairsched.core.queue.message cimport (
    MESSAGE_ACQUIRED, MESSAGE_DELETED, REASON_OVERFLOW, Message, message_taken,
)
from fairsched.core.queue.order.order cimport KIND_FAIR, KIND_SORTED, Order, order_look, order_oldest
from fairsched.core.queue.overflow cimport OVERFLOW_RING, overflow_fits
from fairsched.core.queue.state cimport (
    Call, Queue, queue_counted, queue_counted_bytes, queue_lock, queue_remove, queue_settled, queue_unlock,
)
from fairsched.core.waiting.interest cimport NO_PRIORITY, interest_highest_notified

cdef inline bint ring_may_go(const Message* m, uint64_t newest) noexcept nogil:
    return (
        m.state != <uint32_t> MESSAGE_ACQUIRED and m.state != <uint32_t> MESSAGE_DELETED
        and (m.sequence < newest)
    )

cdef inline Message* ring_less(const Order* o, const Message* m) noexcept nogil:
    """The next message to go after `m`, in whatever state."""
    cdef uint32_t level = m.level
    cdef Message* following = m.next
    while following == NULL and level > 0:
        level -= 1
        following = o.levels[level].head
    return following

cdef inline Message* ring_victim(const Order* o, uint64_t newest) noexcept nogil:
    """The least significant message that may go; NULL: none."""
    cdef Message* m = order_oldest(o)
    cdef Message* victim = NULL
    while m != NULL:
        if ring_may_go(m, newest) and (victim == NULL or m.sequence < victim.sequence):
            victim = m
            if o.kind != KIND_SORTED:
                return victim
        m = ring_less(o, m)
    return victim

cdef inline Message* queue_victim(Queue* q, uint64_t newest) noexcept nogil:
    """Locked. The message that is to go; NULL: none may. With RabbitMQ's limits it is the one that is next."""
    if q.overflow.ready and q.order.kind != KIND_FAIR:
        return order_look(&q.order)
    return ring_victim(&q.order, newest)

cdef inline void queue_ring(Queue* q, Call* call, uint64_t newest) noexcept nogil:
    """Locked. Have messages leave until the rest fits, the one of that sequence number and younger ones excepted."""
    cdef Message* victim
    cdef Message* skipped
    if q.overflow.policy != OVERFLOW_RING:
        return
    while not overflow_fits(&q.overflow, queue_counted(q), queue_counted_bytes(q)):
        victim = queue_victim(q, newest)
        if victim == NULL:
            return
        skipped = queue_settled(q, victim) if message_taken(victim) else NULL
        queue_remove(q, call, victim, REASON_OVERFLOW)
        if skipped != NULL:
            cursors_unblock(q, skipped)

cdef inline bint queue_awaited(Call* call) noexcept nogil:
    """Whether a consumer that was told is about to pull."""
    return interest_highest_notified(&call.queue.interest, call.pin) != NO_PRIORITY

cdef inline void queue_trim(Call* call, uint64_t newest) noexcept nogil:
    """As queue_ring, for a message that has been put and announced: in that order, as in the source."""
    cdef Queue* q = call.queue
    if q.overflow.policy != OVERFLOW_RING:
        return
    if not q.overflow.patient or not queue_awaited(call):
        queue_lock(q)
        queue_ring(q, call, newest)
        queue_unlock(q)
