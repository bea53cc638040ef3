"""Messages that a browser must still see although its cursor is past them: inserted or returned behind the cursor.

Those that another consumer had when the cursor came by, or when the browser looked here, are in a heap of their own
(`missed`) until they are given back. Each browser has a heap of the others, in the order of service (heap.pxd; a
message may be in those of several browsers). Each
message knows its entries, and removes them when it leaves the queue. So an idle browser has at most as many entries as
there are messages, and keeps no message alive.

Thread safety: none; the caller synchronizes. Complexity: add O(browsers that have the message), take and forget
O(log n) amortised. Memory: 48 bytes per entry.
"""

from libc.stdlib cimport free, malloc

from fairsched.core.queue.heap cimport heap_meld, heap_unlink
from fairsched.core.queue.message cimport HEAP_NONE, Late, Message

cdef inline Late* late_find(Late** root, Message* m) noexcept nogil:
    """The entry of a message in that heap; NULL: there is none. O(browsers that have the message)."""
    cdef Late* late = m.late
    while late != NULL and late.root != root:
        late = late.next
    return late

cdef inline bint late_add(Late** root, Message* m) noexcept nogil:
    """Have the browser of a heap see a message, once. False when memory is exhausted: then it does not."""
    cdef Late* late = late_find(root, m)
    if late != NULL:
        return True
    late = <Late*> malloc(sizeof(Late))
    if late == NULL:
        return False
    late.message = m
    late.root = root
    late.child = late.sibling = late.before = NULL
    late.next = m.late
    m.late = late
    root[0] = heap_meld(root[0], late, HEAP_NONE)
    return True

cdef inline void late_drop(Late* late) noexcept nogil:
    """The browser is to see this no longer."""
    cdef Late** link = &late.message.late
    while link[0] != late:
        link = &link[0].next
    link[0] = late.next
    heap_unlink(late.root, late, HEAP_NONE)
    free(late)

cdef inline bint late_lift(Late** root, Message* m) noexcept nogil:
    """Take a message out of that heap; False: it is not there."""
    cdef Late* late = late_find(root, m)
    if late != NULL:
        late_drop(late)
    return late != NULL

cdef inline void late_forget(Message* m) noexcept nogil:
    """A message leaves the queue: no browser is to see it."""
    while m.late != NULL:
        late_drop(m.late)
