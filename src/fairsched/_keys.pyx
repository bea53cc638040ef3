"""Keys in whatever form Python has them: one by one with the GIL, or as columns in somebody's memory without it."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fairsched.core.arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema, arrow_column
from fairsched.core.keycolumn cimport (
    KEYS_HASHED, KEYS_PADDED, KEYS_SIGNED, KEYS_UNSIGNED, KeyColumn, keycolumn_hash, keycolumn_integer,
    keycolumn_valid,
)
from fairsched.core.xxh64 cimport xxh64, xxh64_integer

import numpy as np

cdef extern from "Python.h":
    bint PyBytes_CheckExact(object o) noexcept
    bint PyLong_CheckExact(object o) noexcept
    int64_t PyLong_AsLongLongAndOverflow(object o, int* overflow) except? -1
    uint64_t PyLong_AsUnsignedLongLong(object o) except? 0xFFFFFFFFFFFFFFFF

cdef enum:
    BLOCK = 1024


# One key -------------------------------------------------------------------------------------------------------------


cdef int integer_word(object key, uint64_t* word) except -1:
    """The 64 bits of an integer."""
    cdef int overflow = 0
    cdef int64_t small = PyLong_AsLongLongAndOverflow(key, &overflow)
    if overflow == 0:
        word[0] = <uint64_t> small
    elif overflow > 0 and key <= 0xFFFFFFFFFFFFFFFF:
        word[0] = PyLong_AsUnsignedLongLong(key)
    else:
        raise OverflowError(f"an integer key must lie in -2**63 to 2**64 - 1, got {key!r}")
    return 0


cdef int hash_other(object key, uint64_t seed, bint raw, uint64_t* out) except -1:
    """Hash what is no plain str."""
    cdef const uint8_t[::1] view
    if key is None:
        out[0] = seed
    elif PyBytes_CheckExact(key):
        out[0] = xxh64(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), seed)
    elif isinstance(key, (bytes, bytearray, memoryview)):
        view = memoryview(key).cast("B")
        out[0] = xxh64(&view[0] if view.shape[0] else NULL, view.shape[0], seed)
    elif isinstance(key, str):
        return hash_key(str.__str__(key), seed, raw, out)
    elif not isinstance(key, (bool, np.bool_)) and hasattr(type(key), "__index__"):
        integer_word(key if PyLong_CheckExact(key) else key.__index__(), out)
        if not raw:
            out[0] = xxh64_integer(out[0], seed)
    else:
        raise TypeError(f"a key must be str, bytes, int or None, got {key!r}")
    return 0


cdef uint64_t as_seed(object seed) except? 0:
    """Convert a seed."""
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    if not 0 <= seed <= 0xFFFFFFFFFFFFFFFF:
        raise OverflowError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return seed


# Many keys -----------------------------------------------------------------------------------------------------------


@cython.final
cdef class Chunk:
    """One array out of an Arrow stream, released with this object."""

    cdef ArrowArray array

    def __cinit__(self):
        self.array.release = NULL

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


@cython.final
cdef class StreamSchema:
    """The schema of an Arrow stream, released with this object."""

    cdef ArrowSchema schema

    def __cinit__(self):
        self.schema.release = NULL

    def __dealloc__(self):
        if self.schema.release != NULL:
            self.schema.release(&self.schema)


@cython.final
cdef class Column:
    """A column of keys in somebody's memory, and what keeps that memory."""


cdef Column arrow_view(const ArrowSchema* schema, const ArrowArray* array, object owner):
    """See an Arrow array as a column."""
    cdef Column column = Column()
    if not arrow_column(schema, array, &column.keys):
        raise TypeError(f"keys must be strings, binaries or integers, got the Arrow type {schema.format.decode()!r}")
    column.owner = owner
    if schema.dictionary != NULL:
        column.dictionary = arrow_view(schema.dictionary, array.dictionary, owner)
    return column


cdef list stream_columns(object capsule):
    """See the chunks of an Arrow stream as columns."""
    cdef ArrowArrayStream* stream = <ArrowArrayStream*> PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef StreamSchema schema = StreamSchema()
    cdef Chunk chunk
    columns = []
    if stream.get_schema(stream, &schema.schema):
        raise ValueError(f"the Arrow stream has no schema: {stream_error(stream)}")
    while True:
        chunk = Chunk()
        if stream.get_next(stream, &chunk.array):
            raise ValueError(f"the Arrow stream broke off: {stream_error(stream)}")
        if chunk.array.release == NULL:
            return columns
        columns.append(arrow_view(&schema.schema, &chunk.array, (schema, chunk)))


cdef str stream_error(ArrowArrayStream* stream):
    cdef const char* text = stream.get_last_error(stream)
    return "no reason given" if text == NULL else text.decode("utf-8", "replace")


cdef Column array_column(object array):
    """See a numpy array as a column; None for a dtype that has to go key by key."""
    cdef Column column = Column()
    cdef size_t address
    kind = array.dtype.kind
    if array.ndim != 1:
        raise ValueError(f"keys must be one-dimensional, got {array.ndim} dimensions")
    if kind not in ("S", "i", "u"):
        return None
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    address = array.ctypes.data
    column.keys.kind = KEYS_PADDED if kind == "S" else KEYS_SIGNED if kind == "i" else KEYS_UNSIGNED
    column.keys.width = array.dtype.itemsize
    column.keys.length = array.shape[0]
    column.keys.data = <const uint8_t*> address
    column.owner = array
    return column


cdef Column hashed_column(object keys, uint64_t seed, bint raw):
    """Hash Python objects one by one."""
    cdef Column column = Column()
    cdef uint64_t[::1] view
    cdef Py_ssize_t i = 0
    if isinstance(keys, (str, bytes, bytearray)):
        raise TypeError(f"keys must be a sequence of keys, got one key: {keys!r}")
    keys = keys if isinstance(keys, (list, tuple)) else list(keys)
    column.owner = hashes = np.empty(len(keys), dtype=np.uint64)
    view = hashes
    for key in keys:
        if i == view.shape[0]:
            break
        hash_key(key, seed, raw, &view[i])
        i += 1
    if i != view.shape[0] or i != len(keys):
        raise ValueError("keys must not change while they are hashed")  # converting one may run Python code
    column.keys.kind = KEYS_HASHED
    column.keys.length = view.shape[0]
    column.keys.data = <const uint8_t*> &view[0] if view.shape[0] else NULL
    return column


cdef list columns_of(object keys, uint64_t seed, bint raw):
    """See any keys as columns, one for each chunk."""
    cdef Column column = None
    if isinstance(keys, np.ndarray):
        column = array_column(keys)
        keys = keys if column is not None else keys.tolist()
    elif hasattr(keys, "__arrow_c_array__"):
        schema, array = keys.__arrow_c_array__()
        column = arrow_view(
            <const ArrowSchema*> PyCapsule_GetPointer(schema, "arrow_schema"),
            <const ArrowArray*> PyCapsule_GetPointer(array, "arrow_array"),
            (schema, array),
        )
    elif hasattr(keys, "__arrow_c_stream__"):
        capsule = keys.__arrow_c_stream__()
        return stream_columns(capsule)
    return [hashed_column(keys, seed, raw) if column is None else column]


# Placing ------------------------------------------------------------------------------------------------------------


cdef void place_column(
    const KeyColumn* keys, uint64_t seed, bint raw, Place place, const void* where, int32_t* out
) noexcept nogil:
    """Hash and place a column, block by block: what is in work stays in the first-level cache."""
    cdef uint64_t hashes[BLOCK]
    cdef int64_t i, n, start
    raw = raw and (keys.kind == KEYS_SIGNED or keys.kind == KEYS_UNSIGNED)
    start = 0
    while start < keys.length:
        n = min(<int64_t> BLOCK, keys.length - start)
        if raw:
            for i in range(n):
                hashes[i] = keycolumn_integer(keys, keys.first + start + i)
                if not keycolumn_valid(keys, keys.first + start + i):
                    hashes[i] = seed
        else:
            keycolumn_hash(keys, start, n, seed, hashes)
        place(where, hashes, out + start, n)
        start += n


cdef void gather(const KeyColumn* indices, const int32_t* placed, int32_t null, int32_t* out) noexcept nogil:
    """Look indices up among the places of a dictionary."""
    cdef int64_t i
    for i in range(indices.length):
        if keycolumn_valid(indices, indices.first + i):
            out[i] = placed[keycolumn_integer(indices, indices.first + i)]
        else:
            out[i] = null


cdef int place_keys(Column column, uint64_t seed, bint raw, Place place, const void* where, int32_t* out) except -1:
    """Place one column; a dictionary's keys only once."""
    cdef int32_t[::1] placed
    cdef int32_t null = 0
    if column.dictionary is None:
        with nogil:
            place_column(&column.keys, seed, raw, place, where, out)
        return 0
    placed = np.empty(column.dictionary.keys.length + 1, dtype=np.int32)
    place_keys(column.dictionary, seed, raw, place, where, &placed[0])
    place(where, &seed, &null, 1)
    with nogil:
        gather(&column.keys, &placed[0], null, out)
    return 0


cdef object place_all(list columns, uint64_t seed, bint raw, Place place, const void* where):
    """Place all chunks into one array."""
    cdef int32_t[::1] out
    cdef Column column
    cdef int64_t size = 0
    for column in columns:
        size += column.keys.length
    result = np.empty(size, dtype=np.int32)
    if size == 0:
        return result
    out = result
    size = 0
    for column in columns:
        if column.keys.length:
            place_keys(column, seed, raw, place, where, &out[size])
            size += column.keys.length
    return result


cdef object hashes_of(Column column, uint64_t seed):
    """Array of a column's hashes."""
    cdef uint64_t[::1] view
    cdef KeyColumn* keys = &column.keys
    hashes = np.empty(keys.length, dtype=np.uint64)
    view = hashes
    if keys.length == 0:
        return hashes
    if column.dictionary is not None:
        return gathered_hashes(column, seed)
    with nogil:
        keycolumn_hash(keys, 0, keys.length, seed, &view[0])
    return hashes


cdef object gathered_hashes(Column column, uint64_t seed):
    """Array of the hashes of a dictionary-encoded column."""
    cdef uint64_t[::1] view
    cdef const uint64_t[::1] known = hashes_of(column.dictionary, seed)
    cdef int64_t i, index
    hashes = np.empty(column.keys.length, dtype=np.uint64)
    view = hashes
    for i in range(view.shape[0]):
        index = column.keys.first + i
        if keycolumn_valid(&column.keys, index):
            view[i] = known[<Py_ssize_t> keycolumn_integer(&column.keys, index)]
        else:
            view[i] = seed
    return hashes
