"""Outlook: the service that comes before a slot's first message, computed from the table without serving.

It assumes that nothing arrives, nothing is settled and no slot is waited for. In every round a slot is granted its
quantum once, so the number of turns until a slot's deficit covers its first message can be computed without walking
through messages or rounds.

Thread safety: none; the caller synchronizes. Nothing is changed. Complexity: O(active slots).
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.schedule.slots cimport NO_TURN, Slot, SlotTable, slots_first

cdef struct Outlook:
    int64_t turns     # of its own that pass before the one in which its first message is served
    uint32_t before   # other slots of which something is served before
    uint32_t others   # other slots that take turns: those with messages or debt, or awaited

cdef inline int64_t outlook_grants(const Slot* slot) noexcept nogil:
    """Quanta that a slot with messages lacks for the first of them."""
    cdef int64_t need = slot.head.cost - slot.deficit  # both are within 2**62
    return 0 if need <= 0 else (need - 1) // slot.quantum + 1

cdef inline void outlook_read(const SlotTable* t, uint32_t index, Outlook* found) noexcept nogil:
    """Look what stands before a slot that has messages."""
    cdef const Slot* slot = &t.slots[index]
    cdef uint32_t at = slots_first(t), _i
    # A turn under way has brought its quantum already.
    cdef int64_t turns = max(1, outlook_grants(slot) + (slot.granted != NO_TURN))
    found.turns = turns - 1
    found.before = 0
    found.others = t.active_count - 1
    for _i in range(t.active_count):
        slot = &t.slots[at]
        if at == index:
            turns -= 1  # a slot behind it in the round has one turn less
        elif slot.head != NULL and turns > 0 and outlook_grants(slot) <= turns - (slot.granted != NO_TURN):
            found.before += 1
        at = slot.next
