"""Tables of AMQP 0-9-1: iterate over fields, find a field by name, compare arguments, and write tables.

A table, or an array, is its octets including the length. Input is untrusted: each length is checked against the
available bytes before use. `tables_valid` and `reader_table` check the whole table; the other functions check only the
fields they pass, and skip nested values by their length.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it; RabbitMQ, rabbit_misc (equivalence of arguments).
Thread safety: pure functions; a buffer is its owner's. Complexity: O(octets).
"""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod
from libc.string cimport memcpy, strcspn

from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_append, bytes_long, bytes_number, bytes_put, bytes_short, bytes_size, reader_skip,
    text_equal, text_of,
)

cdef enum:
    TABLES_DEPTH = 100   # tables and arrays inside each other that are followed; RabbitMQ itself nests three

cdef enum FieldFound:
    FIELD_MISSING
    FIELD_FOUND
    FIELD_UNSURE  # the table is not flat, or is broken

cdef struct Field:
    uint8_t kind
    Text value     # the octets; of a string behind its length, of a table or an array from its length on


# Reading --------------------------------------------------------------------------------------------------------------

cdef struct TableWalk:
    const uint8_t* at
    const uint8_t* end
    bint named         # a table, not an array
    bint broken

cdef inline int64_t tables_value_size(const uint8_t* at, const uint8_t* end, uint8_t kind) noexcept nogil:
    """Octets of a value whose kind was read; -1: there is no such kind, or it is cut short."""
    if kind in (b't', b'b', b'B'):
        return 1
    if kind in (b's', b'U', b'u'):
        return 2
    if kind in (b'I', b'i', b'f'):
        return 4
    if kind in (b'L', b'l', b'd', b'T'):
        return 8
    if kind == b'D':
        return 5
    if kind == b'V':
        return 0
    if kind in (b'S', b'x', b'F', b'A') and end - at >= 4:
        return 4 + <int64_t> frames_number(at, 4)
    return -1

cdef inline TableWalk tables_fields(Text fields, bint named) noexcept nogil:
    """Begin to walk along fields before which no length stands."""
    return TableWalk(fields.data, fields.data + fields.length, named, False)

cdef inline TableWalk tables_walk(Text table, bint named=True) noexcept nogil:
    """Begin to walk along a table, or, without names, along an array."""
    cdef TableWalk w
    if table.length < 4:
        w = tables_fields(table, named)
        w.broken = table.length != 0
        w.at = w.end
        return w
    w = tables_fields(Text(table.data + 4, table.length - 4), named)
    w.broken = frames_number(table.data, 4) != table.length - 4
    if w.broken:
        w.at = w.end
    return w

cdef inline bint tables_stop(TableWalk* w) noexcept nogil:
    w.broken = True
    w.at = w.end
    return False

cdef inline bint tables_next(TableWalk* w, Text* name, Field* found) noexcept nogil:
    """Go on to the next field; False: there is none, or `broken`."""
    cdef int64_t size, prefix
    cdef const uint8_t* at = w.at
    if at >= w.end:
        return False
    if w.named:
        name[0] = Text(at + 1, at[0])
        if w.end - at < 2 + <int64_t> at[0]:
            return tables_stop(w)
        at += 1 + at[0]
    found.kind = at[0]
    at += 1
    size = tables_value_size(at, w.end, found.kind)
    if size < 0 or size > w.end - at:
        return tables_stop(w)
    prefix = 4 if found.kind in (b'S', b'x') else 0
    found.value = Text(at + prefix, <uint32_t> (size - prefix))
    w.at = at + size
    return True

cdef inline bint tables_valid_inside(Text table, bint named, int depth) noexcept nogil:
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    if depth > TABLES_DEPTH:
        return False
    while tables_next(&w, &name, &field):
        if field.kind in (b'F', b'A') and not tables_valid_inside(field.value, field.kind == b'F', depth + 1):
            return False
    return not w.broken

cdef inline bint tables_valid(Text table) noexcept nogil:
    """Whether all that a table has is well formed, with at most TABLES_DEPTH tables and arrays inside each other."""
    return table.length >= 4 and tables_valid_inside(table, True, 1)

cdef inline Text reader_table(Reader* r) noexcept nogil:
    """Read a table, from its length on; one that is not well formed is broken."""
    cdef const uint8_t* data = reader_skip(r, 4)
    cdef Text table
    if data == NULL:
        return Text(NULL, 0)
    table = Text(data, 4 + <uint32_t> frames_number(data, 4))
    if reader_skip(r, <int64_t> frames_number(data, 4)) == NULL or not tables_valid(table):
        r.broken = True
        return Text(NULL, 0)
    return table

cdef inline FieldFound tables_find(
    const uint8_t* bytes, int64_t begin, int64_t size, const uint8_t* name, int64_t length, Field* found
) noexcept nogil:
    """Look for the last field of that name in the table whose length stands at `begin`, all of it within `size`.

    Such as pika finds it. Tables inside it are left to who decodes all of it (fairsched/amqp/fieldtables.py).
    """
    cdef FieldFound state = FIELD_MISSING
    cdef Text wanted = Text(name, <uint32_t> length), present
    cdef TableWalk w
    cdef Field field
    found[0] = Field(0, Text(NULL, 0))
    if begin + 4 > size or begin + 4 + <int64_t> frames_number(bytes + begin, 4) > size:
        return FIELD_UNSURE
    w = tables_walk(Text(bytes + begin, 4 + <uint32_t> frames_number(bytes + begin, 4)))
    while tables_next(&w, &present, &field):
        if field.kind in (b'F', b'A'):
            return FIELD_UNSURE
        if text_equal(present, wanted):
            found[0] = field
            state = FIELD_FOUND
    return FIELD_UNSURE if w.broken else state

cdef inline bint tables_get(Text table, Text name, Field* found) noexcept nogil:
    """Look for the first field of that name, such as RabbitMQ finds it."""
    cdef TableWalk w = tables_walk(table)
    cdef Text present
    while tables_next(&w, &present, found):
        if text_equal(present, name):
            return True
    return False

cdef inline int64_t tables_count(Text table, bint named=True) noexcept nogil:
    """The number of fields of a table or an array."""
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    cdef int64_t count = 0
    while tables_next(&w, &name, &field):
        count += 1
    return count


# Values ---------------------------------------------------------------------------------------------------------------

cdef inline bint field_is_integer(const Field* f) noexcept nogil:
    """Whether it is of the kinds that RabbitMQ takes for an integer in arguments."""
    return f.kind in (b'b', b'B', b's', b'U', b'u', b'I', b'i', b'L', b'l')

cdef inline bint field_integer(const Field* f, int64_t* number) noexcept nogil:
    """Read an integer of any kind; False: it is none."""
    cdef uint64_t raw
    cdef int bits
    if not field_is_integer(f):
        return False
    raw = frames_number(f.value.data, <int> f.value.length)
    bits = 64 - 8 * <int> f.value.length
    if f.kind in (b'B', b'u', b'i'):
        number[0] = <int64_t> raw
    else:
        number[0] = <int64_t> (raw << bits) >> bits
    return True

cdef inline bint field_bool(const Field* f, bint* value) noexcept nogil:
    """Read a boolean; False: it is none."""
    if f.kind != b't':
        return False
    value[0] = f.value.data[0] != 0
    return True

cdef inline bint field_text(const Field* f, Text* text) noexcept nogil:
    """Read a long string; False: it is none."""
    if f.kind != b'S':
        return False
    text[0] = f.value
    return True

cdef inline double field_real(const Field* f) noexcept nogil:
    """Read a float or a double, which it has to be."""
    cdef uint64_t raw = frames_number(f.value.data, <int> f.value.length)
    cdef uint32_t half = <uint32_t> raw
    cdef float single
    cdef double real
    if f.kind == b'f':
        memcpy(&single, &half, sizeof(float))
        return single
    memcpy(&real, &raw, sizeof(double))
    return real

cdef inline bint tables_finite(Text table, bint named) noexcept nogil:
    """Whether all floats of a table, or of an array, are numbers: Erlang has no others."""
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    while tables_next(&w, &name, &field):
        if field.kind in (b'd', b'f') and not isfinite(field_real(&field)):
            return False
        if field.kind in (b'F', b'A') and not tables_finite(field.value, field.kind == b'F'):
            return False
    return True

cdef inline bint fields_equal(const Field* a, const Field* b) noexcept nogil:
    """Whether two values of an argument are equivalent for RabbitMQ: integers and strings of any kind by value."""
    cdef int64_t first, second
    if field_integer(a, &first) and field_integer(b, &second):
        return first == second
    if a.kind in (b'f', b'd') and b.kind in (b'f', b'd'):
        return field_real(a) == field_real(b)
    if a.kind != b.kind and not (a.kind in (b'S', b'x') and b.kind in (b'S', b'x')):
        return False
    return text_equal(a.value, b.value)

cdef inline bint tables_equivalent(Text current, Text received, Text name) noexcept nogil:
    """Whether an argument is the same in two tables, or missing in both."""
    cdef Field a, b
    cdef bint first = tables_get(current, name, &a), second = tables_get(received, name, &b)
    return fields_equal(&a, &b) if first and second else first == second

cdef inline const char* field_type(const Field* f) noexcept nogil:
    """RabbitMQ's name of its kind."""
    cdef uint8_t kind = f.kind
    if kind == b'S':
        return b"longstr"
    if kind == b't':
        return b"bool"
    if kind == b'b':
        return b"byte"
    if kind == b'B':
        return b"unsignedbyte"
    if kind == b's' or kind == b'U':
        return b"short"
    if kind == b'u':
        return b"unsignedshort"
    if kind == b'I':
        return b"signedint"
    if kind == b'i':
        return b"unsignedint"
    if kind == b'l' or kind == b'L':
        return b"long"
    if kind == b'f':
        return b"float"
    if kind == b'd':
        return b"double"
    if kind == b'D':
        return b"decimal"
    if kind == b'T':
        return b"timestamp"
    if kind == b'F':
        return b"table"
    if kind == b'A':
        return b"array"
    if kind == b'x':
        return b"binary"
    return b"void"

cdef inline int real_write(char* digits, size_t room, double value) noexcept nogil:
    """Write a number with the fewest digits that tell it from others, and a point, as Erlang does; return how many."""
    cdef int precision = 1, length = snprintf(digits, room, "%.1g", value)
    while precision < 17 and strtod(digits, NULL) != value:
        precision += 1
        length = snprintf(digits, room, "%.*g", precision, value)
    if strcspn(digits, ".en") == <size_t> length:
        length += snprintf(digits + length, room - <size_t> length, ".0")
    return length

cdef inline void field_value_describe(Bytes* out, const Field* f) noexcept nogil:
    """Append a value as RabbitMQ's messages have it; of what is nested, how many octets."""
    cdef char digits[48]
    cdef int64_t number
    cdef int length
    if f.kind in (b'S', b'x'):
        bytes_append(out, f.value.data, f.value.length)
        return
    if field_integer(f, &number):
        length = snprintf(digits, sizeof(digits), "%lld", <long long> number)
    elif f.kind == b'T':
        length = snprintf(digits, sizeof(digits), "%llu", <unsigned long long> frames_number(f.value.data, 8))
    elif f.kind in (b'f', b'd'):
        length = real_write(digits, sizeof(digits), field_real(f))
    elif f.kind == b't':
        length = snprintf(digits, sizeof(digits), "true" if f.value.data[0] else "false")
    elif f.kind == b'V':
        length = snprintf(digits, sizeof(digits), "undefined")
    else:
        length = snprintf(digits, sizeof(digits), "%u octets", f.value.length)
    bytes_append(out, <const uint8_t*> digits, length)

cdef inline void bytes_literal(Bytes* out, const char* literal) noexcept nogil:
    cdef Text text = text_of(literal)
    bytes_append(out, text.data, text.length)

cdef inline void field_describe(Bytes* out, const Field* f) noexcept nogil:
    """Append what RabbitMQ says of an argument that is not equivalent; NULL: it is missing."""
    if f == NULL:
        bytes_literal(out, b"none")
        return
    bytes_literal(out, b"the value '")
    field_value_describe(out, f)
    bytes_literal(out, b"' of type '")
    bytes_literal(out, field_type(f))
    bytes_literal(out, b"'")


# Writing --------------------------------------------------------------------------------------------------------------
# A name whose data is NULL: the value stands in an array.

cdef inline int64_t table_begin(Bytes* out) noexcept nogil:
    """Begin a table; return where, for `table_end`. Nothing may be taken from `out` in between."""
    cdef int64_t start = bytes_size(out)
    bytes_number(out, 0, 4)
    return start

cdef inline void table_end(Bytes* out, int64_t start) noexcept nogil:
    """End a table or an array, whose length is known now."""
    bytes_put(out, start, <uint64_t> (bytes_size(out) - start - 4), 4)

cdef inline void table_name(Bytes* out, Text name, uint8_t kind) noexcept nogil:
    if name.data != NULL:
        bytes_short(out, name)
    bytes_number(out, kind, 1)

cdef inline void table_put(Bytes* out, Text name, uint8_t kind, uint64_t number, int octets) noexcept nogil:
    """Append a value that is a number of so many octets."""
    table_name(out, name, kind)
    bytes_number(out, number, octets)

cdef inline void table_text(Bytes* out, Text name, Text value) noexcept nogil:
    """Append a long string."""
    table_name(out, name, c'S')
    bytes_long(out, value)

cdef inline void table_bool(Bytes* out, Text name, bint value) noexcept nogil:
    table_put(out, name, c't', value, 1)

cdef inline void table_int(Bytes* out, Text name, int64_t value) noexcept nogil:
    """Append a signed integer of 32 bits."""
    table_put(out, name, c'I', <uint32_t> value, 4)

cdef inline void table_long(Bytes* out, Text name, int64_t value) noexcept nogil:
    """Append a signed integer of 64 bits."""
    table_put(out, name, c'l', <uint64_t> value, 8)

cdef inline void table_timestamp(Bytes* out, Text name, uint64_t seconds) noexcept nogil:
    table_put(out, name, c'T', seconds, 8)

cdef inline int64_t table_nested_begin(Bytes* out, Text name) noexcept nogil:
    """Begin a table inside a table or an array; `table_end` ends it."""
    table_name(out, name, c'F')
    return table_begin(out)

cdef inline int64_t table_array_begin(Bytes* out, Text name) noexcept nogil:
    """Begin an array inside a table or an array; `table_end` ends it."""
    table_name(out, name, c'A')
    return table_begin(out)

cdef inline void table_field(Bytes* out, Text name, const Field* f) noexcept nogil:
    """Append a value as it was read."""
    table_name(out, name, f.kind)
    if f.kind in (b'S', b'x'):
        bytes_long(out, f.value)
    else:
        bytes_append(out, f.value.data, f.value.length)

cdef inline void table_copy(Bytes* out, Text table, const Text* without, int count) noexcept nogil:
    """Append the fields of a table, but those of `count` names."""
    cdef TableWalk w = tables_walk(table)
    cdef Text name
    cdef Field field
    cdef bint wanted
    cdef int i
    while tables_next(&w, &name, &field):
        wanted = True
        for i in range(count):
            wanted = wanted and not text_equal(name, without[i])
        if wanted:
            table_field(out, name, &field)
