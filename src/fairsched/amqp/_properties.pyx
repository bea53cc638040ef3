"""The properties of a message in its content header, read and written; and the types of header fields, for Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.contents cimport (
    PROPERTIES, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP, Properties,
    contents_find, contents_fixed, contents_prefix,
)
from fairsched.core.amqp.fieldtypes cimport FAMILY_UNKNOWN, SIZE_AHEAD, FieldType, type_of
from fairsched.core.amqp.frames cimport frames_number, frames_octets, frames_write
from fairsched.core.amqp.tables cimport TABLES_DEPTH

#: The properties of class basic, in the order of their flags.
PROPERTY_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)

#: Deepest nesting of tables and arrays in headers. RabbitMQ itself nests three.
MAX_DEPTH = TABLES_DEPTH
#: Longest short string, in bytes: names of headers, exchanges and queues, routing keys, properties.
SHORT_MAX = _SHORT_MAX

#: Names of FieldFamily, in its order.
cdef tuple FAMILIES = (
    "unknown", "void", "bool", "integer", "real", "decimal", "timestamp", "text", "octets", "array", "table",
)


cdef tuple type_row(int letter):
    cdef FieldType* type = type_of(<uint8_t> letter)
    return FAMILIES[<int> type.family], None if type.size == SIZE_AHEAD else type.size, bool(type.is_signed)


#: Types of header fields by the code of their letter: family, bytes of a value (None: its length precedes it),
#: and whether it is signed. The table is core/amqp/fieldtypes.pxd.
FIELD_TYPES = {letter: type_row(letter) for letter in range(256) if type_of(letter).family != FAMILY_UNKNOWN}


cdef inline object read_text(const char* text, int64_t length, bint lossless):
    if not lossless:
        return PyUnicode_DecodeUTF8(text, length, "replace")
    try:
        return PyUnicode_DecodeUTF8(text, length, NULL)
    except UnicodeDecodeError:
        return PyBytes_FromStringAndSize(text, length)


cdef inline object read_one(
    bytes header, const uint8_t* at, int number, const Properties* found, table, bint lossless
):
    """Return the value of a property that is present."""
    cdef int64_t begin = found.begin[number]
    if number == PROPERTY_HEADERS:
        return table(header, begin)[0]
    if number == PROPERTY_TIMESTAMP:
        return frames_number(at + begin, 8)
    if number == PROPERTY_DELIVERY_MODE or number == PROPERTY_PRIORITY:
        return at[begin]
    return read_text(<const char*> at + begin, found.end[number] - begin, lossless)


def read_properties(bytes header not None, tuple wanted not None, table, bint lossless=False):
    """read_properties(header, wanted, table, lossless=False)
    --

    Read properties from a content header.

    Parameters
    ----------
    header : bytes
        Payload of the header frame.
    wanted : tuple of int
        The properties to read, as indices into `PROPERTY_NAMES`.
    table : callable
        Called with `header` and the offset of a table (of its length field); returns a tuple whose first item is the
        table.
    lossless : bool
        True: text that is not valid UTF-8 is returned as bytes, as in pika. False: invalid bytes are replaced.

    Returns
    -------
    dict of str to object
        The wanted properties that are present, by name: str, int, and the table.

    Raises
    ------
    ValueError
        If `header` is not a complete content header, or an index is out of range.

    Notes
    -----
    Complexity O(len(wanted)). Thread safety: a pure function.

    Source: AMQP 0-9-1, section 4.2.6.1.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(header)
    cdef Properties found
    cdef int number
    cdef dict values = {}
    if not contents_find(at, PyBytes_GET_SIZE(header), &found):
        raise ValueError(f"header must be a content header of class basic, got {header[:64]!r}")
    for number in wanted:
        if number < 0 or number >= PROPERTIES:
            raise ValueError(f"wanted must have numbers from 0 to {PROPERTIES - 1}, got {number}")
        if found.begin[number] >= 0:
            values[PROPERTY_NAMES[number]] = read_one(header, at, number, &found, table, lossless)
    return values


cdef inline uint64_t property_number(object value, int number) except? 0xFFFFFFFFFFFFFFFF:
    """Return the value of a numeric property."""
    cdef uint64_t limit = 0x7FFFFFFFFFFFFFFF if contents_fixed(number) == 8 else 0xFF
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit:
        return value
    raise ValueError(f"{PROPERTY_NAMES[number]} must be an int from 0 to {limit}, got {value!r}")


def encode_properties(dict values not None):
    """encode_properties(values)
    --

    Encode the properties of a message for its content header.

    Parameters
    ----------
    values : dict of str to object
        The properties by name, see `PROPERTY_NAMES`: str, int, and bytes for the headers (an encoded table with its
        length). None: the property is omitted.

    Returns
    -------
    bytes
        Property flags and values.

    Raises
    ------
    TypeError
        If there is no such property, or a text property is not a str.
    ValueError
        If a text is too long, or a number is out of range; the message names it.

    Notes
    -----
    Complexity O(length). Thread safety: a pure function.

    Source: AMQP 0-9-1, section 4.2.6.1.
    """
    cdef const char* texts[PROPERTIES]
    cdef uint64_t numbers[PROPERTIES]
    cdef Py_ssize_t sizes[PROPERTIES]
    cdef int number
    cdef uint64_t flags = 0
    cdef int64_t size = 2, given = 0
    cdef bytes encoded
    cdef uint8_t* to
    held = []  # what `texts` points into stays, whatever an error's text runs
    for number in range(PROPERTIES):
        value = values.get(PROPERTY_NAMES[number], None)
        given += PROPERTY_NAMES[number] in values
        if value is None:
            continue
        flags |= 0x8000 >> number
        held.append(value)
        texts[number] = NULL
        if number == PROPERTY_HEADERS:
            texts[number] = PyBytes_AS_STRING(<bytes?> value)
            sizes[number] = PyBytes_GET_SIZE(<bytes> value)
            size += sizes[number]
        elif contents_prefix(number):
            texts[number] = short_text(value, PROPERTY_NAMES[number], &sizes[number])
            size += 1 + sizes[number]
        else:
            numbers[number] = property_number(value, number)
            size += contents_fixed(number)
    if given != len(values):
        unknown = [name for name in values if name not in PROPERTY_NAMES]
        raise TypeError(f"unknown property {unknown[0]!r}; there are {', '.join(PROPERTY_NAMES)}")
    encoded = PyBytes_FromStringAndSize(NULL, size)
    to = frames_write(<uint8_t*> PyBytes_AS_STRING(encoded), flags, 2)
    for number in range(PROPERTIES):
        if not flags & 0x8000 >> number:
            continue
        if texts[number] == NULL:
            to = frames_write(to, numbers[number], <int> contents_fixed(number))
            continue
        if number != PROPERTY_HEADERS:
            to = frames_write(to, <uint64_t> sizes[number], 1)
        to = frames_octets(to, <const uint8_t*> texts[number], sizes[number])
    return encoded
