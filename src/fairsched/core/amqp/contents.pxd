"""Contents of AMQP 0-9-1: their frames, the properties in a content header, and a header with other properties.

Input is untrusted: each length is checked against the available bytes before use.

Source: AMQP 0-9-1, sections 4.2.6.1 (content header) and 1.8.2 (the properties of class basic).
Thread safety: pure functions. Complexity: O(1), and O(octets) to write.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fairsched.core.amqp.constants cimport CLASS_BASIC, FRAME_AROUND, FRAME_BODY, FRAME_END, FRAME_HEADER
from fairsched.core.amqp.frames cimport frames_head, frames_number, frames_octets, frames_write
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_append, bytes_number

cdef enum:
    CONTENT_HEAD = 12       # octets of a content header before the properties: class, weight, size of the body
    PROPERTIES = 14         # in the order of their flags
    PROPERTY_CONTENT_TYPE = 0
    PROPERTY_CONTENT_ENCODING = 1
    PROPERTY_HEADERS = 2
    PROPERTY_DELIVERY_MODE = 3
    PROPERTY_PRIORITY = 4
    PROPERTY_CORRELATION_ID = 5
    PROPERTY_REPLY_TO = 6
    PROPERTY_EXPIRATION = 7
    PROPERTY_MESSAGE_ID = 8
    PROPERTY_TIMESTAMP = 9
    PROPERTY_TYPE = 10
    PROPERTY_USER_ID = 11
    PROPERTY_APP_ID = 12
    PROPERTY_CLUSTER_ID = 13


# A content in frames --------------------------------------------------------------------------------------------------

cdef struct Content:
    const uint8_t* exchange
    int64_t exchange_size        # 255 at most
    const uint8_t* key
    int64_t key_size             # 255 at most
    const uint8_t* properties    # flags and values
    int64_t properties_size
    const uint8_t* body
    int64_t body_size
    bint mandatory

cdef inline int64_t contents_size(const Content* c, int64_t longest) noexcept nogil:
    """Return the octets of header and body in frames whose payloads have at most `longest` octets."""
    return (
        FRAME_AROUND + CONTENT_HEAD + c.properties_size
        + c.body_size + FRAME_AROUND * ((c.body_size + longest - 1) // longest)
    )

cdef inline uint8_t* contents_header(const Content* c, uint32_t channel, uint8_t* to) noexcept nogil:
    to = frames_head(to, FRAME_HEADER, channel, CONTENT_HEAD + c.properties_size)
    to = frames_write(to, <uint64_t> CLASS_BASIC << 16, 4)  # and the weight, 0
    to = frames_octets(frames_write(to, c.body_size, 8), c.properties, c.properties_size)
    to[0] = FRAME_END
    return to + 1

cdef inline void contents_write(const Content* c, uint32_t channel, int64_t longest, uint8_t* to) noexcept nogil:
    """Write header and body, `contents_size` octets."""
    cdef int64_t at = 0, size
    to = contents_header(c, channel, to)
    while at < c.body_size:
        size = min(longest, c.body_size - at)
        to = frames_octets(frames_head(to, FRAME_BODY, channel, size), c.body + at, size)
        to[0] = FRAME_END
        to += 1
        at += size


# Properties -----------------------------------------------------------------------------------------------------------

cdef struct Properties:  # begin and end of each value, in the order of the flags
    int64_t begin[PROPERTIES]   # -1: the property is missing
    int64_t end[PROPERTIES]

cdef inline int64_t contents_prefix(int number) noexcept nogil:
    """Return the octets of a property's length."""
    if number == PROPERTY_HEADERS:
        return 4
    return 0 if number in (PROPERTY_DELIVERY_MODE, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP) else 1

cdef inline int64_t contents_fixed(int number) noexcept nogil:
    """Return the octets of a property without a length."""
    return 8 if number == PROPERTY_TIMESTAMP else 1

cdef inline bint contents_find(const uint8_t* header, int64_t size, Properties* found) noexcept nogil:
    """Find the properties in the payload of a content header; False: malformed. A table begins with its length."""
    cdef int64_t at = CONTENT_HEAD + 2, prefix, length
    cdef uint64_t flags
    cdef int number
    if size < at:
        return False
    flags = frames_number(header + CONTENT_HEAD, 2)
    if flags & 3:  # an unknown property, or more flags
        return False
    for number in range(PROPERTIES):
        found.begin[number] = -1
        if not flags & 0x8000 >> number:
            continue
        prefix = contents_prefix(number)
        if at + prefix > size:
            return False
        length = <int64_t> frames_number(header + at, <int> prefix) if prefix else contents_fixed(number)
        found.begin[number] = at if number == PROPERTY_HEADERS else at + prefix
        at += prefix + length
        found.end[number] = at
        if at > size:
            return False
    return True

cdef inline int64_t contents_body_size(const uint8_t* header) noexcept nogil:
    """Return the size of the body according to a content header; negative: out of range."""
    return <int64_t> frames_number(header + 4, 8)

cdef inline bint contents_has(const Properties* found, int number) noexcept nogil:
    return found.begin[number] >= 0

cdef inline Text contents_text(const uint8_t* header, const Properties* found, int number) noexcept nogil:
    """Return the value of a property, of `headers` with its length; empty if the property is missing."""
    if found.begin[number] < 0:
        return Text(NULL, 0)
    return Text(header + found.begin[number], <uint32_t> (found.end[number] - found.begin[number]))

cdef inline uint64_t contents_number(
    const uint8_t* header, const Properties* found, int number, uint64_t otherwise
) noexcept nogil:
    """Return the value of a numeric property: delivery mode, priority, timestamp."""
    if found.begin[number] < 0:
        return otherwise
    return frames_number(header + found.begin[number], <int> contents_fixed(number))

cdef inline uint32_t contents_flag(int number) noexcept nogil:
    return 0x8000 >> number

cdef inline void contents_rewrite(
    Bytes* out, const uint8_t* header, const Properties* found, uint32_t without, const Text* headers
) noexcept nogil:
    """Append the payload of a content header that was found, without some properties and with other headers.

    `without` has the flags (`contents_flag`) of what is left out; `headers` is a table, from its length on, or NULL:
    they stay as they are.
    """
    cdef uint32_t flags = <uint32_t> frames_number(header + CONTENT_HEAD, 2) & ~without
    cdef int64_t begin
    cdef int number
    if headers != NULL:
        flags |= contents_flag(PROPERTY_HEADERS)
    bytes_append(out, header, CONTENT_HEAD)
    bytes_number(out, flags, 2)
    for number in range(PROPERTIES):
        if not flags & contents_flag(number):
            continue
        if number == PROPERTY_HEADERS and headers != NULL:
            bytes_append(out, headers.data, headers.length)
            continue
        begin = found.begin[number] - (0 if number == PROPERTY_HEADERS else contents_prefix(number))
        bytes_append(out, header + begin, found.end[number] - begin)
