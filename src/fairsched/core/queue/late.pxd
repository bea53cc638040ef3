"""What a browser is to see though it has gone past its place: messages that came, or came back, behind its cursor.

Each browser has a heap of them, first served first (a pairing heap, as heap.pxd, but a message may be in the
heaps of several browsers). Each message knows its entries, and takes them along when it leaves the queue. So a browser
that rests has no more of them than there are messages, and none of those is kept for its sake.

Thread safety: none; the owner excludes. Complexity: add O(browsers that have the message), take and forget O(log n)
amortised. Memory: 48 bytes an entry.
"""

from libc.stdlib cimport free, malloc

from fairsched.core.queue.message cimport Late, Message, message_before

cdef inline Late* late_meld(Late* a, Late* b) noexcept nogil:
    """One heap of two, either of which may be NULL."""
    if a == NULL or b == NULL:
        return a if b == NULL else b
    if message_before(b.message, a.message):
        a, b = b, a
    b.sibling = a.child
    if a.child != NULL:
        a.child.before = b
    b.before = a
    a.child = b
    return a

cdef inline Late* late_children(Late* late) noexcept nogil:
    """One heap of the children of an entry: melded in pairs, then from the last pair to the first."""
    cdef Late* rest = late.child
    cdef Late* pairs = NULL  # chained by `sibling`, last first
    cdef Late* first
    cdef Late* second
    while rest != NULL:
        first = rest
        second = first.sibling
        rest = second.sibling if second != NULL else NULL
        first.sibling = first.before = NULL
        if second != NULL:
            second.sibling = second.before = NULL
        first = late_meld(first, second)
        first.sibling = pairs
        pairs = first
    while pairs != NULL:
        first = pairs
        pairs = first.sibling
        first.sibling = NULL
        rest = late_meld(rest, first)
    return rest

cdef inline void late_unheap(Late* late) noexcept nogil:
    """Take an entry out of its browser's heap."""
    cdef Late* children = late_children(late)
    if late.root[0] == late:
        late.root[0] = children
        return
    if late.before.child == late:
        late.before.child = late.sibling
    else:
        late.before.sibling = late.sibling
    if late.sibling != NULL:
        late.sibling.before = late.before
    late.root[0] = late_meld(late.root[0], children)

cdef inline bint late_add(Late** root, Message* m) noexcept nogil:
    """Have the browser of a heap see a message, once. False when memory is exhausted: then it does not."""
    cdef Late* late = m.late
    while late != NULL:
        if late.root == root:
            return True
        late = late.next
    late = <Late*> malloc(sizeof(Late))
    if late == NULL:
        return False
    late.message = m
    late.root = root
    late.child = late.sibling = late.before = NULL
    late.next = m.late
    m.late = late
    root[0] = late_meld(root[0], late)
    return True

cdef inline void late_drop(Late* late) noexcept nogil:
    """The browser is to see this no longer."""
    cdef Late** link = &late.message.late
    while link[0] != late:
        link = &link[0].next
    link[0] = late.next
    late_unheap(late)
    free(late)

cdef inline void late_forget(Message* m) noexcept nogil:
    """A message leaves the queue: no browser is to see it."""
    while m.late != NULL:
        late_drop(m.late)
