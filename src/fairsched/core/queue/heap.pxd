"""Messages that came back, first served first; and messages held, first due first: pairing heaps.

Source: M. Fredman, R. Sedgewick, D. Sleator, R. Tarjan, The pairing heap (1986). The links are in the messages; a
message is in one heap at a time. `before` names the parent of a first child, and the left sibling of any other.

Thread safety: none; the owner excludes. Complexity: push O(1), pop and remove O(log n) amortised.
"""

from fairsched.core.queue.message cimport HEAP_HELD, HEAP_NONE, HeapPlace, Message, message_before

cdef inline bint heap_before(const Message* a, const Message* b, HeapPlace heap) noexcept nogil:
    if heap == HEAP_HELD and a.not_before != b.not_before:
        return a.not_before < b.not_before
    return message_before(a, b)

cdef inline Message* heap_meld(Message* a, Message* b, HeapPlace heap) noexcept nogil:
    """One heap of two, either of which may be NULL."""
    if a == NULL or b == NULL:
        return a if b == NULL else b
    if heap_before(b, a, heap):
        a, b = b, a
    b.sibling = a.child
    if a.child != NULL:
        a.child.before = b
    b.before = a
    a.child = b
    return a

cdef inline Message* heap_children(Message* m, HeapPlace heap) noexcept nogil:
    """One heap of the children of `m`: melded in pairs, then from the last pair to the first."""
    cdef Message* rest = m.child
    cdef Message* pairs = NULL  # chained by `sibling`, last first
    cdef Message* first
    cdef Message* second
    m.child = NULL
    while rest != NULL:
        first = rest
        second = first.sibling
        rest = second.sibling if second != NULL else NULL
        first.sibling = first.before = NULL
        if second != NULL:
            second.sibling = second.before = NULL
        first = heap_meld(first, second, heap)
        first.sibling = pairs
        pairs = first
    while pairs != NULL:
        first = pairs
        pairs = first.sibling
        first.sibling = NULL
        rest = heap_meld(rest, first, heap)
    return rest

cdef inline void heap_push(Message** root, Message* m, HeapPlace heap) noexcept nogil:
    m.child = m.sibling = m.before = NULL
    m.heap = heap
    root[0] = heap_meld(root[0], m, heap)

cdef inline void heap_remove(Message** root, Message* m, HeapPlace heap) noexcept nogil:
    """Take out a message that is in this heap, the first or any other."""
    cdef Message* children = heap_children(m, heap)
    if root[0] == m:
        root[0] = children
    else:
        if m.before.child == m:
            m.before.child = m.sibling
        else:
            m.before.sibling = m.sibling
        if m.sibling != NULL:
            m.sibling.before = m.before
        root[0] = heap_meld(root[0], children, heap)
    m.child = m.sibling = m.before = NULL
    m.heap = HEAP_NONE
