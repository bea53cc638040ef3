"""What is next for a consumer of a queue: the first message, in the order of service, that it may have and wants.

Who has no cursor may have whatever is first. Who has one walks, and remembers what its filter has said: a refused
message is gone past, an accepted one kept in mind until it is taken, by this consumer or another. Filters are asked
outside (queuewake.pxd); where one has not been asked, `known` says so.

Thread safety: queue_next_for any, pinned, without the queue's lock; the others under it.
Complexity: O(1) without a cursor, besides the order; else O(messages gone past), each once.
"""

from libc.stdint cimport uint32_t

from fairsched.core.message cimport (
    MESSAGE_AVAILABLE, REASON_EXPIRED, Message, message_expired, message_reject,
)
from fairsched.core.order cimport KIND_FAIR, order_first, order_look
from fairsched.core.orderfairfor cimport fair_look_for, fair_turn_for
from fairsched.core.queuecursor cimport cursor_match, cursor_seek, cursor_set, cursor_takes
from fairsched.core.queuestate cimport (
    WALK_STEPS, Call, Queue, QueueConsumer, queue_lock, queue_remove, queue_unlock,
)

cdef inline int queue_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """What a consumer's filter says: 1, 0, or -1: it has not been asked."""
    if not c.filtered or call.accepts == NULL:
        return True
    return call.accepts(call, c, m)

cdef inline Message* queue_next(Call* call, bint serving) noexcept nogil:
    """Locked. The next message that anybody could take; what has expired goes."""
    cdef Queue* q = call.queue
    cdef Message* m = order_first(&q.order) if serving else order_look(&q.order)
    while m != NULL and message_expired(m, call.now):
        queue_remove(q, call, m, REASON_EXPIRED)
        m = order_first(&q.order) if serving else order_look(&q.order)
    return m

cdef inline Message* next_seen(Call* call, QueueConsumer* c, int* steps, bint serving) noexcept nogil:
    """Locked. The next message for a consumer with a cursor, its filter aside."""
    cdef Queue* q = call.queue
    cdef Message* m
    if q.order.kind != KIND_FAIR or not c.node.acquires:
        return cursor_seek(q, call, c, steps)
    while True:
        if serving:
            m = fair_turn_for(&q.order.slots, &q.groups, c.id)
        else:
            m = fair_look_for(&q.order.slots, &q.groups, c.id)
        if m == NULL or not message_expired(m, call.now):
            return m
        queue_remove(q, call, m, REASON_EXPIRED)

cdef inline void next_refused(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Locked. The filter of a consumer has refused what was found for it."""
    if call.queue.order.kind != KIND_FAIR or not c.node.acquires:
        cursor_set(call.queue, c, m)
    else:
        message_reject(m, c.id)

cdef inline Message* next_walking(Call* call, QueueConsumer* c, int* steps, bint* known, bint serving) noexcept nogil:
    """Locked. The next message for a consumer with a cursor; as queue_next_for."""
    cdef Queue* q = call.queue
    cdef Message* m = c.match
    cdef int answer
    if m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE and not message_expired(m, call.now) and (
            not c.node.acquires or cursor_takes(q, c, m)
        ):
            return m
        cursor_match(q, c, NULL)
    m = next_seen(call, c, steps, serving)
    while m != NULL:
        answer = queue_accepts(call, c, m)
        if answer == -1:
            known[0] = False
            return m
        if answer == 1:
            if c.filtered and q.order.kind != KIND_FAIR:
                cursor_match(q, c, m)
            return m
        next_refused(call, c, m)
        m = next_seen(call, c, steps, serving)
    return NULL

cdef inline Message* queue_next_for(Call* call, QueueConsumer* c, bint* known, bint serving) noexcept nogil:
    """The next message for a consumer, referenced; NULL: there is none. `known`: its filter has been asked.

    `serving`: it is about to be taken; otherwise it is only a look, which in a fair queue finds some message.
    """
    cdef Queue* q = call.queue
    cdef Message* m = NULL
    cdef int steps = 0
    known[0] = True
    while m == NULL and steps == 0:
        steps = WALK_STEPS
        queue_lock(q)
        m = next_walking(call, c, &steps, known, serving) if c.walks else queue_next(call, serving)
        if m != NULL:
            m.references += 1
        queue_unlock(q)
    return m
