"""A set of items with work, in the order in which they got it; each is in the set at most once.

Any thread adds; one thread at a time takes. An item that is in the set is not added again, however often its work is
announced. It leaves the set before it is processed: a thread that finds its flag clear adds it again, and one that
finds it set knows that the taker has yet to look at its work.
Source: the sets of pending work of Qpid Broker-J's sessions and connections; the queue is D. Vyukov's
intrusive queue of many producers and one consumer.

Nothing is lost. An adder has made its work visible, by a seq_cst step, before it looks at the flag. The taker clears
the flag before it looks at the work. All four steps are in one order: if the adder found the flag set, the flag was
cleared after that, and the look came later still.
  An adder that is held up between its two steps (W1, W2) hides its item and all behind it: `take` finds nothing then,
though others were told that theirs were added. So a taker that found nothing relies on what every adder does next:
the thread that added an item tells the owner of the set, after adding, that the set has work. That adder does so too.

  synchronization     add   take   init     X: needs external exclusion
  add                  -     -      X       `tail`, `next`, `scheduled`: by all, atomically
  take, ready          -     X      X       `head`: of the taker; which thread that is passes on with the owner's run
Progress: nothing waits. Complexity: O(1). Memory: 16 bytes an item; the item belongs to the caller, and stays where it
is while its flag is set.
"""

from libc.stdint cimport uint32_t, uintptr_t
from libcpp.atomic cimport atomic, memory_order_relaxed

cdef struct WorkItem:  # the head of whatever has work
    atomic[uintptr_t] next       # the item behind; written by the thread that added it
    atomic[uint32_t] scheduled   # 1 from before it enters the set until it is out

cdef struct Workset:
    atomic[uintptr_t] tail       # the item added last
    WorkItem* head               # the item to be taken next, or the stub in front of it
    WorkItem stub                # in the set when it is empty: so adders need not tell that case apart

cdef inline void workitem_init(WorkItem* item) noexcept nogil:
    item.next.store(0, memory_order_relaxed)  # relaxed, both: no other thread knows the item
    item.scheduled.store(0, memory_order_relaxed)

cdef inline void workset_init(Workset* w) noexcept nogil:
    workitem_init(&w.stub)
    w.head = &w.stub
    w.tail.store(<uintptr_t> &w.stub)

cdef inline bint workitem_scheduled(WorkItem* item) noexcept nogil:
    """Return whether it is in a set, or about to be."""
    return item.scheduled.load() != 0

cdef inline void workset_link(Workset* w, WorkItem* item) noexcept nogil:
    cdef WorkItem* before
    item.next.store(0, memory_order_relaxed)  # seen by others after the exchange only
    before = <WorkItem*> w.tail.exchange(<uintptr_t> item)  # W1: the item has its place
    # W2: it can be taken. seq_cst, not release: the adder goes on with loads (is the owner told already?), and these
    # must not come before it.
    before.next.store(<uintptr_t> item)

cdef inline bint workset_add(Workset* w, WorkItem* item) noexcept nogil:
    """Put an item last; False when it is in the set already, and will be taken after this call."""
    if item.scheduled.load() or item.scheduled.exchange(1):
        return False
    workset_link(w, item)
    return True

cdef inline WorkItem* workset_unlink(Workset* w) noexcept nogil:
    cdef WorkItem* item = w.head
    cdef WorkItem* following = <WorkItem*> item.next.load()
    if item == &w.stub:
        if following == NULL:
            return NULL
        w.head = item = following
        following = <WorkItem*> item.next.load()
    if following == NULL:
        if w.tail.load() != <uintptr_t> item:
            return NULL  # an adder is at it
        workset_link(w, &w.stub)  # so that the item, the last one, can leave
        following = <WorkItem*> item.next.load()
        if following == NULL:
            return NULL  # another came in between, and is not linked yet
    w.head = following
    return item

cdef inline WorkItem* workset_take(Workset* w) noexcept nogil:
    """Take the item that has been in the set longest; NULL when there is none. Look at its work after this call."""
    cdef WorkItem* item = workset_unlink(w)
    if item != NULL:
        item.scheduled.store(0)  # seq_cst: before every look at its work
    return item

cdef inline bint workset_ready(Workset* w) noexcept nogil:
    """Return whether workset_take is likely to find an item: False is certain, but for adders not yet back."""
    return w.head != &w.stub or w.stub.next.load() != 0
