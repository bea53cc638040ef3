"""A consumer as its queue sees it: its state, and the lock that makes a move between two lists one step.

The states are those of seed 001 and Qpid Broker-J; interest.pxd has the moves. The lock is a bit of the state, so that
the test and the locking are one compare-and-swap, and belongs to this node only.

Thread safety: any, pinned; the fields under the lock by who holds it. A lock waits for another move of the same node,
which never waits itself. Complexity: O(1).
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_release

from fairsched.core.atomics cimport spin_wait
from fairsched.core.levels cimport Level
from fairsched.core.reclaim cimport Garbage, NodeEntry, Pin, reclaim_discard

cdef enum:  # states, one bit each, so that a set of them is a mask
    REMOVED = 1
    INTERESTED = 2
    NOTIFIED = 4
    NOT_INTERESTED = 8
    NON_ACQUIRING = 16
    NODE_LOCKED = 32
    ANY_STATE = REMOVED | INTERESTED | NOTIFIED | NOT_INTERESTED | NON_ACQUIRING

cdef struct ConsumerNode:  # a cache line
    Garbage garbage            # must be first
    atomic[uint32_t] state     # with NODE_LOCKED: written by who moves the node, read by all
    int32_t priority           # fixed, as are acquires and token
    NodeEntry* entry           # in the list of its state: under the node's lock, as are place and level
    NodeEntry* place           # in All
    Level* level
    uint64_t token
    bint acquires

cdef inline void node_init(ConsumerNode* node, uint64_t token, int32_t priority, bint acquires) noexcept nogil:
    node.state.store(REMOVED)
    node.priority = priority
    node.entry = node.place = NULL
    node.level = NULL
    node.token = token
    node.acquires = acquires

cdef inline uint32_t node_state(ConsumerNode* node) noexcept nogil:
    """The node's state; of a node on its way, the state it comes from."""
    return node.state.load() & ANY_STATE

cdef inline uint32_t node_lock(ConsumerNode* node, uint32_t allowed) noexcept nogil:
    """Lock the node if its state is one of `allowed`: that state, or 0 when it is another."""
    cdef uint32_t state = node.state.load()
    cdef unsigned int spins = 0
    while True:
        if state & NODE_LOCKED:
            spin_wait(&spins)
            state = node.state.load()
        elif not state & allowed:
            return 0
        elif node.state.compare_exchange_weak(state, state | NODE_LOCKED):  # A5: pairs with R5
            return state

cdef inline void node_unlock(ConsumerNode* node, uint32_t state) noexcept nogil:
    # R5 (unlock): pairs with A5; the node's entry is in the list of this state.
    node.state.store(state, memory_order_release)

cdef inline void node_retire(
    Pin* pin, ConsumerNode* node, void (*dispose)(Garbage* garbage, Pin* pin) noexcept nogil
) noexcept nogil:
    """Have `dispose` called, by some thread inside, when nobody can hold this removed node any more."""
    node.garbage.dispose = dispose
    reclaim_discard(pin, &node.garbage)
