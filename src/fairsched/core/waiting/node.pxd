"""A consumer in its queue's lists: its state, and the lock that makes a move between two lists one step for others.

The states are those of Broker-J's QueueConsumerNode, and SERVED; interest.pxd has the moves. The lock of a node is its
entry: the one thread that marks the entry as dead has the node to itself until it writes the next entry there. So
locking costs nothing beside the delete that a move begins with anyway.
  The state belongs to the entry it was read after. A mover writes the state, then the entry (R6). A thread that reads
  an entry (A6), then the state, and then wins the mark, has the right state: if another thread had written the state
  since, it would have marked this entry before.
  A thread that reads a state that does not allow its move has read it at the right time, too: the node was in that
  state, or on the way to it.

Thread safety: any, pinned. Claiming waits for another move of the same node, which never waits itself; node_place and
the plain fields belong to the thread that has claimed the node. Complexity: O(1).
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic, memory_order_release

from fairsched.core.atomics cimport spin_wait
from fairsched.core.waiting.levels cimport Level
from fairsched.core.waiting.nodelist cimport DELETED, nodelist_mark
from fairsched.core.waiting.reclaim cimport Garbage, NodeEntry, Pin, reclaim_discard

cdef enum:  # states, one bit each, so that a set of them is a mask
    REMOVED = 1
    INTERESTED = 2
    NOTIFIED = 4
    NOT_INTERESTED = 8
    NON_ACQUIRING = 16
    SERVED = 32  # notified, and has got work since: no thread may count on its coming back
    READY = INTERESTED | NOTIFIED | SERVED
    REGISTERED = READY | NOT_INTERESTED | NON_ACQUIRING

cdef struct ConsumerNode:  # a cache line, if its owner aligns it; what a move reads comes first
    Garbage garbage            # must be first
    atomic[uintptr_t] entry    # in the list of its state; 0: in none. Written by the claiming thread, read by all
    atomic[uint32_t] state     # likewise
    bint acquires              # fixed, as are priority and token
    Level* level               # under the manager's lock, as is place
    NodeEntry* place           # in All
    uint64_t token
    int32_t priority

cdef inline void node_init(ConsumerNode* node, uint64_t token, int32_t priority, bint acquires) noexcept nogil:
    node.state.store(REMOVED)
    node.priority = priority
    node.entry.store(0)
    node.place = NULL
    node.level = NULL
    node.token = token
    node.acquires = acquires

cdef inline uint32_t node_state(ConsumerNode* node) noexcept nogil:
    """The node's state; of a node on its way, the state it comes from or the one it goes to."""
    return node.state.load()

cdef inline NodeEntry* node_claim(ConsumerNode* node, uint32_t allowed, uint32_t* state) noexcept nogil:
    """Claim a node whose state is one of `allowed`: its entry, now marked, and the state; NULL when it is another."""
    cdef unsigned int spins = 0
    cdef NodeEntry* entry
    while True:
        entry = <NodeEntry*> node.entry.load()  # A6: pairs with R6
        state[0] = node.state.load()
        if not state[0] & allowed:
            return NULL
        # Looked at first: a thread that waits does not take the cache line from the one it waits for.
        if entry != NULL and not entry.next.load() & DELETED and nodelist_mark(entry):
            return entry
        spin_wait(&spins)

cdef inline void node_place(ConsumerNode* node, NodeEntry* entry) noexcept nogil:
    """Let go of a claimed node, whose state is written, and whose new entry is linked."""
    # R6 (placed): pairs with A6.
    node.entry.store(<uintptr_t> entry, memory_order_release)

cdef inline void node_retire(
    Pin* pin, ConsumerNode* node, void (*dispose)(Garbage* garbage, Pin* pin) noexcept nogil
) noexcept nogil:
    """Have `dispose` called, by some thread inside, when no thread can hold this removed node any more."""
    node.garbage.dispose = dispose
    reclaim_discard(pin, &node.garbage)
