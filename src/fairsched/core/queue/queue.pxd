"""A queue whose consumers pull: one is notified of work, and then takes messages until there are none.

Source: the behaviour of Qpid Broker-J's AbstractQueue; differences are noted where they occur.

How to use it
    queue_init ... queue_clear. A consumer (QueueConsumer, its owner's memory, aligned to the cache line) is set up by
        consumer_init; queue_subscribe ... queue_cancel, node_retire (members.pxd).
    Every use is a Call: call_init, call.pin = interest_enter(&q.interest), the operation, interest_leave(call.pin).
        Afterwards, see to what `call.removed` chains (expired, overflowed, superseded, delivered too often), and then
        queue_forget. `call.tell` is called inside the pin: it must not block.
    queue_put; queue_pull (pull.pxd); then for each message pulled queue_settle (settle.pxd), or, by a
        browser, queue_drop (work.pxd). queue_sweep (time.pxd) at times.

Why no message waits while a consumer that could take it sleeps
    A put links the message (under the lock), then looks at the lists: waiting/wakeup.pxd's V and R. A pull that finds
    nothing first makes sure that its node is in Interested, and then looks once more: E and L. A consumer that was
    notified pulls at least once after that: it goes on until it finds nothing, or is busy with its messages, and has
    offered the rest to another (wake.pxd). A consumer that cannot go on (its credit is spent, its owner does not want
    more) has acquired its messages, and moved out, before others are sought (members.pxd). A message that is released,
    or due, is announced like a new one, to one consumer each (the source wakes all that it concerns).

  synchronization  any operation from any thread, pinned; init and clear: X. One thread at a time pulls for a consumer.
Progress: the lock is held for a few instructions; everything else as in waiting/interest.pxd.
Complexity: put and pull O(1) where no consumer has a cursor, besides the order (order/order.pxd) and the policy
(waiting/wakeup.pxd).
Memory: 128 bytes a message (192 in a sorted queue), and its key; 216 a consumer, and its two list entries.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t, uint8_t

from fairsched.core.hashing.xxh64 cimport xxh64
from fairsched.core.queue.cursor cimport cursors_recall
from fairsched.core.queue.groups cimport Grouping, groups_clear, groups_init
from fairsched.core.queue.keymap cimport KeyEntry, keymap_clear, keymap_init, keymap_obtain
from fairsched.core.queue.message cimport (
    MESSAGE_AVAILABLE, MESSAGE_HELD, REASON_SUPERSEDED, Message, message_held, message_taken, messagekey_create,
    messagepool_clear, messagepool_give, messagepool_init, messagepool_take,
)
from fairsched.core.queue.order.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, Kind, order_clear, order_init, order_level, order_link,
)
from fairsched.core.queue.overflow cimport OVERFLOW_NONE, OVERFLOW_RING, overflow_admits
from fairsched.core.queue.ring cimport queue_trim
from fairsched.core.queue.state cimport (
    Call, Queue, QueueConsumer, consumer_desired, queue_count, queue_counted, queue_counted_bytes, queue_lock,
    queue_remove, queue_unlock,
)
from fairsched.core.queue.wake cimport queue_offer
from fairsched.core.waiting.interest cimport interest_clear, interest_init
from fairsched.core.waiting.walk cimport LIST_ALL, InterestWalk, interestwalk_init, interestwalk_next

cdef enum Admittance:
    PUT_DONE = 1
    PUT_FULL = 2
    PUT_CLOSED = 3
    PUT_NO_MEMORY = 4

cdef struct Offer:  # a message to be put
    uint64_t token
    int64_t size
    int64_t priority
    int64_t expiry        # 0: never
    int64_t not_before    # 0: at once
    const char* key       # NULL: none
    uint64_t key_length
    uint32_t slot         # of a fair queue

cdef inline bint queue_init(
    Queue* q, Kind kind, uint32_t levels, Grouping grouping, uint32_t threshold
) noexcept nogil:
    """False when memory is exhausted; queue_clear is due either way. Limits are set before it is used."""
    q.busy.store(0)
    q.closed.store(0)
    q.walkers.store(0)
    q.timed.store(0)
    q.depth.store(0)
    q.available.store(0)
    q.bytes.store(0)
    messagepool_init(&q.pool, kind == KIND_SORTED)
    keymap_init(&q.latest)
    q.overflow.policy = OVERFLOW_NONE
    q.overflow.max_depth = q.overflow.max_bytes = -1
    q.overflow.flowing = q.overflow.ready = q.overflow.patient = False
    q.acquired_bytes = 0
    q.walking = q.yielders = NULL
    q.awaited.store(0)
    q.live_by_priority = False
    q.ids = q.exclusive = 0
    q.live_limit = q.live = 0
    q.consumers.store(0)
    q.max_deliveries = 0
    q.nondestructive = q.drains = q.expires_next = False
    return (
        interest_init(&q.interest, threshold) & order_init(&q.order, kind, levels) & groups_init(&q.groups, grouping)
    )

cdef inline void queue_clear(Queue* q) noexcept nogil:
    """Free everything. No thread is inside; the owners free consumers that are still registered."""
    interest_clear(&q.interest)
    keymap_clear(&q.latest)
    groups_clear(&q.groups)
    order_clear(&q.order)
    messagepool_clear(&q.pool)

cdef inline Message* queue_create(Queue* q, const Offer* offer) noexcept nogil:
    """Locked. A message as offered; NULL when memory is exhausted."""
    cdef Message* m = messagepool_take(&q.pool)
    if m == NULL:
        return NULL
    m.token = offer.token
    m.size = offer.size
    m.expiry = offer.expiry
    m.not_before = offer.not_before
    m.slot = offer.slot
    m.level = <uint8_t> order_level(&q.order, offer.priority)
    if offer.key != NULL:
        m.key = messagekey_create(
            offer.key, offer.key_length, xxh64(<const uint8_t*> offer.key, offer.key_length, 0)
        )
        if m.key == NULL:
            messagepool_give(&q.pool, m)
            return NULL
    return m

cdef inline bint queue_supersede(Queue* q, Call* call, Message* m) noexcept nogil:
    """Locked. A new message takes the place of the latest of its key; False when memory is exhausted."""
    cdef KeyEntry* entry
    cdef Message* old
    if q.order.kind != KIND_LAST_VALUE or m.key == NULL:
        return True
    entry = keymap_obtain(&q.latest, m.key)
    if entry == NULL:
        return False
    old = entry.latest
    entry.latest = m
    if old != NULL:
        old.superseded = True  # if a consumer has acquired it, it is deleted when it comes back
        if not message_taken(old):
            queue_remove(q, call, old, REASON_SUPERSEDED)
    return True

cdef inline bint queue_wanted(Call* call) noexcept nogil:
    """Whether there are consumers that would take a message at once: by their wishes, as a node may be on its way."""
    cdef InterestWalk w
    cdef QueueConsumer* c
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_ALL)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL and not (c.node.acquires and consumer_desired(c)):
        c = <QueueConsumer*> interestwalk_next(&w)
    return c != NULL

cdef inline bint queue_bears(Call* call) noexcept nogil:
    """Return whether a ring takes a message that is larger than its limits.

    With RabbitMQ's limits it does, and drops what is next, this message last. A fair queue never drops the newest: it
    takes the message if consumers would take it at once.
    """
    cdef Queue* q = call.queue
    return q.overflow.policy == OVERFLOW_RING and q.overflow.ready and (q.order.kind != KIND_FAIR or queue_wanted(call))

cdef inline Admittance queue_link(Queue* q, Call* call, const Offer* offer, Message** linked) noexcept nogil:
    """Locked. Put a message in its place."""
    cdef Message* m
    if q.closed.load():
        return PUT_CLOSED
    if offer.size > INT64_MAX - q.bytes.load():  # they could not be counted
        return PUT_FULL
    if q.overflow.policy != OVERFLOW_NONE and not overflow_admits(
        &q.overflow, queue_counted(q), queue_counted_bytes(q), offer.size
    ) and not queue_bears(call):
        return PUT_FULL
    m = queue_create(q, offer)
    if m == NULL:
        return PUT_NO_MEMORY
    if not queue_supersede(q, call, m):
        messagepool_give(&q.pool, m)
        return PUT_NO_MEMORY
    if message_held(m, call.now):
        m.state = MESSAGE_HELD
    if m.expiry != 0 or m.not_before != 0:
        q.timed.fetch_add(1)
    order_link(&q.order, m)
    queue_count(&q.depth, 1)
    queue_count(&q.available, 1)
    queue_count(&q.bytes, m.size)
    if q.walking != NULL and (q.order.kind == KIND_PRIORITY or q.order.kind == KIND_SORTED):
        cursors_recall(q, m, False)
    linked[0] = m
    return PUT_DONE

cdef inline Admittance queue_put(Call* call, const Offer* offer, Message** linked) noexcept nogil:
    """Put a message, and announce it. With `linked`: what is available is left there, referenced, to be announced by
    queue_offer and followed by queue_trim of `call.newest`."""
    cdef Queue* q = call.queue
    cdef Message* m = NULL
    cdef Admittance done
    cdef bint available, watched
    queue_lock(q)
    done = queue_link(q, call, offer, &m)
    if done != PUT_DONE:
        queue_unlock(q)
        return done
    call.newest = m.sequence
    available = m.state == <uint32_t> MESSAGE_AVAILABLE
    watched = available and (q.walking != NULL or linked != NULL)
    if watched:
        m.references += 1
    queue_unlock(q)
    if linked != NULL:
        linked[0] = m if watched else NULL
    elif available:
        queue_offer(call, m, watched)
    if linked == NULL or not watched:
        queue_trim(call, call.newest)
    return PUT_DONE
