"""Withdrawal: take queued messages out of the middle, as if they had never been pushed.

The messages are named by their tokens, and found by walking all slots. A slot that is empty afterwards leaves the
active list, unless it has a debt to pay or is held. With subkeys, messages leave their subkeys; their slot loses as
many entries, and offers the message that its subkeys serve next.

Thread safety: none; the caller synchronizes. Complexity: O(queued messages * log(tokens sought) + slots), and
O(active slots) more for each slot that becomes empty.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort

from fairsched.core.schedule.bands cimport bands_enter, bands_serve
from fairsched.core.schedule.dwrr cimport dwrr_hold, dwrr_trim_deficit
from fairsched.core.schedule.entrypool cimport Entry, entrypool_give, entrypool_relax
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, NOT_HELD, NO_SLOT, Slot, SlotTable, slots_deactivate_after, slots_report_idle,
)
from fairsched.core.schedule.subkeys cimport Subkeys, subkeys_choose, subkeys_enter

cdef struct Sought:
    uint64_t* tokens  # in ascending order; a token that is here twice is taken out twice
    uint8_t* found    # one for each of them
    int64_t size
    int64_t left      # not found yet

cdef inline int sought_compare(const void* one, const void* other) noexcept nogil:
    cdef uint64_t a = (<const uint64_t*> one)[0], b = (<const uint64_t*> other)[0]
    return (a > b) - (a < b)

cdef inline void sought_sort(Sought* s) noexcept nogil:
    """Begin: sort the tokens, none of which is found. Equal tokens stay equal, so their order does not matter."""
    cdef int64_t i
    qsort(s.tokens, <size_t> s.size, sizeof(uint64_t), sought_compare)
    for i in range(s.size):
        s.found[i] = 0
    s.left = s.size

cdef inline int64_t sought_place(const Sought* s, uint64_t token, uint8_t found) noexcept nogil:
    """Return the place of a token whose entry in `found` is this; -1: there is none."""
    cdef int64_t low = 0, high = s.size, middle
    while low < high:
        middle = (low + high) // 2
        if s.tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    while low < s.size and s.tokens[low] == token:
        if s.found[low] == found:
            return low
        low += 1
    return -1

cdef inline bint sought_take(Sought* s, uint64_t token) noexcept nogil:
    """Return whether a token is sought and not found yet; from now on it is found."""
    cdef int64_t place = sought_place(s, token, 0)
    if place < 0:
        return False
    s.found[place] = 1
    s.left -= 1
    return True

cdef inline int64_t withdraw_from(SlotTable* t, uint32_t index, Sought* s) noexcept nogil:
    """Take the messages sought out of one slot, whose list is in the table; return their number."""
    cdef Slot* slot = &t.slots[index]
    cdef Entry** link = &slot.head
    cdef Entry* entry
    cdef Entry* last = NULL
    cdef int64_t count = 0
    while link[0] != NULL:
        entry = link[0]
        if s.left and sought_take(s, entry.token):
            link[0] = entry.next
            entrypool_give(&t.pool, entry)
            count += 1
        else:
            last = entry
            link = &entry.next
    slot.tail = last
    withdraw_count(t, slot, count)
    return count

cdef inline void withdraw_count(SlotTable* t, Slot* slot, int64_t count) noexcept nogil:
    """Note that messages have left a slot."""
    slot.pushed -= <uint64_t> count
    if t.branches != NULL:
        t.slots[t.branches.of[slot - t.slots].root].pushed -= <uint64_t> count
    if slot.flags & AT_LIMIT:
        t.withheld -= count
    else:
        t.queued -= count

cdef inline void withdraw_active(SlotTable* t, uint32_t index) noexcept nogil:
    """Take a slot, whose list is in the table, off it if it has nothing to do there. O(active slots)."""
    cdef Slot* slot = &t.slots[index]
    cdef uint32_t before = t.active_tail
    if slot.active and slot.head == NULL and slot.deficit >= 0 and not slot.held:
        while t.slots[before].next != index:
            before = t.slots[before].next
        slots_deactivate_after(t, before)
        dwrr_trim_deficit(t, slot)
    slots_report_idle(t, index)

cdef inline void withdraw_claims(SlotTable* t, uint32_t index) noexcept nogil:
    """Let a slot, or a branch, have no debt and no hold, and take it off the active list if it is empty."""
    t.slots[index].deficit = max(t.slots[index].deficit, 0)
    dwrr_hold(t, index, NOT_HELD)
    bands_enter(t, index)
    withdraw_active(t, index)
    bands_serve(t)

cdef inline void withdraw_retire(SlotTable* t, uint32_t index) noexcept nogil:
    """Let a slot be idle as soon as its messages have been served, in all its branches."""
    cdef uint32_t branch
    if t.branches != NULL:
        branch = t.branches.of[index].next
        while branch != NO_SLOT:
            withdraw_claims(t, branch)
            branch = t.branches.of[branch].next
    withdraw_claims(t, index)

cdef inline void withdraw_entries(SlotTable* t, uint32_t above, int64_t count) noexcept nogil:
    """Take so many entries off a slot: its subkeys have lost that many messages."""
    cdef Slot* slot = &t.slots[above]
    cdef Entry* entry
    cdef int64_t _i
    for _i in range(count):
        entry = slot.head
        slot.head = entry.next
        entrypool_give(&t.pool, entry)
    if slot.head == NULL:
        slot.tail = NULL
    withdraw_count(t, slot, count)

cdef inline void withdraw_from_subkeys(SlotTable* t, Subkeys* levels, Sought* s) noexcept nogil:
    """Take the messages sought out of all subkeys."""
    cdef SlotTable* below = levels.below
    cdef uint32_t index, above
    cdef int64_t count
    for index in range(below.size):
        if below.slots[index].quantum == 0 or below.slots[index].head == NULL:
            continue
        above = levels.above[index]
        subkeys_enter(levels, above)
        count = withdraw_from(below, index, s)
        if count:
            withdraw_active(below, index)
            bands_enter(t, above)
            withdraw_entries(t, above, count)
            subkeys_choose(levels, t, above)
            withdraw_active(t, above)
            bands_serve(t)

cdef inline void withdraw_sought(SlotTable* t, Subkeys* levels, Sought* s) noexcept nogil:
    """Take the messages sought out, wherever they wait."""
    cdef uint32_t index
    if levels.below != NULL:
        withdraw_from_subkeys(t, levels, s)
    else:
        for index in range(t.size):
            if t.slots[index].quantum and t.slots[index].head != NULL:
                bands_enter(t, index)
                if withdraw_from(t, index, s):
                    withdraw_active(t, index)
                bands_serve(t)
    if levels.below != NULL and levels.below.queued == 0 and levels.below.withheld == 0:
        entrypool_relax(&levels.below.pool)
    if t.queued == 0 and t.withheld == 0:
        entrypool_relax(&t.pool)
