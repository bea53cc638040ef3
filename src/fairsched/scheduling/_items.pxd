"""The objects queued in a fair queue: the references that its entries own.

The token of an entry is a pointer to the queued object, and the entry owns one reference to it. With subkeys, the entry
of the subkey owns the reference, and the entry of the slot owns none.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from fairsched.core.schedule.bands cimport bands_enter, bands_exchange
from fairsched.core.schedule.branches cimport branches_drop_counts
from fairsched.core.schedule.dwrr cimport dwrr_retire_empty
from fairsched.core.schedule.entrypool cimport Entry, EntryPool, entrypool_clear, entrypool_init
from fairsched.core.schedule.slots cimport AT_LIMIT, Slot, SlotTable
from fairsched.core.schedule.subkeys cimport Subkeys, subkeys_enter, subkeys_retire_empty


@cython.linetrace(False)
@cython.profile(False)
cdef inline int items_visit(SlotTable* table, Subkeys* levels, visitproc visit, void* arg) noexcept:
    """Show the owned references to the garbage collector, as a traverse function does."""
    cdef SlotTable* owner = table if levels.below == NULL else levels.below
    cdef Entry* entry
    cdef uint32_t i
    cdef int stop
    for i in range(owner.size):
        entry = owner.slots[i].head if owner.slots[i].quantum else NULL
        while entry != NULL:
            stop = visit(<PyObject*> <uintptr_t> entry.token, arg)
            if stop:
                return stop
            entry = entry.next
    return 0


cdef inline list items_list(SlotTable* table, Subkeys* levels):
    """Return the queued items, all of one moment."""
    cdef SlotTable* owner = table if levels.below == NULL else levels.below
    cdef list found = None
    cdef Entry* entry
    cdef Py_ssize_t size = -1
    cdef uint32_t i
    while found is None or size != table.queued + table.withheld:
        size = <Py_ssize_t> (table.queued + table.withheld)
        found = PyList_New(size)  # may run Python code, which may put and get
    size = 0
    for i in range(owner.size):
        entry = owner.slots[i].head if owner.slots[i].quantum else NULL
        while entry != NULL:
            item = <object> <PyObject*> <uintptr_t> entry.token
            Py_INCREF(item)
            PyList_SET_ITEM(found, size, item)
            size += 1
            entry = entry.next
    return found


cdef inline void items_drop(SlotTable* table, Subkeys* levels) noexcept:
    """Remove every item, unserved, then release them: their finalizers may use the queue. Needs no memory."""
    cdef SlotTable* below = levels.below
    cdef Entry* upper = NULL
    cdef Entry* lower = NULL
    cdef Entry** last = &upper
    cdef EntryPool above_pool
    cdef Slot* slot
    cdef uint32_t i
    if table.branches != NULL:
        branches_drop_counts(table)
    for i in range(table.size):
        slot = &table.slots[i]
        bands_enter(table, i)
        if slot.quantum and slot.flags & AT_LIMIT:
            table.queued += <int64_t> (slot.pushed - slot.served)
            table.withheld -= <int64_t> (slot.pushed - slot.served)
        last = drop_from(table, slot, last)
    dwrr_retire_empty(table)
    for i in range(table.bands.count if table.bands != NULL else 0):
        bands_exchange(table, i)
        dwrr_retire_empty(table)
    if below == NULL:
        release_items(&table.pool, upper)
        return
    # The entries of the slots own nothing: each stands for an entry of a subkey.
    above_pool = table.pool
    entrypool_init(&table.pool)
    entrypool_clear(&above_pool)
    last = &lower
    for i in range(below.size):
        if below.slots[i].quantum:
            subkeys_enter(levels, levels.above[i])
            last = drop_from(below, &below.slots[i], last)
    subkeys_retire_empty(levels)
    release_items(&below.pool, lower)


cdef inline Entry** drop_from(SlotTable* table, Slot* slot, Entry** last) noexcept:
    """Move the entries of a slot to the end of a chain, as if they had never been put; return the new end."""
    cdef Entry* entry
    while slot.quantum and slot.head != NULL:
        entry = slot.head
        slot.head = entry.next
        slot.pushed -= 1
        table.queued -= 1
        last[0] = entry
        last = &entry.next
        last[0] = NULL
    return last


cdef inline void release_items(EntryPool* pool, Entry* entry) noexcept:
    """Release the items of a chain that has all used entries of the pool.

    The pool is emptied first: finalizers may use the queue, which frees memory when it runs empty.
    """
    cdef EntryPool aside = pool[0]
    entrypool_init(pool)
    while entry != NULL:
        item = <object> <PyObject*> <uintptr_t> entry.token
        Py_DECREF(item)
        item = None
        entry = entry.next
    entrypool_clear(&aside)


cdef inline object nth(object one, list each, Py_ssize_t place, str what):
    """Return the name that is given for one item, or for all."""
    if each is None:
        return one
    if place >= PyList_GET_SIZE(each):
        raise RuntimeError(f"the {what} changed while they were looked up")
    return <object> PyList_GET_ITEM(each, place)
