"""Headers of AMQP 0-9-1 made of values of AMQP 1.0, in the order in which RabbitMQ has them.

RabbitMQ cannot deliver some values over AMQP 0-9-1: it fails at characters, UUIDs and unsigned numbers of 64 bits in a
list. These become numbers and text here. Decimals, NaN and infinity it leaves out, and so does this.

Source: RabbitMQ, mc_amqpl (4.3) and rabbit_msg_record (3.10), rabbit_binary_generator (letters of types).
Thread safety: one writer at a time. Complexity: O(octets), and O(n log n) to sort n headers.
"""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp, memcpy

from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_append, bytes_clear, bytes_init, bytes_long, bytes_size,
)
from fairsched.core.amqp.tables cimport table_begin, table_end, table_name, table_put, table_text
from fairsched.core.memory cimport array_reserve
from fairsched.core.streams.values cimport (
    KIND_ARRAY, KIND_BINARY, KIND_BOOL, KIND_BYTE, KIND_CHAR, KIND_DOUBLE, KIND_FLOAT, KIND_INT, KIND_LIST, KIND_LONG,
    KIND_MAP, KIND_NULL, KIND_SHORT, KIND_SYMBOL, KIND_TEXT, KIND_TIMESTAMP, KIND_UBYTE, KIND_UINT, KIND_ULONG,
    KIND_USHORT, KIND_UUID, ArrayItems, Value, ValueKind, array_items, array_next, value_bool, value_is_text,
    value_items, value_kind, value_next, value_number, value_text,
)

cdef enum:
    HEADERS_DEPTH = 100   # deepest nesting that is followed
    UUID_TEXT = 36        # characters of a UUID


cdef inline char* uuid_write(char* to, const uint8_t* octets) noexcept nogil:
    """Write a UUID as text; return its end."""
    cdef const char* digits = "0123456789abcdef"
    cdef int i
    for i in range(16):
        if i in (4, 6, 8, 10):
            to[0] = c'-'
            to += 1
        to[0] = digits[octets[i] >> 4]
        to[1] = digits[octets[i] & 15]
        to += 2
    return to

cdef inline bint real_is_finite(const Value* v) noexcept nogil:
    cdef uint64_t raw = frames_number(v.data, <int> v.size)
    cdef uint32_t half = <uint32_t> raw
    cdef float single
    cdef double real
    if v.size == 4:
        memcpy(&single, &half, 4)
        return isfinite(single)
    memcpy(&real, &raw, 8)
    return isfinite(real)

cdef inline uint8_t number_letter(ValueKind kind) noexcept nogil:
    """Return the letter of AMQP 0-9-1's type for a number; 0: the value is none."""
    if kind == KIND_LONG or kind == KIND_ULONG:
        return c'l'
    if kind == KIND_INT:
        return c'I'
    if kind == KIND_UINT or kind == KIND_CHAR:
        return c'i'
    if kind == KIND_UBYTE:
        return c'B'
    if kind == KIND_BYTE:
        return c'b'
    if kind == KIND_USHORT:
        return c'u'
    return c's' if kind == KIND_SHORT else 0

cdef inline int number_octets(uint8_t letter) noexcept nogil:
    if letter == c'l':
        return 8
    if letter == c'i' or letter == c'I':
        return 4
    return 2 if letter == c's' or letter == c'u' else 1

cdef inline bint header_put(Bytes* out, Text name, const Value* v, bint old, int depth) noexcept nogil:
    """Append a header, or an element of an array if the name has no data; False: RabbitMQ leaves this value out."""
    cdef ValueKind kind = value_kind(v)
    cdef uint8_t letter = number_letter(kind)
    cdef char digits[UUID_TEXT + 9]
    if letter:
        table_put(out, name, letter, <uint64_t> value_number(v), number_octets(letter))
    elif kind == KIND_TEXT or kind == KIND_SYMBOL:
        table_text(out, name, value_text(v))
    elif kind == KIND_BINARY:
        table_name(out, name, c'x' if old else c'S')
        bytes_long(out, value_text(v))
    elif kind == KIND_BOOL:
        table_put(out, name, c't', value_bool(v), 1)
    elif kind == KIND_NULL:
        table_name(out, name, c'V')
    elif kind == KIND_TIMESTAMP:
        table_put(out, name, c'T', <uint64_t> (value_number(v) // 1000), 8)
    elif kind == KIND_FLOAT or kind == KIND_DOUBLE:
        if not real_is_finite(v):
            return False
        table_name(out, name, c'f' if kind == KIND_FLOAT else c'd')
        bytes_append(out, v.data, v.size)
    elif kind == KIND_UUID:
        memcpy(digits, <const char*> b"urn:uuid:", 9)
        uuid_write(digits + 9, v.data)
        table_text(out, name, Text(<const uint8_t*> digits, UUID_TEXT + 9))
    elif depth < HEADERS_DEPTH and (kind == KIND_LIST or kind == KIND_ARRAY or kind == KIND_MAP):
        nested_put(out, name, v, kind, old, depth + 1)
    else:
        return False
    return True

cdef inline void nested_put(
    Bytes* out, Text name, const Value* v, ValueKind kind, bint old, int depth
) noexcept nogil:
    """Append a list or an array as an array, and a map as a table."""
    cdef Text unnamed = Text(NULL, 0)
    cdef ArrayItems elements
    cdef Reader r
    cdef Value key, inner
    cdef int64_t start
    table_name(out, name, c'F' if kind == KIND_MAP else c'A')
    start = table_begin(out)
    if kind == KIND_ARRAY:
        elements = array_items(v)
        while array_next(&elements, &inner):
            header_put(out, unnamed, &inner, old, depth)
    else:
        r = value_items(v)
        while r.at < r.end and (kind == KIND_LIST or value_next(&r, &key)) and value_next(&r, &inner):
            if kind == KIND_LIST:
                header_put(out, unnamed, &inner, old, depth)
            elif value_is_text(&key):
                header_put(out, value_text(&key), &inner, old, depth)
    table_end(out, start)


# Headers that are collected, and then sorted --------------------------------------------------------------------------

cdef struct Header:
    const uint8_t* name    # its length in one octet, and the name; the value follows
    int64_t begin          # in the octets of all
    int64_t size
    int64_t place          # in the order in which they were collected

cdef struct Headers:
    Bytes octets
    Header* each
    int64_t count
    int64_t room

cdef inline void headers_init(Headers* h) noexcept nogil:
    bytes_init(&h.octets)
    h.each = NULL
    h.count = h.room = 0

cdef inline void headers_clear(Headers* h) noexcept nogil:
    bytes_clear(&h.octets)
    free(h.each)
    headers_init(h)

cdef inline void headers_begin(Headers* h) noexcept nogil:
    """Forget what was collected, and keep its memory."""
    h.octets.begin = h.octets.end = h.count = 0

cdef inline void headers_collected(Headers* h, int64_t begin) noexcept nogil:
    """Note the header that was appended to the octets at `begin`."""
    if not array_reserve(<void**> &h.each, &h.room, h.count + 1, sizeof(Header), 16):
        h.octets.failed = True
        return
    h.each[h.count] = Header(NULL, begin, bytes_size(&h.octets) - begin, h.count)
    h.count += 1

cdef inline void headers_add(Headers* h, Text name, const Value* v, bint old) noexcept nogil:
    """Collect a header, unless RabbitMQ leaves its value out."""
    cdef int64_t begin = bytes_size(&h.octets)
    if header_put(&h.octets, name, v, old, 0):
        headers_collected(h, begin)

cdef inline int header_before(const void* first, const void* second) noexcept nogil:
    """Compare names octet by octet, and then the places: the order of `qsort`."""
    cdef const Header* a = <const Header*> first
    cdef const Header* b = <const Header*> second
    cdef int found = memcmp(a.name + 1, b.name + 1, min(a.name[0], b.name[0]))
    if found == 0:
        found = <int> a.name[0] - <int> b.name[0]
    return found if found else (1 if a.place > b.place else -1)

cdef inline bint header_repeats(const Header* each, int64_t i) noexcept nogil:
    """Whether the header before this one, of sorted ones, has the same name."""
    return i > 0 and each[i].name[0] == each[i - 1].name[0] and (
        memcmp(each[i].name, each[i - 1].name, 1 + each[i].name[0]) == 0
    )

cdef inline void headers_write(Headers* h, Bytes* out, bint once) noexcept nogil:
    """Append the headers as a table, sorted by name; with `once`, the first of each name only."""
    cdef int64_t i, start = table_begin(out)
    for i in range(h.count):
        h.each[i].name = h.octets.data + h.octets.begin + h.each[i].begin
    qsort(h.each, h.count, sizeof(Header), header_before)
    for i in range(h.count):
        if not once or not header_repeats(h.each, i):
            bytes_append(out, h.each[i].name, h.each[i].size)
    table_end(out, start)
    if h.octets.failed:
        out.failed = True
