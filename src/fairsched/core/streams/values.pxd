"""Values of AMQP 1.0: read one, pass over one, look into a list, a map or an array.

The upper half of a value's first octet says how many octets it has, so unknown types are passed over, too. Input is
untrusted: a reader never goes beyond its end.

Source: OASIS AMQP 1.0, part 1 (Types), sections 1.2 (Type Encodings) and 1.6 (Primitive Type Definitions).
Thread safety: pure functions. Complexity: O(1).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport Reader, Text, reader_number, reader_of, reader_skip

cdef enum:
    VALUE_DESCRIBED = 0x00
    VALUE_NULL = 0x40
    VALUE_EMPTY_LIST = 0x45
    VALUE_DESCRIPTORS = 8    # descriptors of one value that are passed over, at most

cdef enum ValueKind:  # with all encodings of a type in one
    KIND_MISSING
    KIND_NULL
    KIND_BOOL
    KIND_UBYTE
    KIND_BYTE
    KIND_USHORT
    KIND_SHORT
    KIND_UINT
    KIND_INT
    KIND_ULONG
    KIND_LONG
    KIND_FLOAT
    KIND_DOUBLE
    KIND_CHAR
    KIND_TIMESTAMP
    KIND_UUID
    KIND_BINARY
    KIND_TEXT
    KIND_SYMBOL
    KIND_LIST
    KIND_MAP
    KIND_ARRAY
    KIND_OTHER       # decimals, and types that are not in the standard

cdef struct Value:
    uint8_t code             # of its encoding; VALUE_DESCRIBED: there is none
    const uint8_t* data      # without its length
    int64_t size

cdef inline Value value_missing() noexcept nogil:
    return Value(VALUE_DESCRIBED, NULL, 0)

cdef inline bint value_payload(Reader* r, uint8_t code, Value* v) noexcept nogil:
    """Read a value behind its constructor."""
    cdef int width = code >> 4
    cdef int64_t size = 0
    if width >= 10:
        size = <int64_t> reader_number(r, 4 if width & 1 else 1)
    elif width >= 5:
        size = 1 << (width - 5)
    elif width != 4:
        r.broken = True
    v.code = code
    v.size = size
    v.data = reader_skip(r, size)
    return not r.broken

cdef inline bint value_next(Reader* r, Value* v) noexcept nogil:
    """Read a value without its descriptors; False: it is not all there."""
    cdef const uint8_t* code = reader_skip(r, 1)
    cdef const uint8_t* described
    cdef int passed = 0
    while code != NULL and code[0] == VALUE_DESCRIBED:
        passed += 1
        described = reader_skip(r, 1)
        if described == NULL or passed > VALUE_DESCRIPTORS or not value_payload(r, described[0], v):
            r.broken = True
            return False
        code = reader_skip(r, 1)
    if code == NULL:
        return False
    return value_payload(r, code[0], v)

cdef inline ValueKind value_kind(const Value* v) noexcept nogil:
    cdef int code = v.code
    if code in (0xA1, 0xB1):
        return KIND_TEXT
    if code in (0xA3, 0xB3):
        return KIND_SYMBOL
    if code in (0xA0, 0xB0):
        return KIND_BINARY
    if code in (0x41, 0x42, 0x56):
        return KIND_BOOL
    if code in (0x43, 0x52, 0x70):
        return KIND_UINT
    if code in (0x44, 0x53, 0x80):
        return KIND_ULONG
    if code in (0x54, 0x71):
        return KIND_INT
    if code in (0x55, 0x81):
        return KIND_LONG
    if code == 0x40:
        return KIND_NULL
    if code == 0x50:
        return KIND_UBYTE
    if code == 0x51:
        return KIND_BYTE
    if code == 0x60:
        return KIND_USHORT
    if code == 0x61:
        return KIND_SHORT
    if code == 0x72:
        return KIND_FLOAT
    if code == 0x73:
        return KIND_CHAR
    if code == 0x82:
        return KIND_DOUBLE
    if code == 0x83:
        return KIND_TIMESTAMP
    if code == 0x98:
        return KIND_UUID
    if code in (0x45, 0xC0, 0xD0):
        return KIND_LIST
    if code in (0xC1, 0xD1):
        return KIND_MAP
    if code in (0xE0, 0xF0):
        return KIND_ARRAY
    return KIND_MISSING if code == VALUE_DESCRIBED else KIND_OTHER

cdef inline bint value_is_text(const Value* v) noexcept nogil:
    """Whether a value is octets of any kind: text, a symbol or binary."""
    return value_kind(v) in (KIND_TEXT, KIND_SYMBOL, KIND_BINARY)

cdef inline Text value_text(const Value* v) noexcept nogil:
    """Return the octets of a value that has them."""
    return Text(v.data, <uint32_t> v.size)

cdef inline bint value_bool(const Value* v) noexcept nogil:
    return v.code == 0x41 or (v.code == 0x56 and v.data[0] != 0)

cdef inline int64_t value_number(const Value* v) noexcept nogil:
    """Return a whole number, or a timestamp in milliseconds; unsigned ones of 64 bits as their octets are."""
    cdef uint64_t raw = frames_number(v.data, <int> v.size) if v.size <= 8 else 0
    cdef int code = v.code
    if code in (0x51, 0x54, 0x55):
        return <int8_t> raw
    if code == 0x61:
        return <int16_t> raw
    if code == 0x71:
        return <int32_t> raw
    return <int64_t> raw

cdef inline Reader value_items(const Value* v) noexcept nogil:
    """Begin to read what is in a list or a map: to the end of its octets, whatever its count is."""
    cdef int64_t before = 0 if v.code == VALUE_EMPTY_LIST else 1 if v.code < 0xD0 else 4
    return reader_of(v.data + before, v.size - before) if before <= v.size else reader_of(v.data, 0)

cdef struct ArrayItems:
    Reader reader
    int64_t left
    uint8_t code     # of all its elements

cdef inline ArrayItems array_items(const Value* v) noexcept nogil:
    """Begin to read an array; elements without octets are passed over: their number is not bounded by these."""
    cdef ArrayItems found
    cdef const uint8_t* code
    cdef Value descriptor
    found.reader = reader_of(v.data, v.size)
    found.left = <int64_t> reader_number(&found.reader, 1 if v.code < 0xF0 else 4)
    code = reader_skip(&found.reader, 1)
    if code != NULL and code[0] == VALUE_DESCRIBED:
        code = reader_skip(&found.reader, 1)
        if code != NULL and value_payload(&found.reader, code[0], &descriptor):
            code = reader_skip(&found.reader, 1)
    found.code = code[0] if code != NULL else VALUE_DESCRIBED
    if code == NULL or found.code >> 4 < 5:
        found.left = 0
    return found

cdef inline bint array_next(ArrayItems* items, Value* v) noexcept nogil:
    if items.left <= 0:
        return False
    items.left -= 1
    return value_payload(&items.reader, items.code, v)
