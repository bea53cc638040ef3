"""Timers of a queue: messages become due, and expire.

Consumers handle the messages they pass; queue_sweep handles the rest. A message is held while its time is not past, and
expired when its time is past: both strictly, as in Qpid Broker-J. A held message does not expire.

Thread safety: any, pinned, without the queue's lock.
Complexity: unhold O(log held) per due message; sweep O(messages).
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.queue.cursor cimport cursors_recall
from fairsched.core.queue.heap cimport heap_remove
from fairsched.core.queue.message cimport (
    HEAP_HELD, MESSAGE_AVAILABLE, REASON_EXPIRED, Message, message_expired, message_held,
)
from fairsched.core.queue.order.order cimport order_available
from fairsched.core.queue.state cimport (
    Call, Queue, QueueWalk, queue_lock, queue_remove, queue_unlock, queuewalk_begin, queuewalk_end, queuewalk_next,
)
from fairsched.core.queue.wake cimport queue_offer

cdef enum:
    DUE_MOST = 64            # messages that become available in one go

cdef inline int64_t queue_unhold(Queue* q, Call* call, Message** due) noexcept nogil:
    """Make available what has become due, up to DUE_MOST, referenced, to be announced: how many. If DUE_MOST: again."""
    cdef int64_t count = 0
    cdef Message* m
    queue_lock(q)
    m = q.order.held
    while m != NULL and count < DUE_MOST and not message_held(m, call.now):
        heap_remove(&q.order.held, m, HEAP_HELD)
        m.state = MESSAGE_AVAILABLE
        order_available(&q.order, m)
        cursors_recall(q, m, False)
        m.references += 1
        due[count] = m
        count += 1
        m = q.order.held
    queue_unlock(q)
    return count

cdef inline void queue_release_due(Call* call) noexcept nogil:
    """Make available all that has become due, and announce it."""
    cdef Message* due[DUE_MOST]
    cdef int64_t count = DUE_MOST, i
    while count == DUE_MOST:
        count = queue_unhold(call.queue, call, due)
        for i in range(count):
            queue_offer(call, due[i], True)

cdef inline int64_t queue_due(Queue* q) noexcept nogil:
    """The time at which the next held message is due, in nanoseconds; 0: none is held."""
    cdef int64_t due
    queue_lock(q)
    due = 0 if q.order.held == NULL else q.order.held.not_before
    queue_unlock(q)
    return due

cdef inline int64_t queue_sweep(Queue* q, Call* call) noexcept nogil:
    """Remove all that has expired; how many."""
    cdef int64_t expired = 0
    cdef QueueWalk w
    cdef Message* m = queuewalk_begin(&w, q)
    while m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE and message_expired(m, call.now):
            queue_remove(q, call, m, REASON_EXPIRED)
            expired += 1
        m = queuewalk_next(&w, m)
    queuewalk_end(&w)
    return expired
