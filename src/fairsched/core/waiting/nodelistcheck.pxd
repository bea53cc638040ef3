"""The invariants of nodelist.pxd, for tests: no other thread is inside. O(what is linked)."""

from libc.stdint cimport int32_t, uint64_t, uintptr_t

from fairsched.core.waiting.nodelist cimport NodeList, nodelist_size
from fairsched.core.waiting.reclaim cimport DELETED, NodeEntry, Pin, entry_of

cdef inline uint64_t nodelist_physical(NodeList* l) noexcept nogil:
    """The number of entries that are linked, dead or alive."""
    cdef NodeEntry* entry = entry_of(l.head.next.load())
    cdef uint64_t count = 0
    while entry != NULL:
        count += 1
        entry = entry_of(entry.next.load())
    return count

cdef inline bint nodelist_valid(NodeList* l, Pin* pin) noexcept nogil:
    """True when marks, nodes, order, tail and size agree."""
    cdef NodeEntry* last = &l.head
    cdef NodeEntry* entry = entry_of(l.head.next.load())
    cdef int32_t alive = 0
    cdef bint dead
    if l.head.next.load() & DELETED or l.head.node.load() != 0:
        return False
    while entry != NULL:
        dead = entry.next.load() & DELETED
        if dead != (entry.node.load() == 0) or <int32_t> (entry.order.load() - last.order.load()) <= 0:
            return False
        alive += not dead
        last = entry
        entry = entry_of(entry.next.load())
    return l.tail.load() == <uintptr_t> last and nodelist_size(l) == alive
