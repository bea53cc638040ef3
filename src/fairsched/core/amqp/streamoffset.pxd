"""Offset of a message in its stream, from the payload of its content header.

The broker adds it as a header of 64 bits, `x-stream-offset`. Nested tables are not decoded: if the headers contain one,
the name is searched for in the octets.

Thread safety: pure. Complexity: O(octets of the header). Source: RabbitMQ, "Streams".
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.tables cimport FIELD_FOUND, FIELD_UNSURE, Field, FieldFound, tables_find

cdef enum:
    OFFSET_SIZE = 17  # of the name with its length, and the type of the value

cdef inline int64_t stream_offset(const uint8_t* at, int64_t size) noexcept nogil:
    """Return the offset; -1: the message is not from a stream."""
    cdef const uint8_t* name = <const uint8_t*> b"\x0fx-stream-offsetl"
    cdef Properties properties
    cdef Field field
    cdef FieldFound state = FIELD_UNSURE
    cdef int64_t begin
    if contents_find(at, size, &properties):
        if properties.begin[PROPERTY_HEADERS] < 0:
            return -1
        state = tables_find(at, properties.begin[PROPERTY_HEADERS], size, name + 1, OFFSET_SIZE - 2, &field)
        if state == FIELD_FOUND and field.kind == c'l':
            return <int64_t> frames_number(field.value.data, 8)
    if state == FIELD_UNSURE:  # nested or malformed headers
        for begin in range(size - OFFSET_SIZE - 7):
            if memcmp(at + begin, name, OFFSET_SIZE) == 0:
                return <int64_t> frames_number(at + begin + OFFSET_SIZE, 8)
    return -1
