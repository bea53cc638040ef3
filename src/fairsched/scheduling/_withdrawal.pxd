"""The objects that a caller of `withdraw` wants back, and those of them that were queued.

core/schedule/withdrawal.pxd takes their entries out of the queue.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport malloc

from fairsched.core.schedule.withdrawal cimport Sought, sought_place, sought_sort


cdef inline list withdrawal_begin(Sought* sought, list wanted):
    """Seek the objects of a list; return a list of that size, since nothing may fail once entries are taken out.

    The caller frees `sought.tokens`. Nothing is allocated if this raises MemoryError.
    """
    cdef Py_ssize_t i, size = PyList_GET_SIZE(wanted)
    cdef list found = [None] * size
    sought.size = size
    sought.tokens = <uint64_t*> malloc((size + 1) * (sizeof(uint64_t) + 1))
    if sought.tokens == NULL:
        raise MemoryError()
    sought.found = <uint8_t*> (sought.tokens + size)
    for i in range(size):
        sought.tokens[i] = <uint64_t> <uintptr_t> <PyObject*> PyList_GET_ITEM(wanted, i)
    sought_sort(sought)
    return found


cdef inline void withdrawal_end(Sought* sought, list wanted, list found) noexcept:
    """Write the objects that were found into the list made for them, and cut it off behind the last.

    Each inherits the reference of its entry. Objects of one token are told apart by their number.
    """
    cdef Py_ssize_t i, size = 0
    cdef int64_t place
    cdef PyObject* item
    for i in range(PyList_GET_SIZE(wanted)):
        item = <PyObject*> PyList_GET_ITEM(wanted, i)
        place = sought_place(sought, <uint64_t> <uintptr_t> item, 1)
        if place >= 0:
            sought.found[place] = 2
            Py_DECREF(None)
            PyList_SET_ITEM(found, size, <object> item)
            size += 1
    del found[size:]
