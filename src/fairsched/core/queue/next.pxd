"""The next message for a consumer: the first one, in the order of service, that it may have and accepts.

A consumer without a cursor may have the message that comes first. A consumer with a cursor walks, and remembers its
filter's answers: it passes a refused message, and keeps an accepted one in mind until that is taken, by this consumer
or another. Filters are asked outside (question.pxd); if a filter has not been asked, `known` is False. In a fair queue
no consumer walks: turns decide which message is next (turn.pxd), and a check does not use them up.

Thread safety: queue_next_for any, pinned, without the queue's lock; the others under it.
Complexity: O(1) without a cursor, besides the order; else O(messages gone past), each once; a fair queue as in
turn.pxd.
"""

from libc.stdint cimport uint32_t

from fairsched.core.queue.cursor cimport cursor_match, cursor_seek, cursor_set, cursor_takes
from fairsched.core.queue.message cimport MESSAGE_AVAILABLE, REASON_EXPIRED, Message, message_expired
from fairsched.core.queue.order.order cimport KIND_FAIR, order_first, order_look
from fairsched.core.queue.state cimport (
    WALK_STEPS, Call, Queue, QueueConsumer, queue_accepts, queue_lock, queue_remove, queue_unlock,
)
from fairsched.core.queue.turn cimport turn_further, turn_look

cdef inline Message* queue_next(Call* call, bint serving) noexcept nogil:
    """Locked. Return the next message that any consumer could take; remove expired ones."""
    cdef Queue* q = call.queue
    cdef Message* m = order_first(&q.order) if serving else order_look(&q.order)
    while m != NULL and message_expired(m, call.now):
        queue_remove(q, call, m, REASON_EXPIRED)
        m = order_first(&q.order) if serving else order_look(&q.order)
    return m

cdef inline Message* next_turn(Call* call, QueueConsumer* c, bint* known) noexcept nogil:
    """Locked. The next message of a fair queue for a consumer that acquires."""
    cdef Queue* q = call.queue
    cdef Message* m = turn_further(call, c) if c.walks else NULL
    if m != NULL:
        known[0] = False
        return m
    while True:
        known[0] = True
        m = order_look(&q.order) if q.order.returned != NULL and not c.walks else turn_look(call, c, known)
        if m == NULL or not message_expired(m, call.now):
            return m
        queue_remove(q, call, m, REASON_EXPIRED)

cdef inline Message* next_walking(Call* call, QueueConsumer* c, int* steps, bint* known) noexcept nogil:
    """Locked. The next message for a consumer with a cursor that walks; as queue_next_for."""
    cdef Queue* q = call.queue
    cdef Message* m = c.match
    cdef int answer
    if m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE and not message_expired(m, call.now) and (
            not c.node.acquires or cursor_takes(q, c, m)
        ):
            return m
        cursor_match(q, c, NULL)
    m = cursor_seek(q, call, c, steps)
    while m != NULL:
        answer = queue_accepts(call, c, m)
        if answer == -1:
            known[0] = False
            return m
        if answer == 1:
            if c.filtered:
                cursor_match(q, c, m)
            return m
        cursor_set(q, c, m)
        m = cursor_seek(q, call, c, steps)
    return NULL

cdef inline Message* queue_next_for(Call* call, QueueConsumer* c, bint* known) noexcept nogil:
    """The next message for a consumer, referenced; NULL: there is none. `known`: its filter has been asked."""
    cdef Queue* q = call.queue
    cdef Message* m = NULL
    cdef int steps = 0
    known[0] = True
    while m == NULL and steps == 0:
        steps = WALK_STEPS
        queue_lock(q)
        if q.order.kind == KIND_FAIR and c.node.acquires:
            m = next_turn(call, c, known)
        elif c.walks:
            m = next_walking(call, c, &steps, known)
        else:
            m = queue_next(call, False)
        if m != NULL:
            m.references += 1
        queue_unlock(q)
    return m

cdef inline bint queue_stands(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Locked. Whether a candidate is still what comes first for a consumer, though it was looked for before."""
    cdef Queue* q = call.queue
    cdef int steps = WALK_STEPS
    cdef bint known
    if q.order.kind == KIND_FAIR and c.node.acquires:
        return next_turn(call, c, &known) == m and known
    return not c.walks or cursor_seek(q, call, c, &steps) == m
