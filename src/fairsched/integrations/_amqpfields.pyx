"""Properties and field tables as py-amqp reads and writes them: the same values, and the same octets.

`fairsched.amqp.fieldtables` reads so that no message can stop a reader, and writes what pika writes. py-amqp differs
from it in types: a timestamp is a datetime without a time zone, bytes are sent as text, integers beyond 32 bits have
the letter L. Programs that were written for py-amqp expect that.

Values that are rare, or not well formed, are left to py-amqp's own functions, which decide whether they are an error
and which one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, PROPERTIES, PROPERTY_HEADERS, Properties, contents_find, contents_fixed, contents_prefix,
    contents_text,
)
from fairsched.core.amqp.fieldtypes cimport (
    FAMILY_ARRAY, FAMILY_BOOL, FAMILY_DECIMAL, FAMILY_OCTETS, FAMILY_REAL, FAMILY_TABLE, FAMILY_TEXT, FAMILY_TIMESTAMP,
    FAMILY_VOID, FieldFamily,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport (
    SHORT_MAX, Bytes, Text, bytes_clear, bytes_init, bytes_long, bytes_number, bytes_put, bytes_short, bytes_size,
)
from fairsched.core.amqp.tables cimport (
    TABLES_DEPTH, Field, TableWalk, field_family, field_integer, field_real, tables_next, tables_walk,
)

from datetime import datetime, timezone
from decimal import Decimal

#: The names of py-amqp in the order of the flags.
cdef tuple NAMES = (
    "content_type", "content_encoding", "application_headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)


# Reading --------------------------------------------------------------------------------------------------------------

class _Unusual(Exception):
    """Something that py-amqp's own reader has to judge."""


cdef object text_or_octets(Text found):
    """Return text, or octets that are not UTF-8 as they are."""
    try:
        return PyUnicode_DecodeUTF8(<const char*> found.data, found.length, NULL)
    except UnicodeDecodeError:
        if b"\xed" in found.data[:found.length]:
            raise _Unusual from None  # perhaps a surrogate, which py-amqp lets pass
        return PyBytes_FromStringAndSize(<const char*> found.data, found.length)


cdef object value_read(const Field* f, int depth):
    cdef FieldFamily family = field_family(f)
    cdef int64_t number
    if family == FAMILY_TEXT:
        return text_or_octets(f.value)
    if field_integer(f, &number):
        return number
    if family == FAMILY_BOOL:
        return f.value.data[0] != 0
    if family == FAMILY_TABLE:
        return table_read(f.value, depth + 1)
    if family == FAMILY_ARRAY:
        return array_read(f.value, depth + 1)
    if family == FAMILY_VOID:
        return None
    if family == FAMILY_REAL:
        return field_real(f)
    if family == FAMILY_OCTETS:
        return PyBytes_FromStringAndSize(<const char*> f.value.data, f.value.length)
    if family == FAMILY_TIMESTAMP:
        return datetime.fromtimestamp(frames_number(f.value.data, 8), tz=timezone.utc).replace(tzinfo=None)
    if family == FAMILY_DECIMAL:
        number = <int64_t> <int> frames_number(f.value.data + 1, 4)
        return Decimal(number) / Decimal(10 ** <int> f.value.data[0])
    raise _Unusual


cdef dict table_read(Text table, int depth):
    cdef TableWalk w = tables_walk(table)
    cdef Text name
    cdef Field field
    cdef dict found = {}
    if depth > TABLES_DEPTH:
        raise _Unusual
    while tables_next(&w, &name, &field):
        found[text_or_octets(name)] = value_read(&field, depth)
    if w.broken:
        raise _Unusual
    return found


cdef list array_read(Text array, int depth):
    cdef TableWalk w = tables_walk(array, False)
    cdef Text name
    cdef Field field
    cdef list found = []
    if depth > TABLES_DEPTH:
        raise _Unusual
    while tables_next(&w, &name, &field):
        found.append(value_read(&field, depth))
    if w.broken:
        raise _Unusual
    return found


cdef dict usual_properties(const uint8_t* header, int64_t size):
    cdef Properties found
    cdef dict values = {}
    cdef Text text
    cdef int number
    if not contents_find(header, size, &found):
        raise _Unusual
    for number in range(PROPERTIES):
        if found.begin[number] < 0:
            continue
        text = contents_text(header, &found, number)
        if number == PROPERTY_HEADERS:
            values[NAMES[number]] = table_read(text, 1)
        elif contents_prefix(number):
            values[NAMES[number]] = PyUnicode_DecodeUTF8(<const char*> text.data, text.length, NULL)
        else:
            values[NAMES[number]] = frames_number(text.data, <int> contents_fixed(number))
    return values


cdef dict properties_read(const uint8_t* header, int64_t size):
    """Return the properties in the payload of a content header, by py-amqp's names."""
    try:
        return usual_properties(header, size)
    except (_Unusual, UnicodeDecodeError):
        from amqp.serialization import decode_properties_basic

        return decode_properties_basic(PyBytes_FromStringAndSize(<const char*> header, size), CONTENT_HEAD)[0]


def read_properties(bytes header not None):
    """read_properties(header)
    --

    Read all properties from a content header.

    Parameters
    ----------
    header : bytes
        Payload of the header frame.

    Returns
    -------
    dict of str to object
        The properties that are present, by py-amqp's names: the headers are ``application_headers``.

    Raises
    ------
    Exception
        Whatever py-amqp raises for a header that is not well formed.

    Notes
    -----
    O(length). Thread safety: a pure function.

    Source: py-amqp, `amqp.serialization`.
    """
    return properties_read(<const uint8_t*> PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))


# Writing --------------------------------------------------------------------------------------------------------------
# Each function returns whether it could write a value; if not, py-amqp's own function has to.

cdef bint octets_of(object value, Text* text) except -1:
    """Find the octets of a str or bytes."""
    cdef Py_ssize_t size
    if isinstance(value, str):
        try:
            text.data = <const uint8_t*> PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            return False
    elif type(value) is bytes:
        text.data = <const uint8_t*> PyBytes_AS_STRING(value)
        size = PyBytes_GET_SIZE(value)
    else:
        return False
    if size > 0x7FFFFFFF:
        return False
    text.length = <uint32_t> size
    return True


cdef bint short_write(Bytes* out, object value) except -1:
    cdef Text text
    if not octets_of(value, &text) or text.length > SHORT_MAX:
        return False
    bytes_short(out, text)
    return True


cdef bint number_write(Bytes* out, object value) except -1:
    cdef int64_t number
    try:
        number = value
    except OverflowError:
        return False
    if -2147483647 <= number <= 2147483647:
        bytes_number(out, c"I", 1)
        bytes_number(out, <uint32_t> number, 4)
    else:
        bytes_number(out, c"L", 1)
        bytes_number(out, <uint64_t> number, 8)
    return True


cdef bint value_write(Bytes* out, object value, int depth) except -1:
    cdef Text text
    cdef double real
    cdef uint64_t raw
    if octets_of(value, &text):
        bytes_number(out, c"S", 1)
        bytes_long(out, text)
    elif type(value) is bool:
        bytes_number(out, c"t", 1)
        bytes_number(out, value is True, 1)
    elif type(value) is float:
        real = PyFloat_AS_DOUBLE(value)
        memcpy(&raw, &real, sizeof(double))
        bytes_number(out, c"d", 1)
        bytes_number(out, raw, 8)
    elif type(value) is int:
        return number_write(out, value)
    elif value is None:
        bytes_number(out, c"V", 1)
    elif type(value) is dict:
        bytes_number(out, c"F", 1)
        return table_write(out, value, depth + 1)
    elif type(value) is list or type(value) is tuple:
        bytes_number(out, c"A", 1)
        return array_write(out, tuple(value), depth + 1)
    else:
        return False
    return True


cdef bint table_write(Bytes* out, dict values, int depth) except -1:
    cdef int64_t start = bytes_size(out)
    if depth > TABLES_DEPTH:
        return False
    bytes_number(out, 0, 4)
    for name, value in values.items():
        if not short_write(out, name) or not value_write(out, value, depth):
            return False
    bytes_put(out, start, <uint64_t> (bytes_size(out) - start - 4), 4)
    return True


cdef bint array_write(Bytes* out, tuple values, int depth) except -1:
    cdef int64_t start = bytes_size(out)
    if depth > TABLES_DEPTH:
        return False
    bytes_number(out, 0, 4)
    for value in values:
        if not value_write(out, value, depth):
            return False
    bytes_put(out, start, <uint64_t> (bytes_size(out) - start - 4), 4)
    return True


cdef bint property_write(Bytes* out, int number, object value) except -1:
    cdef int64_t plain
    if number == PROPERTY_HEADERS:
        return table_write(out, value, 1) if type(value) is dict else False
    if contents_prefix(number):
        return short_write(out, value)
    if type(value) is not int:
        return False
    try:
        plain = value
    except OverflowError:
        return False
    if plain < 0 or contents_fixed(number) == 1 and plain > 0xFF:
        return False
    bytes_number(out, <uint64_t> plain, <int> contents_fixed(number))
    return True


cdef bint properties_write(Bytes* out, dict values) except -1:
    """Append flags and values of properties, given by py-amqp's names; False: py-amqp's own function has to."""
    cdef int64_t start = bytes_size(out)
    cdef uint64_t flags = 0
    cdef int number
    bytes_number(out, 0, 2)
    for number in range(PROPERTIES):
        value = values.get(NAMES[number])
        if value is None:
            continue
        flags |= 0x8000 >> number
        if not property_write(out, number, value):
            return False
    bytes_put(out, start, flags, 2)
    if out.failed:
        raise MemoryError()
    return True


def write_properties(dict values not None):
    """write_properties(values)
    --

    Encode properties as py-amqp does.

    Parameters
    ----------
    values : dict of str to object
        By py-amqp's names; None, and names that are not properties, are left out.

    Returns
    -------
    bytes or None
        Flags and values; None: there is a value that py-amqp's own function has to encode, or to refuse.

    Notes
    -----
    O(length). Thread safety: a pure function.

    Source: py-amqp, `amqp.serialization`.
    """
    cdef Bytes out
    bytes_init(&out)
    try:
        if not properties_write(&out, values):
            return None
        return PyBytes_FromStringAndSize(<const char*> out.data + out.begin, bytes_size(&out))
    finally:
        bytes_clear(&out)
