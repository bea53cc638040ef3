"""Pairing heaps: messages that came back, first served first; messages held, first due first; what a browser is to see.

Source: M. Fredman, R. Sedgewick, D. Sleator, R. Tarjan, The pairing heap (1986). The links are in what the heap holds,
a message, which is in one heap at a time, or a Late of one (late.pxd). `before` names the parent of a first child, and
the left sibling of any other.

Thread safety: none; the caller synchronizes. Complexity: push O(1), pop and remove O(log n) amortised.
"""

from fairsched.core.queue.message cimport HEAP_HELD, HEAP_NONE, HeapPlace, Late, Message, message_before

ctypedef Message* MessageNode
ctypedef Late* LateNode
ctypedef fused Node:
    MessageNode
    LateNode

cdef inline bint heap_before(Node a, Node b, HeapPlace heap) noexcept nogil:
    if Node is LateNode:
        return message_before(a.message, b.message)
    else:
        if heap == HEAP_HELD and a.not_before != b.not_before:
            return a.not_before < b.not_before
        return message_before(a, b)

cdef inline Node heap_meld(Node a, Node b, HeapPlace heap) noexcept nogil:
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

cdef inline Node heap_children(Node m, HeapPlace heap) noexcept nogil:
    """One heap of the children of `m`: melded in pairs, then from the last pair to the first."""
    cdef Node rest = m.child
    cdef Node pairs = NULL  # chained by `sibling`, last first
    cdef Node first
    cdef Node second
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

cdef inline void heap_unlink(Node* root, Node m, HeapPlace heap) noexcept nogil:
    """Take out what is in this heap, the first or any other."""
    cdef Node children = heap_children(m, heap)
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

cdef inline void heap_remove(Message** root, Message* m, HeapPlace heap) noexcept nogil:
    heap_unlink(root, m, heap)
    m.heap = HEAP_NONE
