"""What the engine's faces share: a slot table and the names of its slots."""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from fairsched.core.slots cimport SlotTable


cdef class NamedSlots:
    cdef SlotTable table
    cdef dict index_of        # name -> index
    cdef list name_of         # index -> name; None for an index not in use
    cdef int64_t removals     # slots removed so far: an index looked up before is good while this stands still
    cdef bint integer_names   # some slot's name is an integer

    cdef uint32_t add(self, object name, int64_t quantum, bint transient) except? 0xFFFFFFFF
    cdef int forget(self, uint32_t index) except -1
    cdef int settle_index(self, uint32_t index, int64_t difference) except -1
    cdef dict all_stats(self)


cdef inline long slot_find(NamedSlots slots, object name) except -2:
    """Index of a slot by name, or -1. Complexity O(1): one dictionary look-up."""
    cdef PyObject* found = PyDict_GetItemWithError(slots.index_of, name)
    cdef long index = -1
    if found != NULL:
        index = <object> found
    return index
