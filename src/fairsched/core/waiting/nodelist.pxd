"""The list that consumer nodes move between: O(1) append and delete, walked while others do both, without a lock.

Source: Qpid Broker-J's QueueConsumerNodeList. Singly linked, a sentinel for a head, an atomic tail. Delete
only marks; walkers unlink what they find marked. Marks stand in the lowest bit of `next`, as in T. Harris, A pragmatic
implementation of non-blocking linked-lists (2001): a marked entry's pointer no longer changes, but from null once. So
a compare-and-swap that unlinks can succeed only on an entry that is itself linked, each entry is unlinked exactly once,
and never comes back: without that, two walkers would both retire it (a garbage collector forgives them, memory of our
own does not). Broker-J's promises are kept:
  - the tail is never unlinked: a dead tail stays as a dummy until something follows it;
  - a dead entry keeps its next pointer: a walk goes on from an entry that was deleted, or unlinked, meanwhile;
  - has_next may be asked again; what it found is what the following next returns, deleted or not.
Caveats: what is appended or deleted during a walk may be missed or seen; what is there all the time is seen once.

  synchronization     append  delete  walk, first, tidy  size     X: needs external exclusion
  append                 -       -            -           -       an entry and a node are appended by one thread
  delete                 -       -            -           -       of one entry: one winner
  walk, first, tidy      -       -            -           -
  init, valid, clear     X       X            X           X
Every thread is pinned (reclaim_enter) from the first touch of an entry to the last; an iterator lives in one pin.

Progress: append and delete are lock-free (a thread that finds the tail behind moves it on; delete never retries). A
walk goes forward only, and ends unless others append as fast. The loser of an unlink leaves it to later walkers.
Reclamation: the thread that unlinks an entry retires it. The tail may stand on an unlinked entry, for a moment:
reclaim.pxd, E4.
Walkers unlink and, when more than `threshold` and more than half of what is linked is dead, one walk over all of it.
(Broker-J walks after every `threshold` deletes: O(n / threshold) for each, with n alive.)
Complexity: append O(1), delete O(1) amortised, a walk O(what is linked), first O(1) amortised, size O(PIN_SLOTS).
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic, memory_order_relaxed, memory_order_release

from fairsched.core.atomics cimport PAUSES_MIN, back_off
from fairsched.core.memory cimport CACHE_LINE
from fairsched.core.waiting.fetchahead cimport AHEAD, fetchahead_fetch, fetchahead_init, fetchahead_note
from fairsched.core.waiting.reclaim cimport DELETED, PIN_SLOTS, NodeEntry, Pin, entry_of, reclaim_give, reclaim_retire

cdef enum:
    SCAVENGE_THRESHOLD = 100

cdef struct NodeList:
    NodeEntry head                 # sentinel: never marked, never a victim; its next is written by walkers
    char head_padding[CACHE_LINE - 32]
    atomic[uintptr_t] tail         # last or last but one; written by appenders, their own or in help
    atomic[uint32_t] dead          # entries linked but dead, roughly: see nodelist_count_dead
    atomic[uint32_t] scavenging    # 1 while a thread walks over everything
    uint32_t threshold             # fixed
    atomic[uint32_t] front         # the order of what nodelist_first found last: says whether the list is long
    char tail_padding[CACHE_LINE - 24]
    atomic[uintptr_t] recent[AHEAD]  # entries appended last, roughly: see fetchahead.pxd
    atomic[uint32_t] deleted[PIN_SLOTS]  # deletes so far, modulo 2**32: each by the thread with that pin, read by all

cdef struct NodeIterator:          # of one thread, within one pin
    NodeList* list
    Pin* pin
    NodeEntry* last                # the entry last returned
    NodeEntry* found               # the entry promised by has_next, or NULL
    void* node                     # and its node, read while it was alive

cdef inline void nodelist_init(NodeList* l, uint32_t threshold) noexcept nogil:
    cdef int i
    l.head.next.store(0)
    l.head.node.store(0)
    l.head.order.store(0)
    l.tail.store(<uintptr_t> &l.head)
    l.dead.store(0)
    l.scavenging.store(0)
    l.front.store(0)
    l.threshold = threshold
    for i in range(PIN_SLOTS):
        l.deleted[i].store(0)
    fetchahead_init(l.recent, &l.head)

cdef inline void nodelist_append(NodeList* l, Pin* pin, NodeEntry* entry, void* node) noexcept nogil:
    """Append `entry`, just taken from the pin, for `node`: done when it is linked."""
    cdef uintptr_t tail, next, desired
    cdef unsigned int pauses = PAUSES_MIN
    entry.next.store(0, memory_order_relaxed)  # relaxed until it is linked: R2 publishes
    entry.node.store(<uintptr_t> node, memory_order_relaxed)
    while True:
        tail = l.tail.load()
        next = (<NodeEntry*> tail).next.load()
        if entry_of(next) != NULL:  # another thread has linked, and not moved the tail yet
            l.tail.compare_exchange_strong(tail, <uintptr_t> entry_of(next))
            back_off(&pauses)
            continue
        entry.order.store((<NodeEntry*> tail).order.load() + 1, memory_order_relaxed)
        # A dead tail keeps its mark. R2 (publish): pairs with A3; the entry's fields were written before.
        desired = <uintptr_t> entry | (next & DELETED)
        if (<NodeEntry*> tail).next.compare_exchange_strong(next, desired):
            l.tail.compare_exchange_strong(tail, <uintptr_t> entry)
            fetchahead_note(l.recent, l.front.load(), entry)
            return
        back_off(&pauses)

cdef inline void nodelist_count_dead(NodeList* l, int32_t change) noexcept nogil:
    """Add to the number of dead entries. Two threads may lose one another's count, which moves the next scavenging."""
    cdef int32_t dead = <int32_t> l.dead.load() + change
    # Not below zero, so that losses cannot add up. Relaxed: an estimate publishes nothing.
    l.dead.store(<uint32_t> dead if dead > 0 else 0, memory_order_relaxed)

cdef inline bint nodelist_mark(NodeEntry* entry) noexcept nogil:
    """Mark an entry as dead: True for one caller only, which then unlinks it."""
    return not entry.next.fetch_or(DELETED) & DELETED

cdef inline void nodelist_bury(NodeList* l, Pin* pin, NodeEntry* entry) noexcept nogil:
    """Clear and count an entry of `l` that the caller has marked."""
    cdef atomic[uint32_t]* deleted = &l.deleted[pin.index]
    # R3 (clear): pairs with A4; a walker that finds 0 here will find the mark. A dead entry pins no consumer.
    entry.node.store(0, memory_order_release)
    # R4 (count): pairs with A5; no other thread writes to this pin's counter, so it takes no locked instruction.
    deleted.store(deleted.load() + 1, memory_order_release)
    nodelist_count_dead(l, 1)

cdef inline bint nodelist_delete(NodeList* l, Pin* pin, NodeEntry* entry) noexcept nogil:
    """Delete an entry of `l`: True for one caller only. Then nodelist_tidy, at leisure."""
    if not nodelist_mark(entry):
        return False
    nodelist_bury(l, pin, entry)
    return True

cdef inline int32_t nodelist_size(NodeList* l) noexcept nogil:
    """Count live entries. Exact when no node moves; deletes are counted first, so never below 0. O(PIN_SLOTS)."""
    cdef uint32_t deleted = 0
    cdef int i
    for i in range(PIN_SLOTS):
        deleted += l.deleted[i].load()  # A5: pairs with R4
    return <int32_t> (<uint32_t> (<NodeEntry*> l.tail.load()).order.load() - deleted)

cdef inline void nodelist_unlink(
    NodeList* l, Pin* pin, NodeEntry* before, uintptr_t next, NodeEntry* after
) noexcept nogil:
    """Unlink the dead run from before.next up to `after`; or leave it to a later walker."""
    cdef NodeEntry* victim = entry_of(next)
    cdef NodeEntry* following
    cdef int32_t count = 0
    # A dead entry's pointer stays: from there nothing can be unlinked.
    if next & DELETED or not before.next.compare_exchange_strong(next, <uintptr_t> after):
        return
    while victim != after:  # this thread's alone: no other writes to their pointers any more
        following = entry_of(victim.next.load())
        reclaim_retire(pin, victim)
        victim = following
        count += 1
    nodelist_count_dead(l, -count)

cdef inline NodeEntry* nodelist_after(NodeList* l, Pin* pin, NodeEntry* entry, void** node) noexcept nogil:
    """The first successor of `entry` that is alive, and its node; NULL at the end. Unlinks the dead in between."""
    cdef uintptr_t first, next
    cdef NodeEntry* current
    while True:
        first = entry.next.load()  # A3: pairs with R2
        current = entry_of(first)
        if current == NULL:
            return NULL
        next = current.next.load()
        while next & DELETED and entry_of(next) != NULL:
            current = entry_of(next)
            next = current.next.load()
        if current != entry_of(first):
            nodelist_unlink(l, pin, entry, first, current)
        if next & DELETED:
            return NULL  # the dead tail
        node[0] = <void*> current.node.load()  # A4: pairs with R3
        if node[0] != NULL:
            return current
        # Deleted between the look at its mark and the look at its node: look again, and find the mark.

cdef inline void* nodelist_first(NodeList* l, Pin* pin) noexcept nogil:
    """The node of the first entry alive, or NULL."""
    cdef void* node = NULL
    cdef NodeEntry* entry = nodelist_after(l, pin, &l.head, &node)
    if entry != NULL:
        l.front.store(entry.order.load(), memory_order_relaxed)  # relaxed: it publishes nothing
        fetchahead_fetch(entry)
    return node

cdef inline void nodelist_scavenge(NodeList* l, Pin* pin) noexcept nogil:
    """Walk over everything, so that what is dead is unlinked; unless another thread does that already."""
    cdef NodeEntry* entry = &l.head
    cdef void* node
    if l.scavenging.exchange(1):
        return
    l.dead.store(0, memory_order_relaxed)  # relaxed: the estimate starts afresh, and never falls below this
    while entry != NULL:
        entry = nodelist_after(l, pin, entry, &node)
    nodelist_first(l, pin)
    l.scavenging.store(0, memory_order_release)  # publishes nothing: the next may start

cdef inline void nodelist_tidy(NodeList* l, Pin* pin) noexcept nogil:
    """Scavenge when it has become due."""
    cdef uint32_t dead = l.dead.load()
    if dead > l.threshold and <int32_t> dead > nodelist_size(l):
        nodelist_scavenge(l, pin)

cdef inline void nodeiterator_init(NodeIterator* i, NodeList* l, Pin* pin) noexcept nogil:
    i.list = l
    i.pin = pin
    i.last = &l.head
    i.found = NULL

cdef inline bint nodeiterator_has_next(NodeIterator* i) noexcept nogil:
    """True when there is a node, which nodeiterator_next will return, deleted meanwhile or not."""
    i.found = nodelist_after(i.list, i.pin, i.last, &i.node)
    return i.found != NULL

cdef inline void* nodeiterator_next(NodeIterator* i) noexcept nogil:
    """The next node, or NULL past the end (from where it can be asked again)."""
    if i.found == NULL and not nodeiterator_has_next(i):
        return NULL
    i.last = i.found
    i.found = NULL
    return i.node

cdef inline void nodelist_clear(NodeList* l, Pin* pin) noexcept nogil:
    """Give all entries back. No other thread holds any: the list is new, or out of reach for two epochs."""
    cdef NodeEntry* entry = entry_of(l.head.next.load())
    cdef NodeEntry* chain = NULL
    while entry != NULL:
        entry.link = chain
        chain = entry
        entry = entry_of(entry.next.load())
    nodelist_init(l, l.threshold)
    reclaim_give(pin.reclaim, chain)
