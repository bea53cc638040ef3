"""Two levels: the service of a slot is divided equally among its subkeys.

A second table, below, has all subkeys as its slots, each with its own messages and deficit; the slots above take turns
as usual. The subkeys of one slot have their own active list. The table below holds one of these lists at a time, and
messages of the other subkeys count as `withheld` there, so dwrr.pxd sees only one list, as with bands.pxd.

* What is served. A slot above has an entry for each message of its subkeys. The first of these entries is kept like the
  message that the subkeys would serve next: of the same token, of the same cost. So whether that fits in the deficit of
  the slot is exact, and limits, bands, debts and anticipation need not know of subkeys.
* The choice of that message is made when a subkey gets one and had none, after one was served, and when a subkey was
  charged or refunded. Otherwise it stands, since a subkey goes on with its turn: what comes goes to the tail. While one
  subkey has all there is, no round is run to find it: it would have its debts paid before others can come.
* Bound. For slots it is that of dwrr.pxd: subkeys do not occur in it, so a slot gains nothing by having many. For
  two subkeys of one slot that are always backlogged |S_i - S_j| <= Q + 2 maxcost, whenever the slot itself is served.
* Debts of subkeys are paid by turns among those of their slot. A slot that is idle, and forgotten for that, takes what
  its subkeys owe each other with it.

Source: Bennett and Zhang, "Hierarchical Packet Fair Queueing Algorithms" (1996), for schedulers one below the other, of
which each offers one message; here both are deficit round robin. Thread safety: none; the caller synchronizes.
Complexity: that of dwrr.pxd for each of the two.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.dwrr cimport (
    dwrr_pop, dwrr_push, dwrr_reserve, dwrr_retire_empty, dwrr_settle, dwrr_turn,
)
from fairsched.core.schedule.slots cimport NO_SLOT, REPORTED, Slot, SlotTable, slots_first

cdef struct SubkeyList:  # what the table below has of a slot
    uint32_t tail
    uint32_t count
    int64_t queued

cdef struct Subkeys:
    SlotTable* below    # the owner's; NULL: slots have no subkeys
    SubkeyList* of      # by index of the slot; not that of the one whose list is in the table
    uint32_t* above     # by index of the subkey: its slot
    uint32_t slots      # for which there is room in `of`
    uint32_t capacity   # of `above`
    uint32_t inside     # the slot whose list is in the table, or NO_SLOT

cdef inline void subkeys_init(Subkeys* s) noexcept nogil:
    s.below = NULL
    s.of = NULL
    s.above = NULL
    s.slots = s.capacity = 0
    s.inside = NO_SLOT

cdef inline void subkeys_clear(Subkeys* s) noexcept nogil:
    """Free everything: slots have no subkeys any more."""
    free(s.of)
    free(s.above)
    subkeys_init(s)

cdef inline bint subkeys_reserve(Subkeys* s, const SlotTable* t) noexcept nogil:
    """Make sure that all slots, and another subkey, have a place; False when memory is exhausted."""
    cdef uint32_t i
    cdef void* grown
    if s.slots < t.capacity:
        grown = realloc(s.of, t.capacity * sizeof(SubkeyList))
        if grown == NULL:
            return False
        s.of = <SubkeyList*> grown
        for i in range(s.slots, t.capacity):
            s.of[i].tail = NO_SLOT
            s.of[i].count = 0
            s.of[i].queued = 0
        s.slots = t.capacity
    if s.capacity <= s.below.size:
        grown = realloc(s.above, 2 * (<size_t> s.below.size + 4) * sizeof(uint32_t))
        if grown == NULL:
            return False
        s.above = <uint32_t*> grown
        s.capacity = 2 * (s.below.size + 4)
    return True

cdef inline void subkeys_enter(Subkeys* s, uint32_t above) noexcept nogil:
    """Have the list of a slot's subkeys in the table below."""
    cdef SlotTable* below = s.below
    cdef SubkeyList* here = &s.of[above]
    cdef SubkeyList* away
    if s.inside == above:
        return
    if s.inside != NO_SLOT:
        away = &s.of[s.inside]
        away.tail, away.count, away.queued = below.active_tail, below.active_count, below.queued
        below.withheld += away.queued
    below.active_tail, below.active_count, below.queued = here.tail, here.count, here.queued
    below.withheld -= here.queued
    s.inside = above

cdef inline void subkeys_choose(Subkeys* s, SlotTable* t, uint32_t above) noexcept nogil:
    """Have a slot's first entry be like the message that its subkeys serve next."""
    cdef Slot* slot = &t.slots[above]
    cdef const Slot* chosen
    if slot.head != NULL:
        subkeys_enter(s, above)
        chosen = &s.below.slots[slots_first(s.below)]
        if <int64_t> (chosen.pushed - chosen.served) != s.below.queued:
            chosen = &s.below.slots[dwrr_turn(s.below)]
        slot.head.token = chosen.head.token
        slot.head.cost = chosen.head.cost

cdef inline bint subkeys_push(Subkeys* s, SlotTable* t, uint32_t index, uint64_t token, int64_t cost) noexcept nogil:
    """Append a message to a subkey; False when memory is exhausted."""
    cdef uint32_t above = s.above[index]
    if not dwrr_reserve(s.below, 1) or not dwrr_push(t, above, token, cost):
        return False
    subkeys_enter(s, above)
    dwrr_push(s.below, index, token, cost)
    if s.below.slots[index].head == s.below.slots[index].tail and t.slots[above].head != t.slots[above].tail:
        subkeys_choose(s, t, above)
    return True

cdef inline void subkeys_pop(Subkeys* s, SlotTable* t, uint32_t above) noexcept nogil:
    """Serve the subkey whose message was popped from its slot just now."""
    cdef uint64_t token
    subkeys_enter(s, above)
    dwrr_pop(s.below, &token)
    subkeys_choose(s, t, above)
    # A search for idle slots finds idle subkeys first; a report of a slot that is not idle is allowed.
    if s.below.idle_count and not t.slots[above].flags & REPORTED:
        t.slots[above].flags |= REPORTED
        t.idle[t.idle_count] = above
        t.idle_count += 1

cdef inline bint subkeys_settle(Subkeys* s, SlotTable* t, uint32_t index, int64_t difference) noexcept nogil:
    """Charge a subkey and its slot `difference` more (less, when negative); False past the largest debt of either."""
    cdef uint32_t above = s.above[index]
    if s.below.slots[index].deficit - difference < -AMOUNT_MAX or not dwrr_settle(t, above, difference):
        return False
    subkeys_enter(s, above)
    dwrr_settle(s.below, index, difference)
    subkeys_choose(s, t, above)
    return True

cdef inline void subkeys_forgive(Subkeys* s, uint32_t above) noexcept nogil:
    """Let the subkeys of a slot without messages owe nothing: all of them are idle. O(those in debt)."""
    cdef SlotTable* below = s.below
    cdef uint32_t index, _i
    if above >= s.slots:
        return
    subkeys_enter(s, above)
    index = below.active_tail
    for _i in range(below.active_count):
        below.slots[index].deficit = max(below.slots[index].deficit, 0)
        index = below.slots[index].next
    dwrr_retire_empty(below)

cdef inline void subkeys_retire_empty(Subkeys* s) noexcept nogil:
    """Take every subkey that is empty and out of debt off its list. O(slots and active subkeys)."""
    cdef uint32_t above
    for above in range(s.slots):
        subkeys_enter(s, above)
        dwrr_retire_empty(s.below)

cdef inline uint32_t subkeys_list(Subkeys* s, uint32_t above, uint32_t* first) noexcept nogil:
    """Return how many subkeys of a slot take turns, and the first of them: the others follow by `next`."""
    if above >= s.slots:
        return 0
    subkeys_enter(s, above)
    if s.below.active_count:
        first[0] = s.below.slots[s.below.active_tail].next
    return s.below.active_count
