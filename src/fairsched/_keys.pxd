"""What faces need to take keys: the hash of one, columns of many, and a function that places a block of hashes."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fairsched.core.keycolumn cimport KeyColumn
from fairsched.core.xxh64 cimport xxh64

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o) noexcept
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL

# Places a block of hashes, `where` being a ring or a number of buckets.
ctypedef void (*Place)(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil

cdef class Column:
    cdef KeyColumn keys
    cdef Column dictionary  # the keys are indices into it
    cdef object owner       # keeps the memory

cdef uint64_t as_seed(object seed) except? 0
cdef int hash_other(object key, uint64_t seed, bint raw, uint64_t* out) except -1
cdef list columns_of(object keys, uint64_t seed, bint raw)
cdef object place_all(list columns, uint64_t seed, bint raw, Place place, const void* where)
cdef object hashes_of(Column column, uint64_t seed)


cdef inline int hash_key(object key, uint64_t seed, bint raw, uint64_t* out) except -1:
    """Hash one key; `raw` leaves an integer as it is."""
    cdef Py_ssize_t size
    cdef const char* text
    if PyUnicode_CheckExact(key):
        text = PyUnicode_AsUTF8AndSize(key, &size)
        out[0] = xxh64(<const uint8_t*> text, size, seed)
        return 0
    return hash_other(key, seed, raw, out)
