"""One field of a table of AMQP 0-9-1, found without decoding the others.

Bytes may be anything: no length is trusted before what it spans is known to be there. What takes more than a walk along
the table, such as tables inside it, is left to who decodes all of it (fairsched/amqp/fieldtables.py).

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it.
Thread safety: a pure function. Complexity: O(fields).
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from fairsched.core.amqp.frames cimport frames_number

cdef enum FieldFound:
    FIELD_MISSING
    FIELD_FOUND
    FIELD_UNSURE  # the table is not flat, or is broken

cdef struct Field:
    uint8_t kind
    int64_t begin
    int64_t end

cdef inline int64_t tables_value_size(const uint8_t* bytes, int64_t at, int64_t end, uint8_t kind) noexcept nogil:
    """Octets of a value whose kind was read; -1: not for us to say."""
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
    if kind in (b'S', b'x') and end - at >= 4:
        return 4 + <int64_t> frames_number(bytes + at, 4)
    return -1

cdef inline FieldFound tables_find(
    const uint8_t* bytes, int64_t begin, int64_t size, const uint8_t* name, int64_t length, Field* found
) noexcept nogil:
    """Look for the last field of that name in the table whose length stands at `begin`, all of it within `size`."""
    cdef int64_t at = begin + 4, end, value
    cdef FieldFound state = FIELD_MISSING
    cdef uint8_t kind
    found.kind = 0
    found.begin = found.end = begin
    if at > size:
        return FIELD_UNSURE
    end = at + <int64_t> frames_number(bytes + begin, 4)
    if end > size:
        return FIELD_UNSURE
    while at < end:
        value = at + 1 + bytes[at]
        if value >= end:
            return FIELD_UNSURE
        kind = bytes[value]
        size = tables_value_size(bytes, value + 1, end, kind)
        if size < 0 or value + 1 + size > end:
            return FIELD_UNSURE
        if bytes[at] == length and memcmp(bytes + at + 1, name, length) == 0:
            found.kind = kind
            found.begin = value + 1
            found.end = value + 1 + size
            state = FIELD_FOUND
        at = value + 1 + size
    return state
