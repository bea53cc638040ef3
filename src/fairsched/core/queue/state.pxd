"""The data structures of a queue, its lock, and removal of messages: the basis of queue.pxd.

Three kinds of state, in the order in which they may be entered (never the other way round):
  - the consumers to be told of work: the lists of waiting/interest.pxd, without a lock, inside a pin;
  - the work: messages, their order, groups, keys, cursors, under the queue's lock. It is held for a few instructions (a
    walk releases it every WALK_STEPS), never across a call that could block, tell a consumer, or run Python code;
  - credit, which has a lock of its own.
Counters are written under the lock and read by any thread.

Thread safety: as each function says; `_locked` ones need the lock. Complexity: O(1), unless said.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_release

from fairsched.core.atomics cimport rarely, spin_wait
from fairsched.core.queue.credit cimport CreditManager
from fairsched.core.queue.groups cimport GROUPS_NONE, Groups, groups_settle
from fairsched.core.queue.keymap cimport KeyEntry, KeyMap, keymap_find, keymap_remove
from fairsched.core.queue.late cimport late_forget
from fairsched.core.queue.message cimport (
    MESSAGE_AVAILABLE, MESSAGE_DELETED, MESSAGE_HELD, Late, Message, MessagePool, Reason, message_taken,
    messagepool_give,
)
from fairsched.core.queue.order.order cimport KIND_LAST_VALUE, Order, order_after, order_taken, order_unlink
from fairsched.core.queue.overflow cimport Overflow
from fairsched.core.waiting.interest cimport Interest
from fairsched.core.waiting.node cimport ConsumerNode
from fairsched.core.waiting.reclaim cimport Pin

cdef enum:
    WALK_STEPS = 64

cdef enum Wish:  # why a consumer is desired: all of them, or it is not
    WISH_USER = 1    # it wants to be
    WISH_LIVE = 2    # the limit on live consumers allows it
    WISH_CREDIT = 4  # it has credit
    WISH_ALL = 7

cdef struct QueueConsumer:
    ConsumerNode node          # must be first
    # Fixed once it is registered:
    uint64_t id                # from 1; never used again
    bint filtered              # has a filter, which its owner evaluates
    bint sees_requeues
    bint exclusive
    void* owner
    # Under the queue's lock:
    bint walks                 # has a cursor: a filter, something it rejected, groups, or it browses
    Message* last              # the cursor: the message last gone past, referenced; NULL: before the first
    Message* match             # accepted by its filter and not acquired yet; referenced
    Late* late                 # a heap: what it is to see behind the cursor
    Late* missed               # a heap: what others had when its cursor came by, and still have
    QueueConsumer* next_walker
    QueueConsumer* prev_walker
    bint yields                # it has gone past messages that those above are to have (yields.pxd)
    Message* yielded           # the first of them, referenced; NULL in a fair queue, where they are noted in messages,
    uint64_t epoch             # in this epoch; from 1
    QueueConsumer* next_yielder
    QueueConsumer* prev_yielder
    bint outranks              # one below has gone past a message that this one is to have
    CreditManager credit       # also under its own lock, which is free at that time
    bint refused               # there are messages that say so
    int64_t unsettled          # messages that it has, and that took its credit
    # Atomic:
    atomic[uint32_t] wishes    # written under the queue's lock, read by any thread
    atomic[uint32_t] gone      # 1: removed, or being removed
    atomic[uint64_t] told      # notifications so far
    atomic[uint64_t] told_of   # the sequence number of the message that it was notified for last, where cursors matter

cdef struct Queue:
    Interest interest
    atomic[uint32_t] busy      # 1 while a thread has the lock
    atomic[uint32_t] closed
    atomic[uint32_t] walkers   # acquiring consumers with a cursor
    atomic[uint32_t] timed     # messages with an expiry, or held
    atomic[int64_t] awaited    # consumers that were notified, and have not pulled since: those whose node is NOTIFIED
    atomic[int64_t] depth      # messages, acquired ones included
    atomic[int64_t] available  # of those, neither acquired nor gone
    atomic[int64_t] bytes
    Order order
    MessagePool pool
    KeyMap latest              # of a last-value queue
    Groups groups
    Overflow overflow
    int64_t acquired_bytes     # of messages that consumers have
    QueueConsumer* walking     # consumers with a cursor, browsers included
    QueueConsumer* yielders    # of those, the ones that have gone past what those above are to have
    uint64_t ids
    uint32_t live_limit        # 0: none
    uint32_t live              # browsers do not count
    bint live_by_priority      # the next to be live is the first by priority, then by joining; else by joining
    uint64_t exclusive         # id of the consumer that has it to itself, or 0
    atomic[int64_t] consumers
    int64_t max_deliveries     # 0: no limit
    bint nondestructive
    bint drains                # closed, and what comes back leaves
    # As with RabbitMQ: what has expired leaves when it is next (not of a fair queue), and the owner trims a ring once
    # all that it returns together is back.
    bint expires_next

cdef struct Pulled:  # a copy of a message's fields when it was pulled: another consumer may have it soon after
    Message* message           # referenced
    uint64_t token
    uint64_t holder
    uint32_t lease
    int32_t deliveries
    bint redelivered
    bint paid                  # it took credit of the consumer that pulled

cdef struct Stand:  # the place that the questions of one call have reached (question.pxd): hints, may be out of date
    # NULL, or checked by the owner when it comes back inside, which sets it to NULL if the consumer is gone.
    QueueConsumer* asked       # the consumer, or browser, that the walk has reached
    QueueConsumer* above       # the consumer that would outrank it
    # Compared only, or kept by the owner:
    Message* about             # the message that the walk is about
    QueueConsumer* below       # the consumer that may be outranked,
    Message* offered           # if this message is offered to it
    uint64_t refuser           # the consumer whose filter refused last,
    Message* refused           # this message, referenced as long as it stands here; NULL: none was refused

cdef struct Call:  # one call into a queue: how consumers are told, and the messages that left meanwhile
    Pin* pin
    Queue* queue
    int64_t now                # nanoseconds of the queue's clock; needed while `timed` is not 0
    void (*tell)(Call* call, QueueConsumer* c) noexcept nogil  # NULL: `told` is enough
    void (*keep)(uint64_t token) noexcept nogil  # keeps pulled items alive; NULL: something else does
    # Returns a filter's answer: 1, 0, or -1: it has not been asked. NULL: filters accept everything.
    int (*accepts)(Call* call, QueueConsumer* c, Message* m) noexcept nogil
    void* context
    Message* about             # the message that is announced; NULL: any available message
    bint remains               # the work is left over by an acquisition, and others are about to take some
    uint64_t cause             # the sequence number of the message that the consumer asked last could take
    bint was_told              # the pulling consumer was notified, and others may have stayed asleep for it
    uint64_t newest            # sequence number of the message that was put
    Message* removed           # chained by `child`, each referenced: queue_forget is due
    # With filters to be asked first (`accepts`), some telling is left to the caller:
    uint32_t owed              # number of calls of queue_pass_on,
    bint owes_offer            # and whether queue_offer_rest
    Message* back              # a message given back and not announced yet; referenced
    bint unblocked             # that message's group has become free by this
    Stand stand

cdef inline void call_init(Call* call, Queue* q, int64_t now) noexcept nogil:
    """Initialise a call that tells no consumer and has no pin yet."""
    call.pin = NULL
    call.queue = q
    call.now = now
    call.tell = NULL
    call.keep = NULL
    call.accepts = NULL
    call.context = NULL
    call.about = call.removed = NULL
    call.remains = call.was_told = call.owes_offer = False
    call.cause = 0
    call.owed = 0
    call.newest = 0
    call.back = NULL
    call.unblocked = False
    call.stand.asked = call.stand.above = NULL
    call.stand.refused = NULL

cdef inline int queue_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """The answer of a consumer's filter: 1, 0, or -1: it has not been asked."""
    if not c.filtered or call.accepts == NULL:
        return True
    return call.accepts(call, c, m)

cdef inline void queue_lock_later(Queue* q) noexcept nogil:
    """Wait for the lock, and take it."""
    cdef unsigned int spins = 0
    while True:
        while q.busy.load():
            spin_wait(&spins)
        if not q.busy.exchange(1):  # A8: pairs with R8
            return

cdef inline void queue_lock(Queue* q) noexcept nogil:
    if rarely(q.busy.exchange(1)):  # A8: pairs with R8
        queue_lock_later(q)

cdef inline void queue_unlock(Queue* q) noexcept nogil:
    # R8 (unlock): pairs with A8; all that the lock guards was written before.
    q.busy.store(0, memory_order_release)

cdef inline void queue_count(atomic[int64_t]* counter, int64_t change) noexcept nogil:
    """Locked. No other thread writes, so no locked instruction is needed; readers need only some recent value."""
    # R9 (count): pairs with A9, a thread that reads a counter.
    counter.store(counter.load() + change, memory_order_release)

cdef inline int64_t queue_counted(Queue* q) noexcept nogil:
    """Locked. How many messages count for the limit."""
    return q.available.load() if q.overflow.ready else q.depth.load()

cdef inline int64_t queue_counted_bytes(Queue* q) noexcept nogil:
    return q.bytes.load() - (q.acquired_bytes if q.overflow.ready else 0)

cdef inline void queue_unref(Queue* q, Message* m) noexcept nogil:
    """Locked. Give up a reference to a message; the last one frees it, when it has left the queue."""
    m.references -= 1
    if m.references == 0 and m.state == <uint32_t> MESSAGE_DELETED:
        order_unlink(&q.order, m)
        messagepool_give(&q.pool, m)

cdef struct QueueWalk:  # along all messages; others get the lock now and then
    Queue* queue
    Message* kept              # the place where the walk last released the lock, referenced, so that it can continue
    int steps

cdef inline Message* queuewalk_begin(QueueWalk* w, Queue* q) noexcept nogil:
    """Take the lock, until `queuewalk_end`; the first message, or NULL."""
    w.queue = q
    w.kept = NULL
    w.steps = 0
    queue_lock(q)
    return order_after(&q.order, NULL)

cdef inline Message* queuewalk_next(QueueWalk* w, Message* m) noexcept nogil:
    """The message after `m`, or NULL."""
    w.steps += 1
    if w.steps % WALK_STEPS == 0:
        m.references += 1
        if w.kept != NULL:
            queue_unref(w.queue, w.kept)
        w.kept = m
        queue_unlock(w.queue)
        queue_lock(w.queue)
    return order_after(&w.queue.order, m)

cdef inline void queuewalk_end(QueueWalk* w) noexcept nogil:
    if w.kept != NULL:
        queue_unref(w.queue, w.kept)
    queue_unlock(w.queue)

cdef inline void queue_unkey(Queue* q, Message* m) noexcept nogil:
    """Locked. Forget the key of a message that leaves, if it was the latest of it."""
    cdef KeyEntry* entry
    if q.order.kind == KIND_LAST_VALUE and m.key != NULL:
        entry = keymap_find(&q.latest, m.key)
        if entry != NULL and entry.latest == m:
            keymap_remove(&q.latest, entry)

cdef inline Message* queue_settled(Queue* q, Message* m) noexcept nogil:
    """Locked. An acquired message is its consumer's no longer: what was skipped for its group, with the reference."""
    if q.groups.kind == GROUPS_NONE:
        return NULL
    return groups_settle(&q.groups, m, m.holder)

cdef inline void queue_delete_taken(Queue* q, Message* m) noexcept nogil:
    """Locked. As queue_delete, of a message that is not to be found any more."""
    if message_taken(m):
        q.acquired_bytes -= m.size
    queue_unkey(q, m)
    if rarely(m.late != NULL):
        late_forget(m)
    if m.expiry != 0 or m.not_before != 0:
        q.timed.fetch_sub(1)
    queue_count(&q.depth, -1)
    queue_count(&q.bytes, -m.size)
    m.state = MESSAGE_DELETED

cdef inline void queue_delete(Queue* q, Message* m) noexcept nogil:
    """Locked. Take a message out of the queue; the caller has a reference to it, and its group is settled."""
    if m.state == <uint32_t> MESSAGE_AVAILABLE or m.state == <uint32_t> MESSAGE_HELD:
        order_taken(&q.order, m, False)
        queue_count(&q.available, -1)
    elif not message_taken(m):
        return
    queue_delete_taken(q, m)

cdef inline void queue_remove(Queue* q, Call* call, Message* m, Reason reason) noexcept nogil:
    """Locked. Remove a message that was not acknowledged, and leave it to the caller of the call."""
    m.references += 1
    queue_delete(q, m)
    m.reason = reason
    m.child = call.removed
    call.removed = m

cdef inline void queue_forget(Queue* q, Call* call) noexcept nogil:
    """Forget the removed messages, which have been seen to."""
    cdef Message* m
    if call.removed == NULL:
        return
    queue_lock(q)
    while call.removed != NULL:
        m = call.removed
        call.removed = m.child
        queue_unref(q, m)
    queue_unlock(q)

cdef inline bint consumer_desired(QueueConsumer* c) noexcept nogil:
    return c.wishes.load() == WISH_ALL
