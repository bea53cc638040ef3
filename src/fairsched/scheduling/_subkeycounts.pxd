"""The number of items queued in each subkey of a slot."""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched._core cimport NamedSlots, slot_find
from fairsched.core.schedule.slots cimport NO_SLOT, Slot
from fairsched.core.schedule.subkeys cimport Subkeys, subkeys_list


cdef inline dict queued_by_subkey(NamedSlots slots, NamedSlots below, Subkeys* levels, object slot):
    """Return the number of items queued by subkey of a slot, all of one moment.

    Called with the exclusion of the queue held, which has these slots, and `below` as its subkeys.
    """
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
