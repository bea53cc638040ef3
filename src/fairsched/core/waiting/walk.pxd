"""Walks over the lists of interest.pxd, their sizes, and the check of the whole.

A walk takes the table of priorities as it is at its beginning, so a priority that comes later is not walked; within a
list, the caveats of nodelist.pxd hold. It lives within one pin, and its nodes are good until that is left. Another
may begin where a node stands: what stood before that when the first came to it, and still does, is not walked again.
Source: Qpid Broker-J's QueueConsumerManagerImpl. Thread safety: any, each thread with its own walk. Nothing waits.
Complexity: O(what is linked in the lists walked), and O(priorities / 64) over LIST_INTERESTED and LIST_NOTIFIED, whose
empty levels are passed over.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.waiting.interest cimport Interest
from fairsched.core.waiting.levels cimport LevelIndex, LevelTable, levels_next, leveltable_search
from fairsched.core.waiting.node cimport (
    ConsumerNode, INTERESTED, NON_ACQUIRING, NOTIFIED, NOT_INTERESTED, REMOVED, SERVED,
)
from fairsched.core.waiting.nodelist cimport (
    NodeIterator, NodeList, nodeiterator_has_next, nodeiterator_init, nodeiterator_next, nodelist_size,
)
from fairsched.core.waiting.nodelistcheck cimport nodelist_physical, nodelist_valid
from fairsched.core.waiting.reclaim cimport DELETED, NodeEntry, Pin

cdef enum InterestList:
    LIST_INTERESTED
    LIST_NOTIFIED
    LIST_ALL
    LIST_NOT_INTERESTED
    LIST_NON_ACQUIRING

cdef struct InterestWalk:  # of one thread, within one pin
    Interest* manager
    LevelTable* table      # as it was at the beginning
    NodeIterator nodes
    InterestList which
    uint32_t at            # the level being walked

cdef inline NodeList* interestwalk_single(Interest* m, InterestList which) noexcept nogil:
    """The list that is not kept by priority; NULL when `which` is."""
    if which == LIST_NOT_INTERESTED:
        return &m.not_interested
    return &m.non_acquiring if which == LIST_NON_ACQUIRING else NULL

cdef inline bint interestwalk_seek(InterestWalk* w, uint32_t start) noexcept nogil:
    """Go to the beginning of the first level from `start` on; False when there is none left."""
    w.at = start
    if w.which != LIST_ALL:  # has no bitmap: it holds a consumer in every level
        w.at = levels_next(w.table, <LevelIndex> w.which, start)
    if w.at >= w.table.count:
        return False
    nodeiterator_init(&w.nodes, &w.table.levels[w.at].lists[<int> w.which], w.nodes.pin)
    return True

cdef inline void interestwalk_init(InterestWalk* w, Interest* m, Pin* pin, InterestList which) noexcept nogil:
    """Begin a walk."""
    cdef NodeList* single = interestwalk_single(m, which)
    w.manager = m
    w.table = m.levels.load()
    w.which = which
    w.at = w.table.count  # after the walk of a single list, or of no level, there is no more
    w.nodes.list = NULL  # until there is one to stand in
    w.nodes.found = NULL
    w.nodes.pin = pin
    if single == NULL:
        interestwalk_seek(w, 0)
    else:
        nodeiterator_init(&w.nodes, single, pin)

cdef inline uint32_t interestwalk_states(InterestList which) noexcept nogil:
    """The states of the nodes in a list other than All."""
    if which == LIST_INTERESTED:
        return INTERESTED
    if which == LIST_NOTIFIED:
        return NOTIFIED | SERVED
    return NOT_INTERESTED if which == LIST_NOT_INTERESTED else NON_ACQUIRING

cdef inline NodeEntry* interestwalk_entry(ConsumerNode* node, InterestList which) noexcept nogil:
    """The place of a node in a list, good inside; NULL: it has none, or is about to move.

    An entry that is alive after the state was read belongs to that state (node.pxd). The place in All is dead
    before the state says so; but the thread that removes the node stays inside until then, so it can still be read.
    """
    cdef NodeEntry* entry = <NodeEntry*> node.entry.load()  # A6: pairs with R6
    cdef uint32_t state = node.state.load()
    if which == LIST_ALL:
        entry = node.place if state != <uint32_t> REMOVED else NULL
    elif not state & interestwalk_states(which):
        return NULL
    return entry if entry != NULL and not entry.next.load() & DELETED else NULL

cdef inline bint interestwalk_resume(
    InterestWalk* w, Interest* m, Pin* pin, InterestList which, ConsumerNode* node
) noexcept nogil:
    """Begin a walk behind a node that is registered; False: it is not in that list, or is about to move."""
    cdef NodeEntry* entry = interestwalk_entry(node, which)
    if entry == NULL:
        return False
    w.manager = m
    w.table = m.levels.load()
    w.which = which
    w.at = w.table.count
    w.nodes.list = interestwalk_single(m, which)
    if w.nodes.list == NULL:
        w.at = leveltable_search(w.table, node.priority)
        if w.at == w.table.count or w.table.levels[w.at] != node.level:
            return False
        w.nodes.list = &node.level.lists[<int> which]
    w.nodes.pin = pin
    w.nodes.last = entry
    w.nodes.found = NULL
    return True

cdef inline bint interestwalk_has_next(InterestWalk* w) noexcept nogil:
    """True when there is a node, which interestwalk_next will return, moved meanwhile or not."""
    if w.nodes.list == NULL:
        return False
    while not nodeiterator_has_next(&w.nodes):
        if w.at >= w.table.count or not interestwalk_seek(w, w.at + 1):
            return False
    return True

cdef inline ConsumerNode* interestwalk_next(InterestWalk* w) noexcept nogil:
    """The next node, or NULL at the end."""
    if w.nodes.found == NULL and not interestwalk_has_next(w):
        return NULL
    return <ConsumerNode*> nodeiterator_next(&w.nodes)

cdef inline int64_t interest_size(Interest* m, Pin* pin, InterestList which) noexcept nogil:
    """Return the number of nodes in a list. Exact when no node moves. O(priorities)."""
    cdef NodeList* single = interestwalk_single(m, which)
    cdef LevelTable* t = m.levels.load()
    cdef int64_t size = 0
    cdef uint32_t i
    if single != NULL:
        return nodelist_size(single)
    for i in range(t.count):
        size += nodelist_size(&t.levels[i].lists[<int> which])
    return size

cdef inline int64_t interest_count(Interest* m) noexcept nogil:
    """Nodes registered."""
    return m.count.load()

cdef inline uint64_t interest_physical(Interest* m, InterestList which) noexcept nogil:
    """Entries linked in a list, dead ones included. For tests: no other thread is inside."""
    cdef NodeList* single = interestwalk_single(m, which)
    cdef LevelTable* t = m.levels.load()
    cdef uint64_t count = 0
    cdef uint32_t i
    if single != NULL:
        return nodelist_physical(single)
    for i in range(t.count):
        count += nodelist_physical(&t.levels[i].lists[<int> which])
    return count

cdef inline bint interest_lists_valid(Interest* m, Pin* pin) noexcept nogil:
    cdef LevelTable* t = m.levels.load()
    cdef uint32_t i
    cdef int which
    if not nodelist_valid(&m.not_interested, pin) or not nodelist_valid(&m.non_acquiring, pin):
        return False
    for i in range(t.count):
        if t.levels[i].members == 0 or (i > 0 and t.levels[i - 1].priority <= t.levels[i].priority):
            return False
        for which in range(3):
            if not nodelist_valid(&t.levels[i].lists[which], pin):
                return False
    return True

cdef inline bint interest_valid(Interest* m, Pin* pin) noexcept nogil:
    """True when lists, states and counters agree. For tests: no other thread is inside. O(linked)."""
    cdef int64_t listed = 0
    cdef int which
    cdef InterestWalk w
    cdef ConsumerNode* node
    if not interest_lists_valid(m, pin):
        return False
    for which in range(5):
        if which == <int> LIST_ALL:
            continue
        interestwalk_init(&w, m, pin, <InterestList> which)
        while interestwalk_has_next(&w):
            node = interestwalk_next(&w)
            # A node knows one entry: if each list's entries are their nodes' own, no node is in two lists.
            if not node.state.load() & interestwalk_states(<InterestList> which):
                return False
            if <NodeEntry*> node.entry.load() != w.nodes.last:
                return False
            listed += 1
    return listed == interest_count(m) and listed == interest_size(m, pin, LIST_ALL)
