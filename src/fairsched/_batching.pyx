"""Many items of a `FairQueue` at once: put, all or none of them, and taken out into lists.

Called with the queue's exclusion held. What may run Python code, as looking up a slot's name, comes first; then all
items move, and none does meanwhile.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched._core cimport slot_find
from fairsched._fairqueue cimport FairQueue
from fairsched.core.dwrr cimport dwrr_pop, dwrr_push, dwrr_reserve
from fairsched.core.slots cimport AWAITED_SLOT, Slot

cdef enum:
    NAME_CACHE = 16


cdef int store_many(FairQueue q, object slot, list names, list objects, const int64_t* costs) except -1:
    """Find the slots, then push: no Python code runs between the two."""
    cdef Py_ssize_t i, size = len(objects)
    cdef int32_t* indices = <int32_t*> malloc(size * sizeof(int32_t))
    if indices == NULL:
        raise MemoryError()
    try:
        find_many(q, [slot] * size if names is None else names, indices, size)
        if len(objects) != size:
            raise RuntimeError("the items changed while their slots were looked up")
        if not dwrr_reserve(&q.table, size):
            raise MemoryError()
        for i in range(size):
            Py_INCREF(<object> PyList_GET_ITEM(objects, i))
            dwrr_push(
                &q.table, indices[i], <uint64_t> <uintptr_t> PyList_GET_ITEM(objects, i),
                1 if costs == NULL else costs[i],
            )
    except BaseException:
        forget_unused(q, indices, size)
        raise
    finally:
        free(indices)
    return 0


cdef int find_many(FairQueue q, list names, int32_t* indices, Py_ssize_t size) except -1:
    """Find, or admit, the slot of every name. The last few names are remembered by identity."""
    cdef void* remembered[NAME_CACHE]
    cdef int32_t remembered_index[NAME_CACHE]
    cdef int64_t removals = q.removals
    cdef Py_ssize_t i
    cdef uintptr_t identity
    cdef long index
    for i in range(size):
        indices[i] = -1
    memset(remembered, 0, sizeof(remembered))
    for i in range(size):
        if i >= len(names):
            raise RuntimeError("the slots changed while they were looked up")
        name = <object> PyList_GET_ITEM(names, i)
        identity = <uintptr_t> <PyObject*> name
        if remembered[(identity >> 4) % NAME_CACHE] == <void*> identity:
            indices[i] = remembered_index[(identity >> 4) % NAME_CACHE]
            continue
        index = slot_find(q, name)
        if index < 0:
            index = q.admit(name)
        indices[i] = index
        if PyUnicode_CheckExact(name) or PyLong_CheckExact(name):
            remembered[(identity >> 4) % NAME_CACHE] = <void*> identity
            remembered_index[(identity >> 4) % NAME_CACHE] = index
        else:  # looking it up may have run Python code, and freed what was remembered
            memset(remembered, 0, sizeof(remembered))
    if q.removals != removals:  # a name's own __eq__ used this queue meanwhile: look again
        return find_many(q, names, indices, size)
    return 0


cdef int forget_unused(FairQueue q, const int32_t* indices, Py_ssize_t size) except -1:
    """Forget the transient slots of a failed batch that have nothing in them."""
    cdef Py_ssize_t i
    cdef Slot* slot
    for i in range(size):
        if indices[i] < 0:
            break
        slot = &q.table.slots[indices[i]]
        if slot.quantum and slot.transient and not slot.active and not slot.held:
            q.forget(indices[i])
    return 0


cdef int64_t take_many(FairQueue q, list names, list items, int64_t size) noexcept:
    """Serve up to `size` items into new lists and return how many: no Python code runs in here."""
    cdef uint64_t token = 0
    cdef uint32_t index
    cdef int64_t i, taken = 0
    for i in range(size):
        index = dwrr_pop(&q.table, &token)
        if index >= AWAITED_SLOT:
            Py_INCREF(None)
            PyList_SET_ITEM(names, i, None)
            Py_INCREF(None)
            PyList_SET_ITEM(items, i, None)
            continue
        taken += 1
        Py_INCREF(<object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(items, i, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
    return taken
