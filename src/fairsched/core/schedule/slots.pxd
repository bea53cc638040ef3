"""The slots: a FIFO of tokens each, and the circular list of slots with work or debt, on which dwrr.pxd works.

Empty slots are in no list and are never visited, so many empty slots cost nothing.

Indices are stable; an index freed by slots_remove is used again. Thread safety: none; the caller synchronizes.
Complexity: O(1), except slots_remove of an active slot (O(active slots)) and growing the table (amortised).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fairsched.core.memory cimport CACHE_LINE, first_line, prefetch
from fairsched.core.schedule.entrypool cimport (
    Entry, EntryPool, entrypool_clear, entrypool_give, entrypool_init, entrypool_relax, entrypool_take, entrypool_valid,
)

cdef enum:
    NO_SLOT = 0xFFFFFFFF
    AWAITED_SLOT = 0xFFFFFFFE  # no slot either: the one whose turn it is, is waited for

cdef enum SlotFlag:
    TRANSIENT = 1  # to be forgotten when it is idle
    REPORTED = 2   # among those reported idle
    AT_LIMIT = 4   # takes no turns: in no list, whatever it has; see limits.pxd
    IN_USE = 8     # not to be forgotten for what its limit counts
    NEW = 16       # goes before those that are not; see sparse.pxd
    BAND_BITS = 0xE0  # its band; see bands.pxd

cdef enum:
    BANDS = 8
    BAND_SHIFT = 5
    DEFAULT_BAND = 4
    PRIORITIES = 10  # of messages; see branches.pxd
    MOST_BANDS = 10  # the larger number

cdef enum HoldState:
    NOT_HELD = 0
    HELD = 1
    HELD_ONLY = 2  # and not waited for: not asked for, or in vain the last time

cdef enum TurnState:
    NO_TURN = 0
    TURN = 1
    AWAITED_TURN = 2  # and the patience of the table is what is left for this turn

cdef extern from *:
    """
    static const int64_t FAIRSCHED_NOT_AWAITED = INT64_MIN;
    """
    const int64_t NOT_AWAITED "FAIRSCHED_NOT_AWAITED"

cdef struct Slot:  # one cache line
    int64_t quantum    # 0: the index is not in use
    int64_t deficit
    Entry* head
    Entry* tail
    uint64_t pushed    # messages, since the slot was added
    uint64_t served    # of those; what is not served is queued
    int64_t work       # cost served, settlements included
    uint32_t next      # following slot in the active list, or in that of free indices: it is in one of them at most
    uint8_t active     # in the active list: it has messages, or debt
    uint8_t granted    # its turn has begun, the quantum of this turn is in the deficit: a TurnState
    uint8_t held       # empty here, backlogged upstream: a HoldState
    uint8_t flags      # SlotFlag

cdef struct BandList:  # what a table has of a band; see bands.pxd
    uint32_t tail
    uint32_t count
    int64_t queued
    int64_t patience_left
    int64_t awaited_since
    uint32_t newest
    uint32_t boosts

cdef struct Bands:
    BandList of[MOST_BANDS]  # of all bands but the one whose list is in the table
    int64_t elsewhere        # messages in these
    uint32_t count           # bands
    uint8_t inside           # that one

cdef struct Branch:  # what belongs to an index, in a table whose messages have priorities; see branches.pxd
    uint32_t root   # of a branch: the slot that it is a part of; of a slot: NO_SLOT
    uint32_t next   # of a branch: another one of its slot; of a slot: its first branch; or NO_SLOT
    uint32_t band   # of a branch
    int64_t[PRIORITIES] left  # of a slot: the work of its branches of each band that were removed

cdef struct Branches:
    Branch* of         # by index
    uint32_t capacity

cdef struct SlotTable:
    Slot* slots           # aligned to the cache line
    void* block           # what malloc returned for it
    uint32_t size         # indices handed out so far
    uint32_t capacity
    uint32_t free_slot    # first of the removed indices
    uint32_t* idle        # stack of transient slots that were found idle, each once; behind the slots in their block
    uint32_t idle_count
    uint32_t active_tail  # the active list is circular: the first is the tail's next
    uint32_t active_count
    int64_t queued        # messages in all slots that take turns
    int64_t withheld      # in those at their limit, or of another band than the one in service
    int64_t max_cost      # largest cost pushed so far
    int64_t patience      # longest wait of one turn, in nanoseconds; 0: none
    int64_t patience_left  # of the turn under way
    int64_t awaited_since  # when the wait under way began; NOT_AWAITED: there is none
    uint32_t newest        # last of the new slots, which are the first of the active list, or NO_SLOT
    uint32_t boosts        # slots that became new, less the turns of others since
    bint sparse            # slots may become new
    Bands* bands           # the owner's; NULL: there is one list for all
    Branches* branches     # the owner's; NULL: messages have no priorities
    EntryPool pool

cdef inline void slots_init(SlotTable* t) noexcept nogil:
    t.slots = NULL
    t.block = NULL
    t.idle = NULL
    t.size = t.capacity = t.active_count = t.idle_count = 0
    t.free_slot = t.active_tail = NO_SLOT
    t.queued = t.withheld = 0
    t.max_cost = 1
    t.patience = t.patience_left = 0
    t.awaited_since = NOT_AWAITED
    t.newest = NO_SLOT
    t.boosts = 0
    t.sparse = False
    t.bands = NULL
    t.branches = NULL
    entrypool_init(&t.pool)

cdef inline void slots_clear(SlotTable* t) noexcept nogil:
    """Free everything: the table is as new."""
    free(t.block)
    entrypool_clear(&t.pool)
    slots_init(t)

cdef inline bint slots_grow(SlotTable* t) noexcept nogil:
    """Double the table; False when memory is exhausted."""
    cdef uint32_t capacity = 8 if t.capacity == 0 else 2 * t.capacity
    cdef void* block = malloc(<size_t> capacity * (sizeof(Slot) + sizeof(uint32_t)) + CACHE_LINE)
    cdef Slot* slots
    if block == NULL:
        return False
    slots = <Slot*> first_line(block)
    if t.size:
        memcpy(slots, t.slots, t.size * sizeof(Slot))
        memcpy(slots + capacity, t.idle, t.idle_count * sizeof(uint32_t))
    free(t.block)
    t.block = block
    t.slots = slots
    t.idle = <uint32_t*> (slots + capacity)
    t.capacity = capacity
    return True

cdef inline uint32_t slots_add(SlotTable* t, int64_t quantum, bint transient) noexcept nogil:
    """Add a slot; return its index, or NO_SLOT when memory is exhausted."""
    cdef uint32_t index = t.free_slot
    cdef Slot* slot
    if index != NO_SLOT:
        t.free_slot = t.slots[index].next
    else:
        if t.size == t.capacity and not slots_grow(t):
            return NO_SLOT
        index = t.size
        t.size += 1
        t.slots[index].flags = 0
    slot = &t.slots[index]
    slot.quantum = quantum
    slot.deficit = 0
    slot.head = slot.tail = NULL
    slot.pushed = slot.served = 0
    slot.work = 0
    slot.next = NO_SLOT
    slot.active = slot.granted = slot.held = 0
    slot.flags = (slot.flags & REPORTED) | (TRANSIENT if transient else 0)  # a report of the index's last slot stays
    return index

cdef inline bint slots_has(const SlotTable* t, int64_t index) noexcept nogil:
    """True when `index` is that of a slot."""
    return 0 <= index < t.size and t.slots[index].quantum != 0

cdef inline uint32_t slots_first(const SlotTable* t) noexcept nogil:
    """Index of the first active slot; needs active_count > 0."""
    return t.slots[t.active_tail].next

cdef inline void slots_insert_after(SlotTable* t, uint32_t before, uint32_t index) noexcept nogil:
    """Put a slot into the active list, which has some, behind another; the tail stays."""
    cdef Slot* slot = &t.slots[index]
    slot.next = t.slots[before].next
    t.slots[before].next = index
    t.active_count += 1
    slot.active = 1
    slot.granted = 0

cdef inline void slots_activate(SlotTable* t, uint32_t index) noexcept nogil:
    """Append a slot to the active list."""
    cdef Slot* slot = &t.slots[index]
    if t.active_count == 0:
        slot.next = index
    else:
        slot.next = t.slots[t.active_tail].next
        t.slots[t.active_tail].next = index
    t.active_tail = index
    t.active_count += 1
    slot.active = 1
    slot.granted = 0

cdef inline void slots_deactivate_after(SlotTable* t, uint32_t before) noexcept nogil:
    """Take the successor of `before` off the active list."""
    cdef uint32_t index = t.slots[before].next
    cdef Slot* slot = &t.slots[index]
    t.slots[before].next = slot.next
    if t.active_tail == index:
        t.active_tail = before
    t.active_count -= 1
    slot.active = slot.granted = 0
    if slot.flags & NEW:
        slot.flags &= ~NEW
        if t.newest == index:
            t.newest = before if t.slots[before].flags & NEW else <uint32_t> NO_SLOT

cdef inline bint slots_idle(const SlotTable* t, uint32_t index) noexcept nogil:
    """True when a slot is there that may be forgotten: transient, without messages or debt, not held, nor in use."""
    cdef const Slot* slot = &t.slots[index]
    return (
        slot.quantum != 0 and slot.flags & (TRANSIENT | IN_USE) == TRANSIENT and not slot.active and not slot.held
        and slot.head == NULL  # at its limit, a slot that is not active may have messages
    )

cdef inline void slots_report_idle(SlotTable* t, uint32_t index) noexcept nogil:
    """Put a slot that went idle where the owner finds it, if it is one to be forgotten."""
    if slots_idle(t, index) and not t.slots[index].flags & REPORTED:
        t.slots[index].flags |= REPORTED
        t.idle[t.idle_count] = index
        t.idle_count += 1

cdef inline uint32_t slots_take_idle(SlotTable* t) noexcept nogil:
    """Take one of the slots that were reported and are idle at this moment, or NO_SLOT.

    A report may be late: its slot may have messages again, or be another's. So the thread that takes one forgets it at
    once, or leaves it; nothing may come between.
    """
    cdef uint32_t index
    while t.idle_count:
        t.idle_count -= 1
        index = t.idle[t.idle_count]
        t.slots[index].flags &= ~REPORTED
        if slots_idle(t, index):
            return index
    return NO_SLOT

cdef inline void slots_remove(SlotTable* t, uint32_t index) noexcept nogil:
    """Remove a slot without messages."""
    cdef uint32_t before = t.active_tail
    if t.slots[index].active:
        while t.slots[before].next != index:
            before = t.slots[before].next
        slots_deactivate_after(t, before)
    t.slots[index].quantum = 0
    t.slots[index].next = t.free_slot
    t.free_slot = index

cdef inline bint slots_append(SlotTable* t, uint32_t index, uint64_t token, int64_t cost) noexcept nogil:
    """Append a message to a slot's FIFO; False when memory is exhausted."""
    cdef Slot* slot = &t.slots[index]
    cdef Entry* entry = entrypool_take(&t.pool)
    if entry == NULL:
        return False
    entry.next = NULL
    entry.token = token
    entry.cost = cost
    if slot.head == NULL:
        slot.head = entry
    else:
        slot.tail.next = entry
    slot.tail = entry
    slot.pushed += 1
    t.queued += 1
    return True

cdef inline uint64_t slots_unlink_head(SlotTable* t, Slot* slot) noexcept nogil:
    """Remove a slot's oldest message, as served, and return its token."""
    cdef Entry* entry = slot.head
    cdef uint64_t token = entry.token
    slot.head = entry.next
    if slot.head != NULL:  # a null prefetch walks the page table in vain
        prefetch(slot.head)  # the slot's next pop reads there
    slot.served += 1
    entrypool_give(&t.pool, entry)
    t.queued -= 1
    if t.queued == 0 and t.withheld == 0:
        entrypool_relax(&t.pool)
    return token

cdef inline bint slots_valid(const SlotTable* t) noexcept nogil:
    """True when counters, lists and flags agree. For tests: O(slots + messages + pool)."""
    cdef int64_t queued = 0, withheld = 0, in_slot
    cdef uint32_t i, _i, active = 0, index = t.active_tail
    cdef const Slot* slot
    cdef const Entry* entry
    for i in range(t.size):
        slot = &t.slots[i]
        if slot.quantum == 0:
            continue
        in_slot = 0
        entry = slot.head
        while entry != NULL:
            in_slot += 1
            entry = entry.next
        active += slot.active
        if in_slot != <int64_t> (slot.pushed - slot.served):
            return False
        if slot.flags & AT_LIMIT:
            withheld += in_slot
            if slot.active:
                return False
            continue
        queued += in_slot
        if (in_slot > 0 or slot.deficit < 0) and not slot.active:
            return False
    for _i in range(t.active_count):
        if not t.slots[index].active:
            return False
        index = t.slots[index].next
    for i in range(t.idle_count):
        if not t.slots[t.idle[i]].flags & REPORTED:
            return False
    return (
        queued == t.queued and withheld == t.withheld and active == t.active_count
        and (active == 0 or index == t.active_tail) and entrypool_valid(&t.pool, queued + withheld)
    )
