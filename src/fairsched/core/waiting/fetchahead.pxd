"""Fetching the entries of a list before they are found, when it is longer than the caches are large.

A chain can be followed no faster than memory answers. So each entry has the address of the one AHEAD places later, and
a thread that finds the first entry has that one fetched. These are hints, and nothing else in nodelist.pxd depends on
them: they may be out of date, are never followed, and publish nothing, so that all stores are relaxed.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic, memory_order_relaxed

from fairsched.core.memory cimport prefetch
from fairsched.core.waiting.reclaim cimport NodeEntry, entry_of

cdef enum:
    HINT_SHIFT = 5  # entries are aligned to half a cache line
    AHEAD = 8       # entries are fetched so many before they are found,
    LONG = 4096     # if a list has more entries than this

cdef inline void fetchahead_init(atomic[uintptr_t]* recent, NodeEntry* head) noexcept nogil:
    """`recent` are the AHEAD entries appended last, roughly."""
    cdef int i
    for i in range(AHEAD):
        recent[i].store(<uintptr_t> head)

cdef inline void fetchahead_note(atomic[uintptr_t]* recent, uint32_t front, NodeEntry* entry) noexcept nogil:
    """An entry was appended to a list that is in use from `front` on: tell the one appended AHEAD times ago."""
    cdef atomic[uintptr_t]* place
    if entry.order.load() - front > LONG:
        place = &recent[entry.order.load() % AHEAD]
        (<NodeEntry*> place.load()).hint.store(<uint32_t> (<uintptr_t> entry >> HINT_SHIFT), memory_order_relaxed)
        place.store(<uintptr_t> entry, memory_order_relaxed)

cdef inline void fetchahead_fetch(NodeEntry* entry) noexcept nogil:
    """Entry is the first: fetch the entry that it has a hint of (the lower bits of the address), and the node of the
    second from here."""
    cdef uintptr_t mask = <uintptr_t> ((<uint64_t> 0xFFFFFFFF) << HINT_SHIFT)
    cdef int _i
    prefetch(<void*> ((<uintptr_t> entry & ~mask) | (<uintptr_t> entry.hint.load() << HINT_SHIFT)))
    for _i in range(2):
        entry = entry_of(entry.next.load()) if entry != NULL else NULL
    if entry != NULL:
        prefetch(<void*> entry.node.load())
