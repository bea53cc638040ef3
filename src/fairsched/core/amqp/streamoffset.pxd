"""Offset of a message in its stream, from the payload of its content header.

The broker adds it as a header of 64 bits, `x-stream-offset`. Publishers may have given headers of that name, too: the
broker puts its own in place of the first one, and RabbitMQ 3.10 leaves the others behind it.

Thread safety: pure. Complexity: O(octets of the header). Source: RabbitMQ, "Streams", rabbit_misc (set_table_value).
"""

from libc.stdint cimport int64_t, uint8_t

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find, contents_text
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport text_of
from fairsched.core.amqp.tables cimport Field, tables_get

cdef inline int64_t stream_offset(const uint8_t* at, int64_t size) noexcept nogil:
    """Return the offset; -1: the message is not from a stream."""
    cdef Properties properties
    cdef Field field
    if not contents_find(at, size, &properties):
        return -1
    # What is nested is skipped: a field of that name in a table among the headers is not the broker's.
    if not tables_get(contents_text(at, &properties, PROPERTY_HEADERS), text_of(b"x-stream-offset"), &field):
        return -1
    return <int64_t> frames_number(field.value.data, 8) if field.kind == c'l' else -1
