"""The memory of arrays, and of octets.

A typed memoryview would do, at several thousand generated lines for each module with one.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t


cdef inline void* array_data(object array) except? NULL:
    """The address of a contiguous array's values. The caller knows their type, and keeps the array meanwhile.

    The memory is the array's own, so it stays where it is without a view of it.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf


cdef inline bytes part(const uint8_t* start, int64_t begin, int64_t end):
    """A copy of the octets from `begin` to `end`."""
    return PyBytes_FromStringAndSize(<const char*> start + begin, end - begin)
