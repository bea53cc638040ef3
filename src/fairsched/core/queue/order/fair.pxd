"""The order of service of a fair queue: slots served by deficit weighted round robin (schedule/dwrr.pxd).

A slot's FIFO holds exactly its messages that are available, so nothing that was taken another way is ever met. A
message is acquired in its slot's turn, by any consumer (turn.pxd: by one that may not have every message), and charged
its size, or 1, each time: a delivery that fails has cost the consumers as much. A message that leaves without service
is not charged.

Thread safety: none; the caller synchronizes. Complexity: in turn O(1), as in schedule/dwrr.pxd; from the middle of a
slot, or back into it, O(the slot's messages before it).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from fairsched.core.queue.message cimport Message
from fairsched.core.schedule.dwrr cimport dwrr_charge, dwrr_push, dwrr_retire_first, dwrr_turn
from fairsched.core.schedule.entrypool cimport Entry, entrypool_give, entrypool_take
from fairsched.core.schedule.slots cimport Slot, SlotTable, slots_activate, slots_unlink_head

cdef inline int64_t fair_cost(const Message* m) noexcept nogil:
    return m.size if m.size > 0 else 1

cdef inline Message* fair_message(const Entry* entry) noexcept nogil:
    return <Message*> <uintptr_t> entry.token

cdef inline Message* fair_first(SlotTable* t) noexcept nogil:
    """Return the message whose turn it is, or NULL. Grants quanta, so the caller must take the message."""
    if t.queued == 0:
        return NULL
    return fair_message(t.slots[dwrr_turn(t)].head)

cdef inline Message* fair_look(const SlotTable* t) noexcept nogil:
    """Some message that is available; NULL: there is none. Nothing is granted."""
    cdef uint32_t index = t.active_tail
    if t.queued == 0:
        return NULL
    index = t.slots[index].next
    while t.slots[index].head == NULL:
        index = t.slots[index].next
    return fair_message(t.slots[index].head)

cdef inline bint fair_insert(SlotTable* t, Message* m) noexcept nogil:
    """Put a message into its slot, where it belongs by arrival; False when memory is exhausted."""
    cdef Slot* slot = &t.slots[m.slot]
    cdef Entry** link = &slot.head
    cdef Entry* entry
    if slot.head == NULL or fair_message(slot.tail).sequence < m.sequence:
        return dwrr_push(t, m.slot, <uint64_t> <uintptr_t> m, fair_cost(m))
    entry = entrypool_take(&t.pool)
    if entry == NULL:
        return False
    while fair_message(link[0]).sequence < m.sequence:
        link = &link[0].next
    entry.token = <uint64_t> <uintptr_t> m
    entry.cost = fair_cost(m)
    entry.next = link[0]
    link[0] = entry
    slot.pushed += 1
    t.queued += 1
    if not slot.active:
        slots_activate(t, m.slot)
    return True

cdef inline void fair_unlink(SlotTable* t, Slot* slot, Message* m) noexcept nogil:
    """Take a message out of the middle of its slot, if it is there."""
    cdef Entry* before = NULL
    cdef Entry* entry = slot.head
    while entry != NULL and fair_message(entry) != m:
        before = entry
        entry = entry.next
    if entry == NULL:
        return
    if entry == slot.head:
        slots_unlink_head(t, slot)
        return
    before.next = entry.next
    if slot.tail == entry:
        slot.tail = before
    slot.served += 1
    t.queued -= 1
    entrypool_give(&t.pool, entry)

cdef inline void fair_take(SlotTable* t, Message* m, bint served) noexcept nogil:
    """Take a message out of its slot: acquired, as its turn has come, or else gone without service."""
    cdef Slot* slot = &t.slots[m.slot]
    fair_unlink(t, slot, m)
    if served:
        dwrr_charge(slot, fair_cost(m))
        if slot.head == NULL:
            dwrr_retire_first(t)
