"""Anticipation: wait for a slot whose turn it is, and that is empty but backlogged upstream, before its turn passes.

A scheduler that is faster than its source finds most slots empty most of the time. To pass over them is work
conserving, but gives every slot what happened to arrive: the source's shares instead of the quanta's. So an empty slot
that is held (backlogged upstream) stays in the active list; during its turn the other slots wait.

* Whether. The wait continues while the slot's deficit covers another message of its mean cost; else its turn ends.
* How long. At most `patience` nanoseconds per turn, all waits of the turn together. Then the turn passes: the slot
  leaves the list, keeps its deficit as a held slot does, returns with its next message, and is not waited for again
  until its owner holds it again. So a slot that was held by mistake costs one wait, not one per round.
* When not. Patience 0 is plain DWRR, at no cost. There is no wait for a slot that is not held, or if nothing is queued.

Source: the idea is that of anticipatory disk scheduling (Iyer and Druschel, 2001), which waits for the next request
of a process that will make one soon. Thread safety: none; the caller synchronizes. Complexity: O(1). The caller passes
the time, in nanoseconds of any clock; it reads the clock only during a wait.
"""

from libc.stdint cimport int64_t

from fairsched.core.schedule.slots cimport (
    AWAITED_TURN, HELD, HELD_ONLY, NOT_AWAITED, TURN, Slot, SlotTable, slots_first,
)

cdef inline int64_t anticipation_cost(const Slot* slot) noexcept nogil:
    """Return the expected cost of the slot's next message: the mean of those before it."""
    return max(1, slot.work // <int64_t> slot.served) if slot.served else 1

cdef inline bint anticipation_keeps(const SlotTable* t, const Slot* slot) noexcept nogil:
    """Return whether a slot stays in the active list although it is empty."""
    return t.patience != 0 and slot.held == HELD

cdef inline bint anticipation_ends_turn(const SlotTable* t, const Slot* slot) noexcept nogil:
    """Return whether the turn of an empty slot is used up, so that the slot goes to the tail."""
    return anticipation_keeps(t, slot) and slot.deficit < anticipation_cost(slot)

cdef inline bint anticipation_awaits(const SlotTable* t, const Slot* slot) noexcept nogil:
    """Return whether the engine waits for an empty slot, whose turn it is."""
    return anticipation_keeps(t, slot) and (slot.granted == TURN or t.patience_left > 0)

cdef inline int64_t anticipation_left(SlotTable* t, int64_t now) noexcept nogil:
    """Nanoseconds for which the slot whose turn it is will still be waited for; 0: its turn has passed, pop again.

    To be called when a pop returned AWAITED_SLOT.
    """
    cdef Slot* slot = &t.slots[slots_first(t)]
    if slot.granted == TURN:  # the first wait of this turn
        slot.granted = AWAITED_TURN
        t.patience_left = t.patience
        t.awaited_since = now
    elif t.awaited_since == NOT_AWAITED or now < t.awaited_since:  # a clock that was set back begins anew
        t.awaited_since = now
    if now - t.awaited_since < t.patience_left:
        return t.patience_left - (now - t.awaited_since)
    t.patience_left = 0
    t.awaited_since = NOT_AWAITED
    slot.held = HELD_ONLY
    return 0

cdef inline void anticipation_end_wait(SlotTable* t, int64_t now) noexcept nogil:
    """Stop counting, because the slot has a message again; without it the rest of the turn counts as waited."""
    t.patience_left -= min(max(now - t.awaited_since, 0), t.patience_left)
    t.awaited_since = NOT_AWAITED

cdef inline void anticipation_set(SlotTable* t, int64_t patience) noexcept nogil:
    """Change the patience, from the next turn on; a shorter one holds for this turn too."""
    t.patience = patience
    t.patience_left = min(t.patience_left, patience)
