"""The event queue of a simulation: each source has at most one pending event, and a tournament tree finds the earliest.

A source is anything that has one event after the other: an arrival process, a worker, one direction of a link. Sources
are numbered; of two events at the same time, the one with the lower number comes first. So the order of events is
total, and the same in every run.

Thread safety: none; the caller synchronizes. Complexity: eventtree_first O(1), eventtree_set O(log sources), and less
when the source's event is not the earliest.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched.core.simulation.variate cimport NEVER

cdef struct EventTree:
    int64_t* times     # by source; NEVER: no pending event
    uint32_t* winners  # of the tree's nodes, the root at 1; the leaves are the sources themselves
    uint32_t size      # sources, rounded up to a power of two

cdef inline void eventtree_init(EventTree* tree) noexcept nogil:
    tree.times = NULL
    tree.winners = NULL
    tree.size = 0

cdef inline void eventtree_clear(EventTree* tree) noexcept nogil:
    free(tree.times)
    free(tree.winners)
    eventtree_init(tree)

cdef inline bint eventtree_build(EventTree* tree, uint32_t sources) noexcept nogil:
    """Make a tree without events; False: memory is exhausted."""
    cdef uint32_t node
    tree.size = 2
    while tree.size < sources:
        tree.size *= 2
    tree.times = <int64_t*> malloc(tree.size * sizeof(int64_t))
    tree.winners = <uint32_t*> malloc(2 * <size_t> tree.size * sizeof(uint32_t))
    if tree.times == NULL or tree.winners == NULL:
        return False
    for node in range(tree.size):
        tree.times[node] = NEVER
        tree.winners[tree.size + node] = node
    for node in range(tree.size - 1, 0, -1):
        tree.winners[node] = tree.winners[2 * node]
    return True

cdef inline uint32_t eventtree_first(const EventTree* tree) noexcept nogil:
    """Return the source of the next event; its time is NEVER if there is none."""
    return tree.winners[1]

cdef inline void eventtree_set(EventTree* tree, uint32_t source, int64_t time) noexcept nogil:
    """Set the time of a source's next event; NEVER: none."""
    cdef uint32_t node = (tree.size + source) >> 1
    cdef uint32_t left, right
    tree.times[source] = time
    while node:
        left = tree.winners[2 * node]
        right = tree.winners[2 * node + 1]
        if tree.times[right] < tree.times[left]:
            left = right
        if tree.winners[node] == left and left != source:
            return
        tree.winners[node] = left
        node >>= 1
