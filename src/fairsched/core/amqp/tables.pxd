"""Tables of AMQP 0-9-1: iterate over fields, find a field by name, compare arguments, and write tables.

A table, or an array, is its octets including the length. Input is untrusted: each length is checked against the
available bytes before use. `tables_valid` and `reader_table` check the whole table; the other functions check only the
fields they pass, and skip nested values by their length. The types of fields are in `fieldtypes`.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it; RabbitMQ, rabbit_misc (equivalence of arguments).
Thread safety: pure functions; a buffer is its owner's. Complexity: O(octets).
"""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod
from libc.string cimport memcpy, strcspn

from fairsched.core.amqp.fieldtypes cimport (
    FAMILY_ARRAY, FAMILY_BOOL, FAMILY_INTEGER, FAMILY_OCTETS, FAMILY_REAL, FAMILY_TABLE, FAMILY_TEXT, FAMILY_TIMESTAMP,
    FAMILY_VOID, SIZE_UNKNOWN, FieldFamily, FieldType, type_of,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_append, bytes_long, bytes_number, bytes_put, bytes_short, bytes_size, reader_skip,
    text_equal, text_of,
)

cdef enum:
    TABLES_DEPTH = 100   # deepest nesting of tables and arrays that is followed; RabbitMQ itself nests three

cdef enum FieldFound:
    FIELD_MISSING
    FIELD_FOUND
    FIELD_UNSURE  # the table is not flat, or is broken

cdef struct Field:
    uint8_t kind   # letter of its type
    Text value     # its octets: without the length of a string, with the length of a table or an array


cdef inline FieldFamily field_family(const Field* f) noexcept nogil:
    """Return the family of a value's type."""
    return type_of(f.kind).family

cdef inline bint field_is_table(const Field* f) noexcept nogil:
    return field_family(f) == FAMILY_TABLE

cdef inline bint field_is_real(const Field* f) noexcept nogil:
    return field_family(f) == FAMILY_REAL

cdef inline bint field_is_string(const Field* f) noexcept nogil:
    """Whether a value is text or octets."""
    return field_family(f) == FAMILY_TEXT or field_family(f) == FAMILY_OCTETS

cdef inline bint field_nests(const Field* f) noexcept nogil:
    """Whether a value is a table or an array."""
    return field_family(f) == FAMILY_TABLE or field_family(f) == FAMILY_ARRAY


# Reading --------------------------------------------------------------------------------------------------------------

cdef struct TableWalk:
    const uint8_t* at
    const uint8_t* end
    bint named         # a table, not an array
    bint broken

cdef inline TableWalk tables_fields(Text fields, bint named) noexcept nogil:
    """Begin to walk along fields that are not preceded by a length."""
    return TableWalk(fields.data, fields.data + fields.length, named, False)

cdef inline TableWalk tables_walk(Text table, bint named=True) noexcept nogil:
    """Begin to walk along a table, or along an array, which has no names."""
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
    """Move to the next field; False: there is none, or the table is `broken`."""
    cdef const uint8_t* at = w.at
    cdef FieldType* type
    cdef int64_t size, length = 0
    if at >= w.end:
        return False
    if w.named:
        name[0] = Text(at + 1, at[0])
        if w.end - at < 2 + <int64_t> at[0]:
            return tables_stop(w)
        at += 1 + at[0]
    type = type_of(at[0])
    found.kind = at[0]
    at += 1
    size = type.size
    if size < 0:
        if size == SIZE_UNKNOWN or w.end - at < 4:
            return tables_stop(w)
        size = 4 + <int64_t> frames_number(at, 4)
        length = 4 if type.family == FAMILY_TEXT or type.family == FAMILY_OCTETS else 0
    if size > w.end - at:
        return tables_stop(w)
    found.value = Text(at + length, <uint32_t> (size - length))
    w.at = at + size
    return True

cdef inline bint tables_valid_inside(Text table, bint named, int depth) noexcept nogil:
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    if depth > TABLES_DEPTH:
        return False
    while tables_next(&w, &name, &field):
        if field_nests(&field) and not tables_valid_inside(field.value, field_is_table(&field), depth + 1):
            return False
    return not w.broken

cdef inline bint tables_valid(Text table) noexcept nogil:
    """Whether all of a table is well formed, and nested at most TABLES_DEPTH deep."""
    return table.length >= 4 and tables_valid_inside(table, True, 1)

cdef inline Text reader_table(Reader* r) noexcept nogil:
    """Read a table, length included; the reader is broken if the table is not well formed."""
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
    """Look for the last field of a name in the table that begins with its length at `begin`, within `size` octets.

    pika also returns the last field. FIELD_UNSURE for a table that contains others: fairsched/amqp/fieldtables.py
    decodes all of it.
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
        if field_nests(&field):
            return FIELD_UNSURE
        if text_equal(present, wanted):
            found[0] = field
            state = FIELD_FOUND
    return FIELD_UNSURE if w.broken else state

cdef inline bint tables_get(Text table, Text name, Field* found) noexcept nogil:
    """Look for the first field of a name, as RabbitMQ does."""
    cdef TableWalk w = tables_walk(table)
    cdef Text present
    while tables_next(&w, &present, found):
        if text_equal(present, name):
            return True
    return False


# Values ---------------------------------------------------------------------------------------------------------------

cdef inline bint field_integer(const Field* f, int64_t* number) noexcept nogil:
    """Read an integer of any type; False: the value is none."""
    cdef FieldType* type = type_of(f.kind)
    cdef uint64_t raw
    cdef int bits
    if type.family != FAMILY_INTEGER:
        return False
    raw = frames_number(f.value.data, <int> f.value.length)
    bits = 64 - 8 * <int> f.value.length
    number[0] = <int64_t> (raw << bits) >> bits if type.is_signed else <int64_t> raw
    return True

cdef inline bint field_bool(const Field* f, bint* value) noexcept nogil:
    """Read a boolean; False: the value is none."""
    if field_family(f) != FAMILY_BOOL:
        return False
    value[0] = f.value.data[0] != 0
    return True

cdef inline bint field_text(const Field* f, Text* text) noexcept nogil:
    """Read a long string; False: the value is none."""
    if field_family(f) != FAMILY_TEXT:
        return False
    text[0] = f.value
    return True

cdef inline double field_real(const Field* f) noexcept nogil:
    """Read a float or a double, which the value must be."""
    cdef uint64_t raw = frames_number(f.value.data, <int> f.value.length)
    cdef uint32_t half = <uint32_t> raw
    cdef float single
    cdef double real
    if f.value.length == sizeof(float):
        memcpy(&single, &half, sizeof(float))
        return single
    memcpy(&real, &raw, sizeof(double))
    return real

cdef inline bint tables_finite(Text table, bint named) noexcept nogil:
    """Whether all floats of a table or an array are finite: Erlang has no others."""
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    while tables_next(&w, &name, &field):
        if field_is_real(&field) and not isfinite(field_real(&field)):
            return False
        if field_nests(&field) and not tables_finite(field.value, field_is_table(&field)):
            return False
    return True

cdef inline bint fields_equal(const Field* a, const Field* b) noexcept nogil:
    """Whether two values of an argument are equivalent for RabbitMQ: integers and strings of any type by value."""
    cdef int64_t first, second
    if field_integer(a, &first) and field_integer(b, &second):
        return first == second
    if field_is_real(a) and field_is_real(b):
        return field_real(a) == field_real(b)
    if a.kind != b.kind and not (field_is_string(a) and field_is_string(b)):
        return False
    return text_equal(a.value, b.value)

cdef inline bint tables_equivalent(Text current, Text received, Text name) noexcept nogil:
    """Whether an argument is equivalent in two tables, or missing in both."""
    cdef Field a, b
    cdef bint first = tables_get(current, name, &a), second = tables_get(received, name, &b)
    return fields_equal(&a, &b) if first and second else first == second

cdef inline const char* field_type(const Field* f) noexcept nogil:
    """Return RabbitMQ's name of a value's type."""
    return type_of(f.kind).name

cdef inline int real_write(char* digits, size_t room, double value) noexcept nogil:
    """Write a number as Erlang does, with the fewest digits that identify it and a point; return the length."""
    cdef int precision = 1, length = snprintf(digits, room, "%.1g", value)
    while precision < 17 and strtod(digits, NULL) != value:
        precision += 1
        length = snprintf(digits, room, "%.*g", precision, value)
    if strcspn(digits, ".en") == <size_t> length:
        length += snprintf(digits + length, room - <size_t> length, ".0")
    return length

cdef inline void field_value_describe(Bytes* out, const Field* f) noexcept nogil:
    """Append a value as RabbitMQ's messages have it; for a nested value, append its number of octets."""
    cdef FieldFamily family = field_family(f)
    cdef char digits[48]
    cdef int64_t number
    cdef int length
    if field_is_string(f):
        bytes_append(out, f.value.data, f.value.length)
        return
    if field_integer(f, &number):
        length = snprintf(digits, sizeof(digits), "%lld", <long long> number)
    elif family == FAMILY_TIMESTAMP:
        length = snprintf(digits, sizeof(digits), "%llu", <unsigned long long> frames_number(f.value.data, 8))
    elif family == FAMILY_REAL:
        length = real_write(digits, sizeof(digits), field_real(f))
    elif family == FAMILY_BOOL:
        length = snprintf(digits, sizeof(digits), "%s", <const char*> ("true" if f.value.data[0] else "false"))
    elif family == FAMILY_VOID:
        length = snprintf(digits, sizeof(digits), "undefined")
    else:
        length = snprintf(digits, sizeof(digits), "%u octets", f.value.length)
    bytes_append(out, <const uint8_t*> digits, length)

cdef inline void bytes_literal(Bytes* out, const char* literal) noexcept nogil:
    cdef Text text = text_of(literal)
    bytes_append(out, text.data, text.length)

cdef inline void field_describe(Bytes* out, const Field* f) noexcept nogil:
    """Append RabbitMQ's description of an argument that is not equivalent; NULL: the argument is missing."""
    if f == NULL:
        bytes_literal(out, b"none")
        return
    bytes_literal(out, b"the value '")
    field_value_describe(out, f)
    bytes_literal(out, b"' of type '")
    bytes_literal(out, field_type(f))
    bytes_literal(out, b"'")


# Writing --------------------------------------------------------------------------------------------------------------
# A name whose data is NULL: the value is an element of an array.

cdef inline int64_t table_begin(Bytes* out) noexcept nogil:
    """Begin a table; return its offset, for `table_end`. Take nothing from `out` before that."""
    cdef int64_t start = bytes_size(out)
    bytes_number(out, 0, 4)
    return start

cdef inline void table_end(Bytes* out, int64_t start) noexcept nogil:
    """End a table or an array: write its length."""
    bytes_put(out, start, <uint64_t> (bytes_size(out) - start - 4), 4)

cdef inline void table_name(Bytes* out, Text name, uint8_t kind) noexcept nogil:
    if name.data != NULL:
        bytes_short(out, name)
    bytes_number(out, kind, 1)

cdef inline void table_put(Bytes* out, Text name, uint8_t kind, uint64_t number, int octets) noexcept nogil:
    """Append a number that takes `octets` octets."""
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
    """Append a value that was read from another table."""
    table_name(out, name, f.kind)
    if field_is_string(f):
        bytes_long(out, f.value)
    else:
        bytes_append(out, f.value.data, f.value.length)

cdef inline void table_copy(Bytes* out, Text table, const Text* without, int count) noexcept nogil:
    """Append the fields of a table, except those with one of `count` names."""
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
