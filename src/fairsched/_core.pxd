"""A slot table with the names of its slots: the part that the engine's Python classes share."""

from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.dwrr cimport dwrr_settle
from fairsched.core.schedule.names cimport SlotName, SlotNames, slotnames_first
from fairsched.core.schedule.slots cimport NO_SLOT, Slot, SlotTable, slots_report_idle


cdef class NamedSlots:
    cdef SlotTable table
    cdef SlotNames names      # of the slots; the references are those of `name_of`
    cdef list name_of         # index -> name; None for an index not in use
    cdef int64_t removals     # slots removed so far: an index looked up before is good while this stands still
    cdef bint integer_names   # some slot's name is an integer

    cdef uint32_t add(self, object name, int64_t hash, int64_t quantum, bint transient) except? 0xFFFFFFFF
    cdef uint32_t add_new(self, object name, int64_t quantum) except? 0xFFFFFFFF
    cdef int check_idle(self) except -1
    cdef void forget(self, uint32_t index) noexcept
    cdef void forget_idle(self) noexcept
    cdef dict all_stats(self)


ctypedef int (*clear_t)(PyObject*) noexcept

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        clear_t tp_clear
    Py_hash_t PyObject_Hash(object name) except? -1


# `SlotStats` of a copy of a slot.
cdef object slot_figures(const Slot* slot)


# The collector is about to let go of the names.
cdef void slots_disown(NamedSlots slots) noexcept


# Make sure that another slot can be added, with or without a name.
cdef int slots_make_room(NamedSlots slots) except -1


# Compares with the names that have this hash; -1: none is equal, -2: a comparison raised.
cdef long slot_search(NamedSlots slots, object name, int64_t hash) except -2


cdef inline long slot_find(NamedSlots slots, object name, int64_t* hash) except -2:
    """Index of a slot by name, or -1; and the name's hash, for `add`.

    Hashing and comparing names may run Python code, which may use these slots; what is returned is so at the moment of
    the return. What is done about it has to be done before anything else can run. Complexity O(1).
    """
    cdef uint32_t index
    cdef SlotName* known
    hash[0] = PyObject_Hash(name)
    index = slotnames_first(&slots.names, hash[0])
    while index != NO_SLOT:
        known = &slots.names.names[index]
        if known.name == <void*> <PyObject*> name:
            return index
        if known.hash == hash[0]:
            return slot_search(slots, name, hash[0])
        index = known.next
    return -1


cdef inline void slot_pin(NamedSlots slots, uint32_t index) noexcept:
    """Keep a slot from being forgotten, so that its index stays good while Python code may run."""
    slots.names.names[index].pins += 1


cdef inline void slot_unpin(NamedSlots slots, uint32_t index) noexcept:
    """Undo slot_pin. Runs no Python code: a slot that is idle is forgotten by the next forget_idle."""
    slots.names.names[index].pins -= 1
    slots_report_idle(&slots.table, index)


# Inline, as each module has its own rounds: those of a FairQueue have bands; see bands.pxd.
cdef inline int slot_settle(NamedSlots slots, uint32_t index, int64_t difference) except -1:
    """Charge a slot more, or less, for what it was served."""
    if not dwrr_settle(&slots.table, index, difference):
        name = <object> PyList_GET_ITEM(slots.name_of, index)
        raise OverflowError(f"cost difference {difference} would take the debt of slot {name!r} past {AMOUNT_MAX}")
    return 0
