"""A fair queue's order of service for a consumer that may not have everything: slots without anything for it are
passed over, and the others take turns as in dwrr.pxd, each with its first message for this consumer in front.

What a consumer does not want is noted in the message (as rejected by it), filters' refusals too, since there is no
cursor that could go past it: the order of service is not the order of arrival.

Thread safety: none; the owner excludes. Complexity: O(slots with messages, and what stands in them before the first
that is wanted) for each round.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.dwrr cimport AMOUNT_MAX, dwrr_retire_first
from fairsched.core.entrypool cimport Entry
from fairsched.core.groups cimport Groups, groups_allow
from fairsched.core.message cimport Message, message_rejected
from fairsched.core.orderfair cimport fair_cost, fair_message
from fairsched.core.slots cimport Slot, SlotTable, slots_first

cdef inline Message* fair_wanted(const Slot* slot, Groups* g, uint64_t consumer) noexcept nogil:
    """The first message of a slot that a consumer may have; NULL: there is none."""
    cdef Entry* entry = slot.head
    while entry != NULL:
        if not message_rejected(fair_message(entry), consumer) and groups_allow(g, fair_message(entry), consumer):
            return fair_message(entry)
        entry = entry.next
    return NULL

cdef inline Message* fair_look_for(const SlotTable* t, Groups* g, uint64_t consumer) noexcept nogil:
    """Some message that a consumer may have; NULL: there is none. Nothing is granted."""
    cdef uint32_t index = t.active_tail
    cdef uint32_t _i
    cdef Message* m
    for _i in range(t.active_count):
        index = t.slots[index].next
        m = fair_wanted(&t.slots[index], g, consumer)
        if m != NULL:
            return m
    return NULL

cdef inline void fair_skip_rounds_for(SlotTable* t, Groups* g, uint64_t consumer) noexcept nogil:
    """Grant, at once, the rounds in which no slot could serve this consumer or finish paying."""
    cdef uint32_t index = t.active_tail
    cdef uint32_t _i
    cdef int64_t need, skipped = AMOUNT_MAX
    cdef Message* m
    cdef Slot* slot
    for _i in range(t.active_count):
        slot = &t.slots[index]
        m = fair_wanted(slot, g, consumer)
        if m != NULL or slot.head == NULL:
            need = -slot.deficit if m == NULL else fair_cost(m) - slot.deficit
            skipped = min(skipped, (need - 1) // slot.quantum)
        index = slot.next
    for _i in range(t.active_count):
        slot = &t.slots[index]
        if skipped > 0 and (slot.head == NULL or fair_wanted(slot, g, consumer) != NULL):
            slot.deficit += skipped * slot.quantum
        index = slot.next

cdef inline Message* fair_turn_for(SlotTable* t, Groups* g, uint64_t consumer) noexcept nogil:
    """The message whose turn it is, of those that a consumer may have; NULL: there is none."""
    cdef uint32_t index, barren = 0
    cdef Slot* slot
    cdef Message* m
    if fair_look_for(t, g, consumer) == NULL:
        return NULL
    while True:
        index = slots_first(t)
        slot = &t.slots[index]
        m = fair_wanted(slot, g, consumer)
        if slot.head == NULL or m != NULL:
            if not slot.granted:
                slot.granted = 1
                slot.deficit += slot.quantum
            if slot.head == NULL and slot.deficit >= 0:
                dwrr_retire_first(t)
                barren = 0
                continue
            if m != NULL and fair_cost(m) <= slot.deficit:
                return m
        slot.granted = 0
        t.active_tail = index
        barren += 1
        if barren == t.active_count:
            fair_skip_rounds_for(t, g, consumer)
            barren = 0
