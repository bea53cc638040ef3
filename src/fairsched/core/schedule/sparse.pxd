"""The sparse-slot boost: a slot that was empty for a round, and gets a message, has its next turn first.

Plain round robin puts a slot that becomes active at the tail: a sender of occasional messages waits for a turn of each
slot that is always backlogged. Here such a slot is new: it goes before all slots that are not new and behind those
that are, and has one turn there. Then it goes to the tail, like every slot after its turn. An interrupted turn
continues.

* Once per round. A slot that becomes empty stays in the list for a round, and is new again only if it is still empty
  after that. So it is ahead of its share by at most one turn, not by one in each round.
* Starvation. In any time, at most MOST_BOOSTS slots more become new than turns of others end; all others go to the
  tail. So what the plain algorithm serves within n turns is served within 2 n + MOST_BOOSTS, for any number of slots.
* While a slot is waited for (anticipation.pxd), no other goes before it.
* A slot that returns from its limit, or changes its band, is not new.

Bound: for a slot that is always backlogged, and any other, S_other/Q_other - S/Q <= 2 + maxcost/Q_other + maxcost/Q:
one quantum more than without. Two that are always backlogged have the bound of dwrr.pxd.

Source: the new and old queues of FQ-CoDel, RFC 8290, section 4.2, in one list. There, the bound on boosts is the number
of its hash buckets; slots have none. Thread safety: none; the caller synchronizes. Complexity: O(1).

Only a module that defines FAIRSCHED_SPARSE as 1 has any of this compiled into its rounds; elsewhere it costs nothing.
"""

from libc.stdint cimport uint32_t

from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.slots cimport (
    AWAITED_TURN, NEW, NO_SLOT, Slot, SlotTable, slots_activate, slots_first, slots_insert_after,
)

cdef extern from *:
    """
    #if !defined(FAIRSCHED_SPARSE)
    #define FAIRSCHED_SPARSE 0
    #endif
    """
    const bint SPARSE "FAIRSCHED_SPARSE"

cdef enum:
    MOST_BOOSTS = 16

cdef inline bint sparse_boosts(const SlotTable* t) noexcept nogil:
    """Return whether slots of this table may become new."""
    return SPARSE and rarely(t.sparse)

cdef inline int sparse_activate(SlotTable* t, Slot* slot) noexcept nogil:
    """Put a slot that has just got a message into the active list; whether it is new there."""
    cdef uint32_t newest = t.newest, index = <uint32_t> (slot - t.slots)
    if (
        t.active_count == 0 or t.boosts == MOST_BOOSTS
        or (newest == NO_SLOT and t.slots[slots_first(t)].granted == AWAITED_TURN)
    ):
        slots_activate(t, index)
        return 0
    t.boosts += 1
    slots_insert_after(t, t.active_tail if newest == NO_SLOT else newest, index)
    if newest != NO_SLOT and newest == t.active_tail:  # all are new
        t.active_tail = index
    slot.flags |= NEW
    t.newest = index
    return 1

cdef inline int sparse_end_turn(SlotTable* t, Slot* slot) noexcept nogil:
    """Note that the first slot's turn is over: it is not new any more, or others may be."""
    if not slot.flags & NEW:
        t.boosts -= t.boosts != 0
        return 0
    slot.flags &= ~NEW
    if t.newest == <uint32_t> (slot - t.slots):
        t.newest = NO_SLOT
    return 0
