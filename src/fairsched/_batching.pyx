"""Many items of a `FairQueue` at once: put, all or none of them, and taken out into lists.

Called with the queue's exclusion held. What may run Python code, as looking up a slot's name, comes first; slots that
were found are pinned, so that nobody forgets them meanwhile. Then all items move in one stretch.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched._core cimport slot_find, slot_pin, slot_unpin
from fairsched._fairqueue cimport FairQueue
from fairsched._fairwaiting cimport hand_room_over, has_room, wait_for_room
from fairsched.core.dwrr cimport dwrr_pop, dwrr_push, dwrr_reserve
from fairsched.core.slots cimport AWAITED_SLOT, NO_SLOT

cdef enum:
    NAME_CACHE = 16


cdef int store_many(
    FairQueue q, object slot, list names, list objects, const int64_t* costs, bint block, object timeout
) except -1:
    """Find the slots (`names`, or the one `slot`), wait for room, then push: no Python code runs from then on."""
    cdef Py_ssize_t i, size = len(objects), slots = 1 if names is None else size, found = 0
    cdef uint32_t remembered[NAME_CACHE]
    cdef uint32_t* indices = <uint32_t*> malloc(slots * sizeof(uint32_t))
    if indices == NULL:
        raise MemoryError()
    memset(remembered, 0xFF, sizeof(remembered))  # NO_SLOT
    try:
        while found < slots:
            if names is not None and found >= PyList_GET_SIZE(names):
                raise RuntimeError("the slots changed while they were looked up")
            indices[found] = find_pinned(
                q, slot if names is None else <object> PyList_GET_ITEM(names, found), remembered
            )
            found += 1
        if not has_room(q, size):
            wait_for_room(q, size, block, timeout)
        if PyList_GET_SIZE(objects) != size:
            raise RuntimeError("the items changed while their slots were looked up")
        if not dwrr_reserve(&q.table, size):
            raise MemoryError()
        for i in range(size):
            Py_INCREF(<object> PyList_GET_ITEM(objects, i))
            dwrr_push(
                &q.table, indices[0 if names is None else i], <uint64_t> <uintptr_t> PyList_GET_ITEM(objects, i),
                1 if costs == NULL else costs[i],
            )
    finally:
        for i in range(found):
            slot_unpin(q, indices[i])
        free(indices)
        if q.maxsize:
            hand_room_over(q)
        if q.table.idle_count:
            q.forget_idle()
    return 0


cdef inline uint32_t find_pinned(FairQueue q, object name, uint32_t* remembered) except? 0xFFFFFFFF:
    """Find, or add, a slot, which is not forgotten until it is unpinned; those found last are known by identity."""
    cdef uintptr_t identity = <uintptr_t> <PyObject*> name
    cdef uint32_t* last = &remembered[(identity >> 4) % NAME_CACHE]
    cdef int64_t hash
    cdef long index = last[0]
    if index == NO_SLOT or q.names.names[index].name != <void*> identity:  # pinned: the index is good
        index = slot_find(q, name, &hash)
        if index < 0:
            index = q.admit(name, hash)
        last[0] = index
    slot_pin(q, index)
    return index


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
