"""The consumers of one queue, in lists by their readiness, which decide the consumer that is told of work.

Source: Qpid Broker-J's QueueConsumerManagerImpl. A node is in one state, and in the list of that state:
INTERESTED and NOTIFIED (a list for each priority), NOT_INTERESTED, NON_ACQUIRING (browsers). SERVED nodes are in the
list of the notified ones: their consumers have got something since they were notified. Every registered node is in All
(a list for each priority) besides, since a thread that walks those lists would miss a node between two of them. Every
move is a test and a move to the tail of the new list, one step for others: it is under a lock that belongs to the node
only (node.pxd).

How to use it
    pin = interest_enter(m) ... interest_leave(pin)   around every use; one pin at a time in a thread, passed down.
        Nodes found inside stay what they are, though perhaps removed, until interest_leave. Never block inside.
    A node is the caller's memory, usually the head of a larger struct (`token` is free for its use): node_init, then
        interest_add, then, after interest_remove, node_retire, which calls `dispose` when no thread can hold the
        node any more. The node, and all else that the consumer needs, is complete before interest_add makes it
        reachable.
    interest_set(m, pin, node, desired), interest_notify(m, pin, node), interest_done(m, pin, node); in membership.pxd
        interest_add(m, pin, node, desired), interest_remove(m, pin, node). Each says MOVED, NOT_MOVED, or NO_MEMORY,
        and then nothing has changed. interest_move(m, pin, node, allowed, target, &state) is any move, and says where
        the node came from.
    interest_first(m, pin): first interested node of the highest priority. interest_highest_notified(m, pin).
    node_state(node). In walk.pxd: interest_size, interest_count, and
        interestwalk_init(&w, m, pin, LIST), interestwalk_next(&w) until NULL: priorities descending, then FIFO.

  synchronization    set, notify, done  add, remove  first, walk  retire     X: needs external exclusion
  set, notify, done          -               -            -         X        one of those on the same node wins
  add, remove                -               -            -         X        wait for one another
  first, walk                -               -            -         -
  init, clear                X               X            X         X
Progress: a move waits for another move of the same node only; first and walk never wait; add and remove take a lock.
Reclamation: reclaim.pxd, for entries, nodes, levels and tables alike.
Complexity: moves and size O(1); first O(priorities / 64); add and remove O(1), O(priorities) for a priority that comes
or goes. Memory: a node, two live entries, and at most as many dead ones or the threshold: about 200 bytes a consumer.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_release

from fairsched.core.waiting.levels cimport (
    LEVEL_INTERESTED, LEVEL_NOTIFIED, Level, LevelIndex, LevelTable, LevelTablePointer, levels_mark, levels_next,
    levels_unmark, leveltable_create,
)
from fairsched.core.waiting.node cimport (
    ConsumerNode, INTERESTED, NON_ACQUIRING, NOTIFIED, NOT_INTERESTED, READY, SERVED, node_claim, node_place,
)
from fairsched.core.waiting.nodelist cimport (
    NodeList, nodelist_append, nodelist_bury, nodelist_first, nodelist_init, nodelist_tidy,
)
from fairsched.core.waiting.reclaim cimport (
    NodeEntry, Pin, Reclaim, reclaim_clear, reclaim_discard, reclaim_enter, reclaim_init, reclaim_leave, reclaim_take,
    reclaim_untake,
)

cdef enum:
    NO_MEMORY = -1
    NOT_MOVED = 0
    MOVED = 1
    NO_PRIORITY = -2147483648  # less urgent than any but the very lowest priority, which it equals

cdef struct Interest:
    Reclaim reclaim
    LevelTablePointer levels
    atomic[uint32_t] registering   # 1 while a thread adds or removes
    atomic[int64_t] count          # nodes registered
    uint32_t threshold
    NodeList not_interested
    NodeList non_acquiring

cdef inline bint interest_init(Interest* m, uint32_t threshold) noexcept nogil:
    """False when memory is exhausted; interest_clear is due either way."""
    cdef LevelTable* t
    m.levels.store(NULL)
    m.registering.store(0)
    m.count.store(0)
    m.threshold = threshold
    nodelist_init(&m.not_interested, threshold)
    nodelist_init(&m.non_acquiring, threshold)
    if not reclaim_init(&m.reclaim):
        return False
    t = leveltable_create(0)
    m.levels.store(t)
    return t != NULL

cdef inline Pin* interest_enter(Interest* m) noexcept nogil:
    return reclaim_enter(&m.reclaim)

cdef inline void interest_leave(Pin* pin) noexcept nogil:
    reclaim_leave(pin)

cdef inline void interest_clear(Interest* m) noexcept nogil:
    """Free everything. No thread is inside; the owners free nodes that are still registered."""
    cdef LevelTable* t = m.levels.load()
    cdef Pin* pin
    cdef uint32_t i
    if t != NULL:
        pin = interest_enter(m)
        for i in range(t.count):
            reclaim_discard(pin, &t.levels[i].garbage)
        reclaim_discard(pin, &t.garbage)
        interest_leave(pin)
    m.levels.store(NULL)
    reclaim_clear(&m.reclaim)

cdef inline NodeList* interest_list(Interest* m, Level* level, uint32_t state) noexcept nogil:
    if state == INTERESTED:
        return &level.lists[<int> LEVEL_INTERESTED]
    if state & (NOTIFIED | SERVED):
        return &level.lists[<int> LEVEL_NOTIFIED]
    return &m.not_interested if state == NOT_INTERESTED else &m.non_acquiring

cdef inline void interest_enlist(
    Interest* m, Pin* pin, ConsumerNode* node, NodeEntry* entry, uint32_t state
) noexcept nogil:
    """Put a claimed node into the list of a state, and let go of it."""
    # Release: for a thread that reads the entry of this state, and so R6, below.
    node.state.store(state, memory_order_release)
    nodelist_append(interest_list(m, node.level, state), pin, entry, node)
    if state == INTERESTED:
        levels_mark(&m.levels, node.level, LEVEL_INTERESTED)
    elif state & (NOTIFIED | SERVED):
        levels_mark(&m.levels, node.level, LEVEL_NOTIFIED)
    node_place(node, entry)

cdef inline int interest_move(
    Interest* m, Pin* pin, ConsumerNode* node, uint32_t allowed, uint32_t target, uint32_t* state
) noexcept nogil:
    """Test the state and move, in one step: from any of `allowed` to the tail of the list of `target`."""
    cdef NodeEntry* entry = reclaim_take(pin)
    cdef NodeEntry* old
    cdef NodeList* source
    if entry == NULL:
        return NO_MEMORY
    old = node_claim(node, allowed, state)
    if old == NULL:
        reclaim_untake(pin, entry)
        return NOT_MOVED
    source = interest_list(m, node.level, state[0])
    nodelist_bury(source, pin, old)
    interest_enlist(m, pin, node, entry, target)
    nodelist_tidy(source, pin)
    return MOVED

cdef inline int interest_set(Interest* m, Pin* pin, ConsumerNode* node, bint desired) noexcept nogil:
    """The consumer is ready for work, or not any more."""
    cdef uint32_t state
    if not desired:
        return interest_move(m, pin, node, READY | NON_ACQUIRING, NOT_INTERESTED, &state)
    return interest_move(m, pin, node, NOT_INTERESTED, INTERESTED if node.acquires else NON_ACQUIRING, &state)

cdef inline int interest_notify(Interest* m, Pin* pin, ConsumerNode* node) noexcept nogil:
    """Claim an interested consumer for work. Browsers may always be told, and stay where they are."""
    cdef uint32_t state
    return interest_move(m, pin, node, INTERESTED, NOTIFIED, &state) if node.acquires else <int> MOVED

cdef inline int interest_done(Interest* m, Pin* pin, ConsumerNode* node) noexcept nogil:
    """A notified consumer is interested again, after all others of its priority."""
    cdef uint32_t state
    return interest_move(m, pin, node, NOTIFIED | SERVED, INTERESTED, &state) if node.acquires else <int> MOVED

cdef inline ConsumerNode* interest_search(Interest* m, Pin* pin, LevelIndex which) noexcept nogil:
    """The first node of the highest priority in the interested, or the notified, lists; NULL: there is none."""
    cdef LevelTable* t = m.levels.load()
    cdef uint32_t at = levels_next(t, which, 0)
    cdef void* node
    while at < t.count:
        node = nodelist_first(&t.levels[at].lists[<int> which], pin)
        if node != NULL:
            return <ConsumerNode*> node
        levels_unmark(t, pin, which, at)
        at = levels_next(t, which, at + 1)
    return NULL

cdef inline ConsumerNode* interest_first(Interest* m, Pin* pin) noexcept nogil:
    """The interested consumer to notify: the first one of the highest priority; NULL: there is none."""
    return interest_search(m, pin, LEVEL_INTERESTED)

cdef inline int32_t interest_highest_notified(Interest* m, Pin* pin) noexcept nogil:
    """The highest priority among notified consumers, or NO_PRIORITY."""
    cdef ConsumerNode* node = interest_search(m, pin, LEVEL_NOTIFIED)
    return node.priority if node != NULL else <int32_t> NO_PRIORITY
