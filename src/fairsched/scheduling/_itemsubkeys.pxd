"""Subkeys of the slots of a fair queue: how they come and go, what is queued in each, and what one is charged.

The subkeys are the slots of a table of their own; see core/schedule/subkeys.pxd. Called with the queue's exclusion
held.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched._core cimport NamedSlots, slot_find, slot_pin, slot_unpin
from fairsched.core.schedule.branches cimport branches_settle
from fairsched.core.schedule.dwrr cimport dwrr_settle
from fairsched.core.schedule.slots cimport NO_SLOT, Slot, SlotTable, slots_report_idle, slots_take_idle
from fairsched.core.schedule.subkeys cimport (
    Subkeys, subkeys_forgive, subkeys_list, subkeys_reserve, subkeys_settle,
)


cdef inline uint32_t add_subkey(
    NamedSlots slots, NamedSlots below, Subkeys* levels, uint32_t above, int64_t quantum, tuple pair, int64_t hash
) except? 0xFFFFFFFF:
    """Add a subkey that slot_find has just not found. Runs no Python code before the subkey is in the table.

    While a subkey exists, its slot is pinned, so that the slot's index stays good.
    """
    cdef uint32_t index
    if not subkeys_reserve(levels, &slots.table):
        raise MemoryError()
    index = below.add(pair, hash, quantum, True)
    levels.above[index] = above
    slot_pin(slots, above)
    return index


cdef inline void forget_idle_subkeys(NamedSlots slots, NamedSlots below, Subkeys* levels) noexcept:
    """Forget the subkeys and the transient slots that are idle at this moment."""
    cdef uint32_t index
    while True:
        index = slots_take_idle(&below.table)
        if index != NO_SLOT:
            if below.names.names[index].pins == 0:
                slot_unpin(slots, levels.above[index])
                below.forget(index)
            continue
        index = slots_take_idle(&slots.table)
        if index == NO_SLOT:
            return
        if slots.names.names[index].pins == 0:
            slots.forget(index)
        else:  # its subkeys have debts, or a call has pinned it; the last of them reports it again
            subkeys_forgive(levels, index)


cdef inline dict queued_by_subkey(NamedSlots slots, NamedSlots below, Subkeys* levels, object slot):
    """Return the number of items queued by subkey of a slot, all of one moment; `below` are the subkeys."""
    cdef list names = None
    cdef int64_t* queued
    cdef Slot* subkey
    cdef int64_t hash
    cdef long above
    cdef uint32_t index = NO_SLOT, size = 0, i
    cdef dict figures = {}
    while True:
        above = slot_find(slots, slot, &hash)
        size = 0 if above < 0 else subkeys_list(levels, above, &index)
        if names is not None and PyList_GET_SIZE(names) == size:
            break
        names = PyList_New(size)  # may run Python code, which may add subkeys
    queued = <int64_t*> malloc(size * sizeof(int64_t))
    if queued == NULL and size:
        raise MemoryError()
    for i in range(size):
        subkey = &below.table.slots[index]
        queued[i] = <int64_t> (subkey.pushed - subkey.served)
        Py_INCREF(<object> PyList_GET_ITEM(below.name_of, index))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(below.name_of, index))
        index = subkey.next
    try:
        for i in range(size):
            if queued[i]:
                figures[names[i][1]] = queued[i]
    finally:
        free(queued)
    return figures


cdef inline bint settle_lowest(SlotTable* table, Subkeys* levels, uint32_t index, int64_t difference) noexcept:
    """Correct the cost charged to a slot, or to a subkey and its slot; False past the largest debt. Runs no Python."""
    cdef bint done
    if table.branches != NULL:
        done = branches_settle(table, index, difference)
    elif levels.below == NULL:
        done = dwrr_settle(table, index, difference)
    else:
        done = subkeys_settle(levels, table, index, difference)
        slots_report_idle(levels.below, index)
        index = levels.above[index]
    slots_report_idle(table, index)
    return done
