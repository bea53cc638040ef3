"""The order of service: every message of a queue in its place, and the next one that any consumer may take.

Messages stand in levels (one, but in a priority queue), linked in the order of service; in a fair queue, whose order
is a matter of whose turn it is, in that of arrival. They stay where they are while they are acquired, so that cursors
(cursor.pxd) can walk, and what comes back is in its place again.
A consumer that takes any message does not walk: each level has a front, before which all messages have been passed.
Messages available before it, which came back or were inserted there, are in the heap `returned`. The front passes each
message once. In a fair queue the slots hold the available messages.

Source: behaviour of Qpid Broker-J's queue kinds. Thread safety: none; the caller synchronizes.
Complexity: first, taken, link O(1), O(log returned) for what came back, O(log n) in a sorted queue; a fair queue as in
fair.pxd. after, before O(levels).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fairsched.core.atomics cimport lowest_bit, rarely
from fairsched.core.queue.heap cimport heap_push, heap_remove
from fairsched.core.queue.message cimport (
    HEAP_HELD, HEAP_NONE, HEAP_RETURNED, MESSAGE_AVAILABLE, MESSAGE_HELD, Message, message_before,
)
from fairsched.core.queue.order.fair cimport fair_first, fair_insert, fair_look, fair_take
from fairsched.core.queue.order.tree cimport tree_insert, tree_remove, tree_weight
from fairsched.core.schedule.slots cimport SlotTable, slots_clear, slots_init

cdef enum Kind:
    KIND_STANDARD
    KIND_PRIORITY
    KIND_SORTED
    KIND_LAST_VALUE
    KIND_FAIR

cdef enum:
    LEVELS_MAX = 256
    LEVEL_WORDS = 4

cdef struct OrderLevel:
    Message* head
    Message* tail
    Message* front   # the first that has not been passed

cdef struct Order:
    Kind kind
    uint32_t count           # levels
    OrderLevel* levels
    uint64_t fresh[LEVEL_WORDS]  # a bit for each level whose front is not NULL; perhaps for others, until one looks
    Message* returned
    Message* held
    Message* root
    uint64_t sequence
    uint32_t random
    SlotTable slots

cdef inline bint order_init(Order* o, Kind kind, uint32_t count) noexcept nogil:
    """False when memory is exhausted; order_clear is due either way."""
    cdef int i
    o.kind = kind
    o.count = count if kind == KIND_PRIORITY else 1
    for i in range(LEVEL_WORDS):
        o.fresh[i] = 0
    o.returned = o.held = o.root = NULL
    o.sequence = 0
    o.random = 2463534242
    slots_init(&o.slots)
    o.levels = <OrderLevel*> calloc(o.count, sizeof(OrderLevel))
    return o.levels != NULL

cdef inline void order_clear(Order* o) noexcept nogil:
    """Forget all messages."""
    slots_clear(&o.slots)
    free(o.levels)
    o.levels = NULL

cdef inline uint32_t order_level(const Order* o, int64_t priority) noexcept nogil:
    """The level of a priority, which counts as in JMS: 4 is the middle, wherever that is."""
    cdef int64_t level
    if o.kind != KIND_PRIORITY:
        return 0
    level = priority - (5 - (<int64_t> o.count + 1) // 2)
    return o.count - 1 - <uint32_t> min(max(level, 0), <int64_t> o.count - 1)

cdef inline void order_splice(Order* o, Message* m, Message* prev) noexcept nogil:
    """Link `m` into its level behind `prev`; NULL: as the first."""
    cdef OrderLevel* level = &o.levels[m.level]
    m.prev = prev
    m.next = prev.next if prev != NULL else level.head
    if m.next != NULL:
        m.next.prev = m
    else:
        level.tail = m
    if prev != NULL:
        prev.next = m
    else:
        level.head = m

cdef inline void order_available(Order* o, Message* m) noexcept nogil:
    """Offer a linked message that has become available: new, back, or due."""
    if o.kind == KIND_FAIR and fair_insert(&o.slots, m):
        return
    # A fair queue comes here when memory is exhausted: then the message is out of turn, but not lost.
    if m.passed or o.kind == KIND_FAIR:
        heap_push(&o.returned, m, HEAP_RETURNED)

cdef inline void order_link(Order* o, Message* m) noexcept nogil:
    """Put a new message, available or held, into its place."""
    o.sequence += 1
    m.sequence = o.sequence
    if rarely(o.kind == KIND_SORTED):
        m.sorted = True
        m.weight = tree_weight(&o.random)
        order_splice(o, m, tree_insert(&o.root, m))
    else:
        order_splice(o, m, o.levels[m.level].tail)
    if o.kind == KIND_FAIR:
        m.passed = True
    elif m.next == o.levels[m.level].front:
        o.levels[m.level].front = m
        o.fresh[m.level // 64] |= <uint64_t> 1 << (m.level % 64)
    elif m.next != NULL and m.next.passed:
        m.passed = True
    if m.state == <uint32_t> MESSAGE_HELD:
        heap_push(&o.held, m, HEAP_HELD)
    elif m.passed:
        order_available(o, m)

cdef inline Message* order_fresh(Order* o) noexcept nogil:
    """The first available message at or behind a front; fronts go past what is not available."""
    cdef uint32_t word = 0, level
    cdef Message* m
    while word < LEVEL_WORDS:
        if o.fresh[word] == 0:
            word += 1
            continue
        level = word * 64 + lowest_bit(o.fresh[word])
        m = o.levels[level].front
        while m != NULL and m.state != <uint32_t> MESSAGE_AVAILABLE:
            m.passed = True
            m = m.next
        o.levels[level].front = m
        if m != NULL:
            return m
        o.fresh[word] &= o.fresh[word] - 1
    return NULL

cdef inline Message* order_next(Order* o) noexcept nogil:
    """Return the message that is next for any consumer where there are no turns, or NULL."""
    cdef Message* m = order_fresh(o)
    return o.returned if o.returned != NULL and (m == NULL or message_before(o.returned, m)) else m

cdef inline Message* order_look(Order* o) noexcept nogil:
    """Return the message that is next for any consumer, or, in a fair queue, some message; NULL: none is available."""
    if o.kind == KIND_FAIR:
        return o.returned if o.returned != NULL else fair_look(&o.slots)
    return order_next(o)

cdef inline Message* order_first(Order* o) noexcept nogil:
    """Return the message that is next for any consumer, or NULL. May use up turns, so the caller must take it."""
    if o.kind == KIND_FAIR:
        return o.returned if o.returned != NULL else fair_first(&o.slots)
    return order_next(o)

cdef inline void order_unheap(Order* o, Message* m) noexcept nogil:
    if m.heap == HEAP_RETURNED:
        heap_remove(&o.returned, m, HEAP_RETURNED)
    elif m.heap == HEAP_HELD:
        heap_remove(&o.held, m, HEAP_HELD)

cdef inline void order_taken(Order* o, Message* m, bint served) noexcept nogil:
    """A message is not to be found any more: it is about to be acquired (served), or to be deleted."""
    cdef OrderLevel* level = &o.levels[m.level]
    if m.heap != HEAP_NONE:
        order_unheap(o, m)
    elif o.kind == KIND_FAIR:
        if m.state == <uint32_t> MESSAGE_AVAILABLE:
            fair_take(&o.slots, m, served)
    if level.front == m:
        m.passed = True
        level.front = m.next

cdef inline void order_unlink(Order* o, Message* m) noexcept nogil:
    """Take a message that is not to be found any more out of its level."""
    cdef OrderLevel* level = &o.levels[m.level]
    if rarely(m.sorted):
        tree_remove(&o.root, m)
    if m == level.front:
        level.front = m.next
    if m.prev != NULL:
        m.prev.next = m.next
    else:
        level.head = m.next
    if m.next != NULL:
        m.next.prev = m.prev
    else:
        level.tail = m.prev

cdef inline Message* order_after(const Order* o, const Message* m) noexcept nogil:
    """The message behind `m`, in whatever state; NULL for `m`: the first one."""
    cdef Message* following = m.next if m != NULL else NULL
    cdef uint32_t level = m.level + 1 if m != NULL else 0
    while following == NULL and level < o.count:
        following = o.levels[level].head
        level += 1
    return following

cdef inline Message* order_before(const Order* o, const Message* m) noexcept nogil:
    """The message before `m`; NULL: there is none."""
    cdef Message* previous = m.prev
    cdef uint32_t level = m.level
    while previous == NULL and level > 0:
        level -= 1
        previous = o.levels[level].tail
    return previous

cdef inline Message* order_oldest(const Order* o) noexcept nogil:
    """The beginning of the search for the least significant: the oldest of the lowest level that has any."""
    cdef uint32_t level = o.count
    while level > 0:
        level -= 1
        if o.levels[level].head != NULL:
            return o.levels[level].head
    return NULL
