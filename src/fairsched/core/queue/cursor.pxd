"""Cursors: consumers that see only some of a queue's messages walk over all of them, each for itself, once.

A consumer that has a filter, has rejected a message, shares out groups, or browses, has a cursor: the last message that
it has passed. That message stays linked, though it may be deleted, as long as a cursor stands on it. A consumer checks
a message once; a message that becomes available behind a cursor calls the cursor back there. (A browser must not see
again the messages after it, so it has a heap of such messages instead: late.pxd.) A message that a browser has seen
comes back to it only if it sees requeues; a message that another consumer had when the cursor passed is seen once, when
it is given back.

A consumer that takes a message releases the lock between the check and the taking, and may be called back meanwhile: a
cursor passes a message only while that message still comes first (queue_stands, in next.pxd). Otherwise a message that
another consumer released in the meantime, perhaps for this consumer only, could be skipped for ever.
tests/model/cursor_model.py has the schedule.

Source: behaviour of Qpid Broker-J's QueueContext. Thread safety: under the queue's lock, all of it.
Complexity: a walk O(messages passed), O(walkers) to call back.
"""

from libc.stdint cimport uint32_t

from fairsched.core.queue.groups cimport groups_allow, groups_find
from fairsched.core.queue.keymap cimport KeyEntry
from fairsched.core.queue.late cimport late_add, late_drop, late_lift
from fairsched.core.queue.message cimport (
    MESSAGE_AVAILABLE, REASON_EXPIRED, Message, message_before, message_expired, message_rejected,
    message_taken,
)
from fairsched.core.queue.order.order cimport order_after, order_before
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, queue_remove, queue_unref

cdef inline void cursor_begin(Queue* q, QueueConsumer* c) noexcept nogil:
    """Give a consumer a cursor, before the first message."""
    if c.walks:
        return
    c.walks = True
    c.prev_walker = NULL
    c.next_walker = q.walking
    if q.walking != NULL:
        q.walking.prev_walker = c
    q.walking = c
    if c.node.acquires:
        q.walkers.fetch_add(1)

cdef inline void cursor_set(Queue* q, QueueConsumer* c, Message* last) noexcept nogil:
    """Move a cursor to another message, or before all (NULL)."""
    cdef Message* old = c.last
    if last != NULL:
        last.references += 1
    c.last = last
    if old != NULL:
        queue_unref(q, old)

cdef inline void cursor_match(Queue* q, QueueConsumer* c, Message* match) noexcept nogil:
    """Remember, or forget (NULL), the message that a filter accepted."""
    cdef Message* old = c.match
    if match != NULL:
        match.references += 1
    c.match = match
    if old != NULL:
        queue_unref(q, old)

cdef inline void cursor_end(Queue* q, QueueConsumer* c) noexcept nogil:
    """Remove a consumer's cursor."""
    if not c.walks:
        return
    c.walks = False
    if c.prev_walker != NULL:
        c.prev_walker.next_walker = c.next_walker
    else:
        q.walking = c.next_walker
    if c.next_walker != NULL:
        c.next_walker.prev_walker = c.prev_walker
    if c.node.acquires:
        q.walkers.fetch_sub(1)
    cursor_set(q, c, NULL)
    cursor_match(q, c, NULL)
    while c.late != NULL:
        late_drop(c.late)
    while c.missed != NULL:
        late_drop(c.missed)

cdef inline bint cursor_behind(const QueueConsumer* c, const Message* m) noexcept nogil:
    """Whether this cursor has passed the place of `m`."""
    return c.last != NULL and not message_before(c.last, m)

cdef inline void cursor_recall(Queue* q, QueueConsumer* c, Message* m) noexcept nogil:
    """Move a cursor back before a message, unless the cursor has not reached the message yet."""
    if cursor_behind(c, m) or (c.match != NULL and message_before(m, c.match)):
        cursor_set(q, c, order_before(&q.order, m))
        cursor_match(q, c, NULL)

cdef inline void cursors_recall(Queue* q, Message* m, bint seen) noexcept nogil:
    """Call back the cursors that have passed the place of a message that has become available.

    `seen`: browsers may have seen it before, except those that missed it.
    """
    cdef QueueConsumer* c = q.walking
    while c != NULL:
        if cursor_behind(c, m) and not c.node.acquires:
            if late_lift(&c.missed, m) or not seen or c.sees_requeues:
                late_add(&c.late, m)
        else:
            cursor_recall(q, c, m)
        c = c.next_walker

cdef inline void cursor_skip_group(Queue* q, Message* m) noexcept nogil:
    """Note that a cursor passes a message because its group belongs to another consumer."""
    cdef KeyEntry* group = groups_find(&q.groups, m)
    cdef Message* old = group.skipped
    if old == NULL or message_before(m, old):
        m.references += 1
        group.skipped = m
        if old != NULL:
            queue_unref(q, old)

cdef inline void cursors_unblock(Queue* q, Message* skipped) noexcept nogil:
    """Call all cursors back to the skipped message of a group that has become free, and drop the reference to it.

    Not those of browsers, which skip no message because of its group: they have seen it.
    """
    cdef QueueConsumer* c = q.walking
    while c != NULL:
        if c.node.acquires:
            cursor_recall(q, c, skipped)
        c = c.next_walker
    queue_unref(q, skipped)

cdef inline bint cursor_takes(Queue* q, const QueueConsumer* c, const Message* m) noexcept nogil:
    """Whether this acquiring consumer, its filter aside, could take a message that is available."""
    if not c.walks:
        return True
    return not cursor_behind(c, m) and not message_rejected(m, c.id, c.epoch) and groups_allow(&q.groups, m, c.id)

cdef inline Message* cursor_seek(Queue* q, Call* call, QueueConsumer* c, int* steps) noexcept nogil:
    """Return the next message that this consumer could see, its filter aside, and move the cursor before it.

    NULL: there is none; or `steps` is 0, and the walk goes on after other threads have had the lock.
    """
    cdef Message* past = c.last
    cdef Message* m = order_after(&q.order, past)
    cdef Message* found = NULL
    while m != NULL and found == NULL and steps[0] > 0:
        steps[0] -= 1
        if m.state != <uint32_t> MESSAGE_AVAILABLE:
            if not c.node.acquires and message_taken(m):
                late_add(&c.missed, m)
            past = m
        elif message_expired(m, call.now):
            queue_remove(q, call, m, REASON_EXPIRED)
            past = m
        elif c.node.acquires and (message_rejected(m, c.id, c.epoch) or not groups_allow(&q.groups, m, c.id)):
            if not groups_allow(&q.groups, m, c.id):
                cursor_skip_group(q, m)
            past = m
        else:
            found = m
        if found == NULL:
            m = order_after(&q.order, m)
    if past != c.last:
        cursor_set(q, c, past)
    return found

cdef inline Message* cursor_late(Call* call, QueueConsumer* c) noexcept nogil:
    """Return the first available message behind a browser's cursor that it is to see, or NULL."""
    cdef Message* m
    while c.late != NULL and (
        c.late.message.state != <uint32_t> MESSAGE_AVAILABLE or message_expired(c.late.message, call.now)
    ):
        m = c.late.message
        late_drop(c.late)
        if message_taken(m):
            late_add(&c.missed, m)
    return c.late.message if c.late != NULL else NULL
