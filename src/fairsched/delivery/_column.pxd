"""A column of Arrow in the making: its rows, and what becomes of exchanges, routing keys, properties and headers in it.

A column is made row by row, in memory of its own, and then handed over (`column_take`, or by the function that exports
it). Nothing in it refers to what it was made of.

Thread safety: one thread, with the GIL. Complexity: O(octets added).
Source: AMQP 0-9-1, sections 4.2.5.5 and 4.2.6.1; the Arrow columnar format, "Variable-size Binary Layout".
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from fairsched.core.amqp.contents cimport (
    PROPERTIES, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP, Properties,
    contents_find,
)
from fairsched.core.amqp.fieldtypes cimport FAMILY_BOOL, FAMILY_TEXT, FAMILY_VOID, FieldFamily
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.tables cimport (
    FIELD_MISSING, FIELD_UNSURE, Field, FieldFound, field_family, field_integer, tables_find,
)

cdef enum:
    COLUMN_MOST = 0x7FFFFFFF  # octets of a column: its offsets have 32 bits
    FIRST_ROOM = 4 << 20  # octets that a column has room for before they are there, at most


cdef struct Column:  # of texts, as far as it was made
    int64_t rows
    int64_t nulls
    uint8_t* there     # a bit a row
    int32_t* offsets   # one more than rows
    char* data
    int64_t size
    int64_t capacity


cdef inline int column_init(Column* c, int64_t rows, int64_t each=32) except -1:
    """Make room for so many rows, of so many octets each; to be freed whether this raises or not."""
    c.rows = c.nulls = c.size = 0
    c.capacity = max(1, min(each * rows, FIRST_ROOM))
    c.there = <uint8_t*> calloc(rows // 8 + 1, 1)
    c.offsets = <int32_t*> malloc((rows + 1) * sizeof(int32_t))
    c.data = <char*> malloc(c.capacity)
    if c.there == NULL or c.offsets == NULL or c.data == NULL:
        raise MemoryError()
    c.offsets[0] = 0
    return 0


cdef inline void column_free(Column* c) noexcept:
    free(c.there)
    free(c.offsets)
    free(c.data)


cdef inline void column_null(Column* c) noexcept:
    c.nulls += 1
    c.rows += 1
    c.offsets[c.rows] = <int32_t> c.size


cdef inline int column_write(Column* c, const char* text, int64_t length) except -1:
    """Add octets to the row that is next."""
    cdef char* grown
    if c.size + length > COLUMN_MOST:
        raise OverflowError("a column of a record batch has at most 2 GiB")
    if c.size + length > c.capacity:
        grown = <char*> realloc(c.data, 2 * (c.size + length))
        if grown == NULL:
            raise MemoryError()
        c.data = grown
        c.capacity = 2 * (c.size + length)
    memcpy(c.data + c.size, text, length)
    c.size += length
    return 0


cdef inline int column_add(Column* c, const char* text, int64_t length) except -1:
    """Add a row with a text that is UTF-8."""
    column_write(c, text, length)
    c.there[c.rows >> 3] |= 1 << (c.rows & 7)
    c.rows += 1
    c.offsets[c.rows] = <int32_t> c.size
    return 0


cdef inline void column_unset(Column* c) noexcept:
    """Have the row added last be null: what has a fixed width stands there all the same."""
    c.nulls += 1
    c.there[(c.rows - 1) >> 3] &= <uint8_t> ~(1 << ((c.rows - 1) & 7))


cdef inline bint is_ascii(const char* text, int64_t length) noexcept:
    cdef uint64_t eight, found = 0
    cdef int64_t i
    for i in range(0, length - 7, 8):
        memcpy(&eight, text + i, 8)
        found |= eight
    for i in range(length & ~<int64_t> 7, length):
        found |= <uint64_t> <uint8_t> text[i]
    return not found & <uint64_t> 0x8080808080808080


cdef inline int column_add_text(Column* c, const char* text, int64_t length) except -1:
    """Add a row with a text; what is no UTF-8 in it is replaced."""
    cdef bytes encoded
    if is_ascii(text, length):
        return column_add(c, text, length)
    encoded = PyUnicode_AsUTF8String(PyUnicode_DecodeUTF8(text, length, "replace"))
    return column_add(c, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))


cdef inline int column_add_object(Column* c, object value) except -1:
    """Add a row with a str, or without a value for None."""
    cdef bytes encoded
    if value is None:
        column_null(c)
        return 0
    encoded = PyUnicode_AsUTF8String(value)
    return column_add(c, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))


cdef inline tuple column_take(Column* c):
    """Rows, nulls, and the three buffers: None for the first where there are no nulls."""
    there = PyBytes_FromStringAndSize(<char*> c.there, c.rows // 8 + 1) if c.nulls else None
    offsets = PyBytes_FromStringAndSize(<char*> c.offsets, (c.rows + 1) * sizeof(int32_t))
    return c.rows, c.nulls, (there, offsets, PyBytes_FromStringAndSize(c.data, c.size))


cdef inline bint add_path(Column* exchange, Column* key, const uint8_t* at, int64_t size) except -1:
    """Add exchange and routing key of a basic.deliver; False if it is none, and nothing was added."""
    cdef int64_t first, second
    if size < 5:
        return False
    first = 5 + <int64_t> at[4] + 9  # behind consumer tag, delivery tag and flags
    if first >= size:
        return False
    second = first + 1 + at[first]
    if second >= size or second + 1 + at[second] > size:
        return False
    column_add_text(exchange, <const char*> at + first + 1, at[first])
    column_add_text(key, <const char*> at + second + 1, at[second])
    return True


# Properties and headers -----------------------------------------------------------------------------------------------


cdef inline int add_value(Column* c, FieldFound state, const Field* field) except -1:
    """Add a row with a field's value as text; return 0 if that needs Python."""
    cdef FieldFamily family = field_family(field)
    cdef const char* text = <const char*> field.value.data
    cdef int64_t length = field.value.length, value
    cdef char digits[24]
    if state == FIELD_UNSURE:
        return 0
    if state == FIELD_MISSING or family == FAMILY_VOID:
        column_null(c)
    elif family == FAMILY_TEXT and is_ascii(text, length):
        column_add(c, text, length)
    elif family == FAMILY_BOOL:
        column_add(c, "true" if text[0] else "false", 4 if text[0] else 5)
    elif field_integer(field, &value):
        column_add(c, digits, snprintf(digits, sizeof(digits), "%lld", <long long> value))
    else:
        return 0
    return 1


cdef inline int add_number(Column* c, const uint8_t* at, int64_t begin, int number, int64_t latest) except -1:
    """Add a row of fixed width: a number, microseconds, or nothing."""
    cdef int32_t small = at[begin] if begin >= 0 and number != PROPERTY_TIMESTAMP else 0
    cdef uint64_t seconds = frames_number(at + begin, 8) if begin >= 0 and number == PROPERTY_TIMESTAMP else 0
    cdef int64_t moment = 0
    cdef bint there = begin >= 0
    if number == PROPERTY_TIMESTAMP:
        there = there and seconds <= <uint64_t> latest
        if there:
            moment = <int64_t> seconds * 1_000_000
        column_add(c, <char*> &moment, 8)
    else:
        column_add(c, <char*> &small, 4)
    if not there:
        column_unset(c)
    return 0


cdef inline bint is_number(int number) noexcept:
    return number == PROPERTY_DELIVERY_MODE or number == PROPERTY_PRIORITY or number == PROPERTY_TIMESTAMP


cdef inline int add_property(
    Column* c, const uint8_t* at, const Properties* found, int number, int64_t latest
) except -1:
    """Add a row with a property that is there, or not."""
    cdef int64_t begin = found.begin[number]
    if is_number(number):
        add_number(c, at, begin, number, latest)
    elif begin < 0:
        column_null(c)
    else:
        column_add_text(c, <const char*> at + begin, found.end[number] - begin)
    return 0


cdef inline int add_headers(
    Column* columns, list names, const uint8_t* at, int64_t size, const Properties* found, object source,
    object headers
) except -1:
    """Add a row to the column of each header; where it takes Python, as `headers(source)` says."""
    cdef int64_t begin = found.begin[PROPERTY_HEADERS]
    cdef list values = None
    cdef Field field
    cdef FieldFound state
    cdef bytes name
    cdef int i
    for i in range(PyList_GET_SIZE(names)):
        name = <bytes> PyList_GET_ITEM(names, i)
        if begin < 0:
            column_null(&columns[i])
            continue
        if values is None:
            state = tables_find(
                at, begin, size, <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &field
            )
            if add_value(&columns[i], state, &field):
                continue
            values = headers(source)  # from here on `at` is not read
        column_add_object(&columns[i], values[i])
    return 0


cdef inline int check_numbers(tuple numbers) except -1:
    for number in numbers:
        if not 0 <= number < PROPERTIES or number == PROPERTY_HEADERS:
            raise ValueError(f"numbers must be of properties other than headers, got {number}")
    return 0


cdef inline bint add_content(
    Column* columns, const uint8_t* at, int64_t size, tuple numbers, list names, object source, object headers,
    int64_t latest,
) except -1:
    """Add the properties and headers in a content header; False if it is none."""
    cdef Properties found
    cdef int i, count = len(numbers)
    if not contents_find(at, size, &found):
        return False
    for i in range(count):
        add_property(&columns[i], at, &found, numbers[i], latest)
    if names:
        add_headers(&columns[count], names, at, size, &found, source, headers)
    return True


cdef inline int add_read(Column* c, object value, int number) except -1:
    """Add a row with a property as Python has it: microseconds, a number, a text or None."""
    cdef int64_t moment = 0
    cdef int32_t small = 0
    if not is_number(number):
        return column_add_object(c, value)
    if number == PROPERTY_TIMESTAMP:
        moment = 0 if value is None else value
        column_add(c, <char*> &moment, 8)
    else:
        small = 0 if value is None else value
        column_add(c, <char*> &small, 4)
    if value is None:
        column_unset(c)
    return 0
