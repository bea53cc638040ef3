"""Columns of keys in memory (numpy, Arrow, hashes of Python objects), and their hashes, block by block.

Nothing is copied: a column has pointers into buffers of another object, which must stay alive. Layouts as in the
Arrow columnar format 1.4: variable binary with 32 or 64 bit offsets, binary views, fixed width; validity as a bitmap,
lowest bit first.

Strings and bytes are hashed as they are, integers of any width as eight bytes, lowest first, so that a key has one hash
however it is stored. A null's hash is the seed, as in Spark's `xxhash64`.

Complexity: O(bytes). Thread safety: pure functions over memory that does not change.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.core.hashing.xxh64 cimport read32, xxh64, xxh64_integer

cdef enum KeyKind:
    KEYS_HASHED  # words that are hashes already
    KEYS_OFFSETS32
    KEYS_OFFSETS64
    KEYS_VIEWS
    KEYS_FIXED  # binary of `width` bytes
    KEYS_PADDED  # binary of `width` bytes, zeros at the end are not part of it: numpy's S
    KEYS_SIGNED  # integers of `width` bytes
    KEYS_UNSIGNED
    KEYS_NULL  # nothing but nulls

cdef struct KeyColumn:
    KeyKind kind
    int64_t length
    int64_t first  # where the column begins in its buffers, in keys
    int64_t width
    const uint8_t* validity  # NULL: no nulls
    const uint8_t* data
    const void* offsets
    const void** buffers  # of views

cdef inline bint keycolumn_valid(const KeyColumn* c, int64_t i) noexcept nogil:
    """Return whether key `i` of the buffers is not null."""
    return c.validity == NULL or (c.validity[i >> 3] >> (i & 7)) & 1

cdef inline uint64_t keycolumn_integer(const KeyColumn* c, int64_t i) noexcept nogil:
    """An integer of any width, sign or zero extended."""
    cdef bint is_signed = c.kind == KEYS_SIGNED
    if c.width == 8:
        return (<const uint64_t*> c.data)[i]
    if c.width == 4:
        return <uint64_t> (<const int32_t*> c.data)[i] if is_signed else (<const uint32_t*> c.data)[i]
    if c.width == 2:
        return <uint64_t> (<const int16_t*> c.data)[i] if is_signed else (<const uint16_t*> c.data)[i]
    return <uint64_t> (<const int8_t*> c.data)[i] if is_signed else c.data[i]

cdef inline uint64_t keycolumn_view_hash(const KeyColumn* c, int64_t i, uint64_t seed) noexcept nogil:
    """Hash of a binary view: up to 12 bytes lie in it, more in one of the buffers."""
    cdef const uint8_t* view = <const uint8_t*> c.data + 16 * i
    cdef uint32_t length = read32(view)
    if length <= 12:
        return xxh64(view + 4, length, seed)
    return xxh64(<const uint8_t*> c.buffers[2 + read32(view + 8)] + read32(view + 12), length, seed)

cdef inline uint64_t keycolumn_padded_hash(const KeyColumn* c, int64_t i, uint64_t seed) noexcept nogil:
    """Hash of numpy's S, without the zeros at its end."""
    cdef const uint8_t* at = c.data + i * c.width
    cdef int64_t length = c.width
    while length > 0 and at[length - 1] == 0:
        length -= 1
    return xxh64(at, length, seed)

cdef inline void keycolumn_hash_offsets32(
    const KeyColumn* c, int64_t first, int64_t n, uint64_t seed, uint64_t* out
) noexcept nogil:
    cdef const int32_t* at = <const int32_t*> c.offsets + first
    cdef int64_t i
    for i in range(n):
        out[i] = xxh64(c.data + at[i], at[i + 1] - at[i], seed)

cdef inline void keycolumn_hash_offsets64(
    const KeyColumn* c, int64_t first, int64_t n, uint64_t seed, uint64_t* out
) noexcept nogil:
    cdef const int64_t* at = <const int64_t*> c.offsets + first
    cdef int64_t i
    for i in range(n):
        out[i] = xxh64(c.data + at[i], at[i + 1] - at[i], seed)

cdef inline void keycolumn_hash(
    const KeyColumn* c, int64_t start, int64_t n, uint64_t seed, uint64_t* out
) noexcept nogil:
    """Hashes of `n` keys from key `start` of the column on."""
    cdef int64_t first = c.first + start
    cdef int64_t i
    if c.kind == KEYS_OFFSETS32:
        keycolumn_hash_offsets32(c, first, n, seed, out)
    elif c.kind == KEYS_OFFSETS64:
        keycolumn_hash_offsets64(c, first, n, seed, out)
    elif c.kind == KEYS_HASHED:
        memcpy(out, <const uint64_t*> c.data + first, n * sizeof(uint64_t))
    elif c.kind == KEYS_VIEWS:
        # A null's view may be anything: it is not looked at.
        for i in range(n):
            out[i] = keycolumn_view_hash(c, first + i, seed) if keycolumn_valid(c, first + i) else seed
    elif c.kind == KEYS_FIXED:
        for i in range(n):
            out[i] = xxh64(c.data + (first + i) * c.width, c.width, seed)
    elif c.kind == KEYS_PADDED:
        for i in range(n):
            out[i] = keycolumn_padded_hash(c, first + i, seed)
    elif c.kind == KEYS_NULL:
        for i in range(n):
            out[i] = seed
    else:
        for i in range(n):
            out[i] = xxh64_integer(keycolumn_integer(c, first + i), seed)
    if c.validity != NULL:
        for i in range(n):
            if not keycolumn_valid(c, first + i):
                out[i] = seed
