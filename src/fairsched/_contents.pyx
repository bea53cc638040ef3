"""What is in deliveries that were cut apart: the fields of methods, and the properties in content headers."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t

from fairsched.core.contents cimport (
    PROPERTIES, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP, Properties,
    contents_find,
)
from fairsched.core.frames cimport frames_number

#: The properties of class basic, in the order of their flags.
PROPERTY_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)


def read_methods(list deliveries not None):
    """read_methods(deliveries)
    --

    Read the fields of basic.deliver.

    Parameters
    ----------
    deliveries : list of tuple
        As `take_deliveries` makes them: the method comes first.

    Returns
    -------
    tags : list of bytes
        Consumer tags.
    redelivered : list of bool
    paths : list of bytes
        Exchange and routing key, each after an octet with its length.

    Raises
    ------
    ValueError
        A method is cut short, or a delivery has not four parts.
    TypeError
        A method is not bytes.

    Notes
    -----
    Complexity O(deliveries). Thread safety: a pure function.

    Source: AMQP 0-9-1, section 1.8.3.13.
    """
    cdef list tags = [], redelivered = [], paths = []
    cdef bytes method
    cdef const uint8_t* at
    cdef int64_t size, end
    for method, _header, _body, _received in deliveries:
        if method is None:
            raise TypeError("method must be bytes, got None")
        at = <const uint8_t*> PyBytes_AS_STRING(method)
        size = PyBytes_GET_SIZE(method)
        end = 5 + <int64_t> at[4] if size > 4 else size
        if end + 9 > size:
            raise ValueError(f"method must be a basic.deliver, got {size} bytes that end before its flags")
        tags.append(method[5:end])
        redelivered.append(at[end + 8] & 1 != 0)
        paths.append(method[end + 9:])
    return tags, redelivered, paths


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
    """The value of a property that is there."""
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

    Read properties of a content header.

    Parameters
    ----------
    header : bytes
        Payload of the frame.
    wanted : tuple of int
        Which, as indices of `PROPERTY_NAMES`.
    table : callable
        Called with `header` and where in it a table begins, with its length; returns a tuple that begins with the
        table.
    lossless : bool
        Whether a text that is no UTF-8 is bytes, as in pika; otherwise, what is none in it is replaced.

    Returns
    -------
    dict of str to object
        Those of the wanted that are there, by name: str, int, and the table.

    Raises
    ------
    ValueError
        It is no content header, or is cut short; or there is no such property.

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
