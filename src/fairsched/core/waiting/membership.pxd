"""Add and remove consumers: how a node enters and leaves the lists of interest.pxd.

A node enters All and the list of its state before its entry is known, so no thread moves it until it is in both; it
leaves All first. Source: Qpid Broker-J's QueueConsumerManagerImpl.

Thread safety: any, pinned. A thread that adds or removes waits for others that do (they change the table of
priorities), and for a move of the same node. Moves and walks wait for neither.
Complexity: O(1), and O(priorities) for a priority that comes or goes with its only consumer.
"""

from libc.stdint cimport uint32_t
from libcpp.atomic cimport memory_order_release

from fairsched.core.atomics cimport spin_wait
from fairsched.core.waiting.interest cimport MOVED, NOT_MOVED, NO_MEMORY, Interest, interest_enlist, interest_list
from fairsched.core.waiting.levels cimport LEVEL_ALL, Level, levels_obtain, levels_release
from fairsched.core.waiting.node cimport (
    ConsumerNode, INTERESTED, NON_ACQUIRING, NOT_INTERESTED, REGISTERED, REMOVED, node_claim, node_place,
)
from fairsched.core.waiting.nodelist cimport NodeList, nodelist_append, nodelist_bury, nodelist_delete, nodelist_tidy
from fairsched.core.waiting.reclaim cimport NodeEntry, Pin, reclaim_take, reclaim_untake

cdef inline void interest_lock(Interest* m) noexcept nogil:
    cdef unsigned int spins = 0
    while m.registering.exchange(1):  # A7: pairs with R7
        spin_wait(&spins)

cdef inline void interest_unlock(Interest* m) noexcept nogil:
    # R7 (registered): pairs with A7; members, levels and table are what the next thread goes on from.
    m.registering.store(0, memory_order_release)

cdef inline int interest_register(
    Interest* m, Pin* pin, ConsumerNode* node, NodeEntry* place, NodeEntry* entry, bint desired
) noexcept nogil:
    cdef uint32_t state = NOT_INTERESTED
    cdef Level* level
    if node.state.load() != REMOVED:  # changes only under the manager's lock, which is held
        return NOT_MOVED
    level = levels_obtain(&m.levels, pin, node.priority, m.threshold)
    if level == NULL:
        return NO_MEMORY
    node.level = level
    if desired:
        state = INTERESTED if node.acquires else NON_ACQUIRING
    level.members += 1
    m.count.fetch_add(1)
    node.place = place
    # From here until interest_enlist has placed its entry, a thread that wants to move the node waits.
    node.state.store(state, memory_order_release)
    nodelist_append(&level.lists[<int> LEVEL_ALL], pin, place, node)
    interest_enlist(m, pin, node, entry, state)
    return MOVED

cdef inline int interest_add(Interest* m, Pin* pin, ConsumerNode* node, bint desired) noexcept nogil:
    """Register a node. NOT_MOVED: it is registered already."""
    cdef NodeEntry* place = reclaim_take(pin)
    cdef NodeEntry* entry = reclaim_take(pin) if place != NULL else NULL
    cdef int moved = NO_MEMORY
    if entry != NULL:
        interest_lock(m)
        moved = interest_register(m, pin, node, place, entry, desired)
        interest_unlock(m)
    if moved != MOVED:
        if place != NULL:
            reclaim_untake(pin, place)
        if entry != NULL:
            reclaim_untake(pin, entry)
    return moved

cdef inline int interest_remove(Interest* m, Pin* pin, ConsumerNode* node) noexcept nogil:
    """Take a node out. NOT_MOVED: it is not registered here. It may be added again, or retired."""
    cdef Level* level
    cdef NodeList* source
    cdef NodeEntry* entry
    cdef uint32_t state
    interest_lock(m)
    level = node.level
    if node.state.load() == REMOVED or level.home != &m.levels:
        interest_unlock(m)
        return NOT_MOVED
    entry = node_claim(node, REGISTERED, &state)
    source = interest_list(m, level, state)
    nodelist_delete(&level.lists[<int> LEVEL_ALL], pin, node.place)
    nodelist_bury(source, pin, entry)
    m.count.fetch_sub(1)
    level.members -= 1
    node.state.store(REMOVED, memory_order_release)  # like R6
    node_place(node, NULL)
    nodelist_tidy(&level.lists[<int> LEVEL_ALL], pin)
    nodelist_tidy(source, pin)
    if level.members == 0:
        levels_release(&m.levels, pin, level)
    interest_unlock(m)
    return MOVED
