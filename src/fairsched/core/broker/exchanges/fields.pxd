"""The fields of a table in the order of their names, and the equality of values as in RabbitMQ.

Values are compared as by Erlang's `==`: numbers by value whatever their types, strings and octets (x) by their bytes,
arrays and tables element by element, where the types of the elements must be equal, too.

Source: AMQP 0-9-1, section 4.2.5.5, with RabbitMQ's errata; the answers of RabbitMQ (tests/integration/broker).
Thread safety: pure functions; `Fields` is its owner's. Complexity: O(octets); sorting O(fields log fields).
"""

from libc.math cimport fabs, floor
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp

from fairsched.core.amqp.fieldtypes cimport (
    FAMILY_ARRAY, FAMILY_BOOL, FAMILY_INTEGER, FAMILY_OCTETS, FAMILY_REAL, FAMILY_TABLE, FAMILY_TEXT, FAMILY_TIMESTAMP,
    FieldFamily, FieldType, type_of,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport Bytes, Text, text_equal
from fairsched.core.amqp.tables cimport (
    TABLES_DEPTH, Field, TableWalk, field_family, field_integer, field_is_real, field_is_table, field_real, table_begin,
    table_end, table_field, tables_next, tables_walk,
)
from fairsched.core.memory cimport array_reserve


# Fields in the order of their names -----------------------------------------------------------------------------------

cdef struct NamedField:
    Text name
    Field field

cdef struct Fields:
    NamedField* at
    int64_t count
    int64_t room

cdef inline void fields_init(Fields* f) noexcept nogil:
    f.at = NULL
    f.count = f.room = 0

cdef inline void fields_clear(Fields* f) noexcept nogil:
    free(f.at)
    fields_init(f)

cdef inline int text_compare(Text a, Text b) noexcept nogil:
    """Compare octet by octet, as Erlang compares binaries."""
    cdef uint32_t shorter = min(a.length, b.length)
    cdef int order = memcmp(a.data, b.data, shorter) if shorter else 0
    return order if order != 0 else <int> (a.length > b.length) - <int> (a.length < b.length)

cdef inline int fields_compare(const void* a, const void* b) noexcept nogil:
    cdef const NamedField* left = <const NamedField*> a
    cdef const NamedField* right = <const NamedField*> b
    cdef int order = text_compare(left.name, right.name)
    if order != 0:
        return order
    return 1 if left.name.data > right.name.data else -1  # in the order of the table

cdef inline bint fields_room(Fields* f) noexcept nogil:
    """Make room for one more field; False: memory is exhausted."""
    return array_reserve(<void**> &f.at, &f.room, f.count + 1, sizeof(NamedField), 8)

cdef inline bint fields_read(Fields* f, Text table) noexcept nogil:
    """Read the fields of a table up to a malformed one, sorted by name; False: memory is exhausted."""
    cdef TableWalk w = tables_walk(table)
    cdef NamedField field
    cdef bint sorted = True
    f.count = 0
    while tables_next(&w, &field.name, &field.field):
        if not fields_room(f):
            return False
        sorted = sorted and (f.count == 0 or text_compare(f.at[f.count - 1].name, field.name) <= 0)
        f.at[f.count] = field
        f.count += 1
    if not sorted:
        qsort(f.at, f.count, sizeof(NamedField), fields_compare)
    return True

cdef inline void fields_write(Bytes* out, const Fields* f) noexcept nogil:
    """Append a table of these fields."""
    cdef int64_t begin = table_begin(out), i
    for i in range(f.count):
        table_field(out, f.at[i].name, &f.at[i].field)
    table_end(out, begin)


# Equality -------------------------------------------------------------------------------------------------------------

cdef struct Number:
    bint real
    double value             # if `real`
    bint negative            # like `magnitude`, if not `real`
    uint64_t magnitude

cdef inline FieldFamily comparison_family(const Field* f) noexcept nogil:
    """Return a value's family, with one for all numbers and one for all strings: values of others are never equal."""
    cdef FieldFamily family = field_family(f)
    if family == FAMILY_REAL or family == FAMILY_TIMESTAMP:
        return FAMILY_INTEGER
    return FAMILY_TEXT if family == FAMILY_OCTETS else family

cdef inline Number field_number(const Field* f) noexcept nogil:
    cdef Number n
    cdef int64_t integer = 0
    n.real = field_is_real(f)
    n.value = field_real(f) if n.real else 0
    n.negative = field_integer(f, &integer) and integer < 0
    if field_family(f) == FAMILY_TIMESTAMP:
        n.magnitude = frames_number(f.value.data, 8)
    else:
        n.magnitude = -<uint64_t> integer if n.negative else <uint64_t> integer
    return n

cdef inline bint number_is(const Number* n, double real) noexcept nogil:
    """Return whether an integer is exactly equal to a real number."""
    cdef double size = fabs(real)
    if not size < 18446744073709551616.0 or size != floor(size):
        return False
    return n.magnitude == <uint64_t> size and (n.magnitude == 0 or n.negative == (real < 0))

cdef inline bint numbers_equal(const Field* a, const Field* b) noexcept nogil:
    cdef Number left = field_number(a), right = field_number(b)
    if left.real and right.real:
        return left.value == right.value
    if left.real:
        return number_is(&right, left.value)
    if right.real:
        return number_is(&left, right.value)
    return left.magnitude == right.magnitude and left.negative == right.negative

cdef inline bint types_equal(const Field* a, const Field* b) noexcept nogil:
    """Return whether two values have one type, which may have two letters: l and L are one, and so are s and U."""
    cdef FieldType* first = type_of(a.kind)
    cdef FieldType* second = type_of(b.kind)
    return first.family == second.family and first.size == second.size and first.is_signed == second.is_signed

cdef inline bint elements_equal(const Field* a, const Field* b, int depth) noexcept nogil:
    """Return whether two arrays or two tables have equal elements of the same types in the same order."""
    cdef bint named = field_is_table(a), more
    cdef TableWalk left = tables_walk(a.value, named), right = tables_walk(b.value, named)
    cdef Text name, other
    cdef Field one, two
    while True:
        more = tables_next(&left, &name, &one)
        if more != tables_next(&right, &other, &two):
            return False
        if not more:
            return not left.broken and not right.broken
        if named and not text_equal(name, other):
            return False
        if not types_equal(&one, &two) or not values_equal(&one, &two, depth):
            return False

cdef inline bint values_equal(const Field* a, const Field* b, int depth=TABLES_DEPTH) noexcept nogil:
    cdef FieldFamily family = comparison_family(a), other = comparison_family(b)
    if family in (FAMILY_ARRAY, FAMILY_TABLE) and other in (FAMILY_ARRAY, FAMILY_TABLE):
        if family != other or depth == 0:
            return a.value.length == 4 and b.value.length == 4  # both are empty lists to Erlang
        return elements_equal(a, b, depth - 1)
    if family != other:
        return False
    if family == FAMILY_INTEGER:
        return numbers_equal(a, b)
    if family == FAMILY_BOOL:
        return (a.value.data[0] != 0) == (b.value.data[0] != 0)
    return text_equal(a.value, b.value)
