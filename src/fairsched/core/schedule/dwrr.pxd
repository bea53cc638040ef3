"""Deficit weighted round robin: whose turn it is, and what it may still serve.

Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin" (1995), and the article on fair
consuming that this project started from, corrected (an idle slot does not save up, an empty system does not spin).

The first slot of the active list has its turn: it is granted its quantum once, serves messages while their cost fits
in its deficit, and then goes to the tail; when it is empty, it leaves the list. Six extensions to the paper:

* Debt. A settlement may make a deficit negative. A slot in debt stays in the list, even when empty, until its turns
  have paid the debt: a tenant that always empties its slot cannot escape its debt.
* Hold. An empty slot loses its deficit, unless it is held (backlogged at the broker). Then it keeps at most
  quantum + the largest cost seen, so that shares do not flatten while the next delivery is in flight.
* Anticipation. With patience, a held slot stays in the list, and its next message is waited for; see anticipation.pxd.
* Skipped rounds. When a whole round served nothing (every head costs more than its slot's deficit), the rounds in which
  nothing can be served are granted at once. The order of service is that of the plain algorithm.
* Boost. If enabled, a slot that was empty for a round has its turn before the others; see sparse.pxd.
* Bands. With bands, all of this applies to one band at a time, whose list is in the table; see bands.pxd.

Bound: for two continuously backlogged slots |S_i/Q_i - S_j/Q_j| <= 1 + maxcost/Q_i + maxcost/Q_j.
Complexity: push O(1); pop O(1) when no message costs more than its slot's quantum, else O(active slots) for each
round that serves something. Thread safety: none; the caller synchronizes.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.memory cimport prefetch
from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.anticipation cimport (
    anticipation_awaits, anticipation_cost, anticipation_ends_turn, anticipation_keeps,
)
from fairsched.core.schedule.bands cimport bands_enter, bands_serve
from fairsched.core.schedule.entrypool cimport entrypool_reserve
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, AWAITED_SLOT, NO_SLOT, NOT_HELD, Slot, SlotTable, slots_activate, slots_append, slots_deactivate_after,
    slots_first, slots_report_idle, slots_unlink_head,
)
from fairsched.core.schedule.sparse cimport sparse_activate, sparse_boosts, sparse_end_turn

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define FAIRSCHED_ASIDE __attribute__((noinline, cold))
    #else
    #define FAIRSCHED_ASIDE
    #endif
    template <class Function, class... Arguments>
    FAIRSCHED_ASIDE static auto fairsched_aside(Function function, Arguments... arguments) {
        return function(arguments...);
    }
    """
    # Calls a function that is not to make the code around it larger.
    int aside "fairsched_aside"(int (*function)(SlotTable*, Slot*) noexcept nogil, SlotTable*, Slot*) noexcept nogil

cdef enum:
    TURN_OVER = 0
    AWAITED = 1
    RETIRED = 2

cdef inline int64_t dwrr_cap(const SlotTable* t, const Slot* slot) noexcept nogil:
    """The most deficit a slot may keep while it serves nothing."""
    return slot.quantum + min(t.max_cost, AMOUNT_MAX - slot.quantum)

cdef inline void dwrr_trim_deficit(const SlotTable* t, Slot* slot) noexcept nogil:
    """Idle and not held: no credit. Otherwise: no more than the cap."""
    cdef int64_t limit = 0 if slot.head == NULL and not slot.held else dwrr_cap(t, slot)
    if slot.deficit > limit:
        slot.deficit = limit

cdef inline void dwrr_charge(Slot* slot, int64_t cost) noexcept nogil:
    """Book `cost` (a refund, when negative). The total saturates; the caller has checked the deficit's range."""
    slot.deficit -= cost
    if cost < 0 and slot.work < -cost:
        slot.work = 0
    elif slot.work <= AMOUNT_MAX:
        slot.work += cost

cdef inline void dwrr_retire_first(SlotTable* t) noexcept nogil:
    """Take the first slot, empty and out of debt, off the active list."""
    cdef uint32_t index = slots_first(t)
    slots_deactivate_after(t, t.active_tail)
    dwrr_trim_deficit(t, &t.slots[index])
    slots_report_idle(t, index)

cdef inline void dwrr_retire_empty(SlotTable* t) noexcept nogil:
    """Take every slot that is empty and out of debt off the active list. O(active)."""
    cdef uint32_t before = t.active_tail, index, _i
    for _i in range(t.active_count):
        index = t.slots[before].next
        if t.slots[index].head == NULL and t.slots[index].deficit >= 0:
            slots_deactivate_after(t, before)
            dwrr_trim_deficit(t, &t.slots[index])
            slots_report_idle(t, index)
        else:
            before = index

cdef inline bint dwrr_reserve(SlotTable* t, int64_t count) noexcept nogil:
    """Make sure that the next `count` pushes succeed; False when memory is exhausted."""
    return entrypool_reserve(&t.pool, t.queued + t.withheld, count)

cdef inline bint dwrr_push(SlotTable* t, uint32_t index, uint64_t token, int64_t cost) noexcept nogil:
    """Append a message to a slot; False when memory is exhausted."""
    cdef bint done
    bands_enter(t, index)
    done = slots_append(t, index, token, cost)
    if done and cost > t.max_cost:
        t.max_cost = cost
    if done and not t.slots[index].active:
        if t.slots[index].flags & AT_LIMIT:
            t.queued -= 1
            t.withheld += 1
        elif sparse_boosts(t):
            aside(sparse_activate, t, &t.slots[index])
        else:
            slots_activate(t, index)
    bands_serve(t)
    return done

cdef inline int64_t dwrr_need(const Slot* slot) noexcept nogil:
    """Return what a slot's deficit lacks for its next message, present or anticipated, or for the end of its debt."""
    if slot.head != NULL:
        return slot.head.cost - slot.deficit
    if slot.deficit < 0:
        return -slot.deficit
    return anticipation_cost(slot) - slot.deficit

cdef inline void dwrr_skip_rounds(SlotTable* t) noexcept nogil:
    """Grant, at once, the rounds in which no active slot could serve or finish paying."""
    cdef uint32_t index = t.active_tail
    cdef uint32_t _i
    cdef int64_t need, rounds
    cdef int64_t skipped = AMOUNT_MAX
    cdef Slot* slot
    for _i in range(t.active_count):
        slot = &t.slots[index]
        need = dwrr_need(slot)
        rounds = (need - 1) // slot.quantum
        if rounds < skipped:
            skipped = rounds
        index = slot.next
    if skipped > 0:
        for _i in range(t.active_count):
            slot = &t.slots[index]
            slot.deficit += skipped * slot.quantum
            index = slot.next

cdef inline int dwrr_visit_empty(SlotTable* t, Slot* slot) noexcept nogil:
    """Visit an empty slot: its turn ends, or the engine waits for it, or it leaves the list."""
    if slot.deficit < 0 or anticipation_ends_turn(t, slot):
        return TURN_OVER
    if anticipation_awaits(t, slot):
        return AWAITED
    dwrr_retire_first(t)
    return RETIRED

cdef inline bint dwrr_grant(Slot* slot) noexcept nogil:
    """A slot's turn begins, or goes on: it is granted its quantum once, and True then."""
    if slot.granted:
        return False
    slot.granted = 1
    slot.deficit += slot.quantum
    return True

cdef inline void dwrr_end_turn(SlotTable* t, uint32_t index) noexcept nogil:
    """The first slot goes to the end."""
    t.slots[index].granted = 0
    t.active_tail = index
    if sparse_boosts(t):
        aside(sparse_end_turn, t, &t.slots[index])

cdef inline void dwrr_run_empty(SlotTable* t, uint32_t index) noexcept nogil:
    """The first slot was served its last message: it leaves the list, with boosts when a round brought none."""
    if sparse_boosts(t) and t.queued:
        dwrr_trim_deficit(t, &t.slots[index])
        dwrr_end_turn(t, index)
        return
    dwrr_retire_first(t)

cdef inline uint32_t dwrr_turn(SlotTable* t) noexcept nogil:
    """Rotate to the slot that may serve its head message now, or is awaited: AWAITED_SLOT. Needs queued > 0."""
    cdef uint32_t barren = 0  # turns in a row that served nothing
    cdef uint32_t index
    cdef Slot* slot
    cdef int what
    while True:
        index = slots_first(t)
        slot = &t.slots[index]
        if dwrr_grant(slot):
            prefetch(&t.slots[slot.next])
        if slot.head == NULL:
            what = aside(dwrr_visit_empty, t, slot)
            if what == AWAITED:
                return AWAITED_SLOT
            if what == RETIRED:
                barren = 0
                continue
        elif slot.head.cost <= slot.deficit:
            return index
        dwrr_end_turn(t, index)
        barren += 1
        if barren == t.active_count:
            dwrr_skip_rounds(t)
            barren = 0

cdef inline uint32_t dwrr_pop(SlotTable* t, uint64_t* token) noexcept nogil:
    """Serve one message; return its slot, NO_SLOT when nothing is queued, AWAITED_SLOT when a slot is waited for."""
    cdef uint32_t index
    cdef Slot* slot
    if t.queued == 0:
        return NO_SLOT
    index = dwrr_turn(t)
    if index == AWAITED_SLOT:
        return index
    slot = &t.slots[index]
    dwrr_charge(slot, slot.head.cost)
    token[0] = slots_unlink_head(t, slot)
    if slot.head == NULL:
        if not anticipation_keeps(t, slot):
            dwrr_run_empty(t, index)
        bands_serve(t)
    return index

cdef inline void dwrr_pay_by_turns(SlotTable* t, uint32_t index) noexcept nogil:
    """Have a slot in debt take turns, also while it is empty."""
    cdef Slot* slot = &t.slots[index]
    if slot.deficit < 0 and not slot.active and not slot.flags & AT_LIMIT:
        bands_enter(t, index)
        slots_activate(t, index)
        bands_serve(t)

cdef inline bint dwrr_settle(SlotTable* t, uint32_t index, int64_t difference) noexcept nogil:
    """Charge `difference` more (less, when negative) for what a slot was served; False past the largest debt."""
    cdef Slot* slot = &t.slots[index]
    if slot.deficit - difference < -AMOUNT_MAX:
        return False
    dwrr_charge(slot, difference)
    dwrr_trim_deficit(t, slot)
    dwrr_pay_by_turns(t, index)
    return True

cdef inline void dwrr_charge_elsewhere(SlotTable* t, uint32_t index, int64_t cost, int64_t most) noexcept nogil:
    """Charge a slot for what it was served elsewhere, up to a debt of `most`; one that wants nothing here goes free."""
    cdef Slot* slot = &t.slots[index]
    if slot.head == NULL and not slot.active and not slot.held:
        return
    slot.deficit = max(slot.deficit - cost, min(slot.deficit, -most))
    dwrr_pay_by_turns(t, index)

cdef inline void dwrr_set_quantum(SlotTable* t, uint32_t index, int64_t quantum) noexcept nogil:
    """Takes effect on the backlog at once: credit from the old quantum is cut to the new cap."""
    t.slots[index].quantum = quantum
    dwrr_trim_deficit(t, &t.slots[index])

cdef inline int dwrr_hold(SlotTable* t, uint32_t index, int state) noexcept nogil:
    """Say, by a HoldState, whether an empty slot is backlogged upstream, and awaited; return what was so before."""
    cdef Slot* slot = &t.slots[index]
    cdef int before = slot.held
    cdef bint released = before != NOT_HELD and state == NOT_HELD
    slot.held = state
    dwrr_trim_deficit(t, slot)
    if released and not slot.active:
        slots_report_idle(t, index)
    return before
