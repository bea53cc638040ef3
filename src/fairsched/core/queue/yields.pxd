"""Messages that a consumer passes because they are for one of a higher priority.

So the messages behind them are not kept from it. Unlike a refusal, that is for a time only: the consumer remembers the
first of them, and is called back there when they may be for it. It is in the list of those that yield until then. In a
fair queue, where no consumer walks, they are noted in the messages, as rejections that count in one epoch of the
consumer.

A consumer is called back when one above it, for which a message was passed (`outranks`), is not ready any more, or has
found nothing (its filter may refuse by now the messages that it accepted before); and when it gets a new group, whose
messages are not for those above any more. A message that comes back calls all cursors back anyway (cursor.pxd).

Why no message is passed for ever. A consumer that yields finds one above that is ready, takes the lock, checks its
state again, marks it, and passes. A consumer that is not ready any more has moved before it takes the lock, and then
calls back. So either the mark is seen, or the state. tests/model/yielding_model.py has the schedules.

Thread safety: under the queue's lock, all of it. Complexity: yields_end O(1), yields_recall O(consumers that yield).
Passed messages are checked again after that: O(messages yielded).
"""

from fairsched.core.queue.cursor cimport cursor_match, cursor_recall, cursor_set
from fairsched.core.queue.message cimport Message, message_before, message_note
from fairsched.core.queue.order.order cimport KIND_FAIR
from fairsched.core.queue.state cimport Queue, QueueConsumer, queue_unref

cdef inline void yields_begin(Queue* q, QueueConsumer* c) noexcept nogil:
    if c.yields:
        return
    c.yields = True
    c.prev_yielder = NULL
    c.next_yielder = q.yielders
    if q.yielders != NULL:
        q.yielders.prev_yielder = c
    q.yielders = c

cdef inline void yields_end(Queue* q, QueueConsumer* c) noexcept nogil:
    """Call a consumer back to what it has gone past."""
    cdef Message* yielded = c.yielded
    if not c.yields:
        return
    c.yields = False
    if c.prev_yielder != NULL:
        c.prev_yielder.next_yielder = c.next_yielder
    else:
        q.yielders = c.next_yielder
    if c.next_yielder != NULL:
        c.next_yielder.prev_yielder = c.prev_yielder
    c.epoch += 1
    c.yielded = NULL
    if yielded != NULL:
        cursor_recall(q, c, yielded)
        queue_unref(q, yielded)

cdef inline void yields_recall(Queue* q, QueueConsumer* above) noexcept nogil:
    """Call back those that have gone past messages for a consumer."""
    cdef QueueConsumer* c = q.yielders
    cdef QueueConsumer* following
    if not above.outranks:
        return
    above.outranks = False
    while c != NULL:
        following = c.next_yielder
        if c.node.priority < above.node.priority:
            yields_end(q, c)
        c = following

cdef inline bint yields_past(Queue* q, QueueConsumer* c, Message* m) noexcept nogil:
    """Have a consumer with a cursor go past its next message; False when memory is exhausted."""
    if q.order.kind == KIND_FAIR:
        if not message_note(m, c.id, c.epoch):
            return False
        c.refused = True
    else:
        if c.yielded == NULL or message_before(m, c.yielded):
            m.references += 1
            if c.yielded != NULL:
                queue_unref(q, c.yielded)
            c.yielded = m
        cursor_match(q, c, NULL)
        cursor_set(q, c, m)
    yields_begin(q, c)
    return True
