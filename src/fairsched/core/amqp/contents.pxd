"""The properties in a content header of AMQP 0-9-1: which there are, and where.

Bytes may be anything: no length is trusted before what it spans is known to be there.

Source: AMQP 0-9-1, sections 4.2.6.1 (content header) and 1.8.2 (the properties of class basic).
Thread safety: a pure function. Complexity: O(1).
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.frames cimport frames_number

cdef enum:
    PROPERTIES = 14
    PROPERTY_HEADERS = 2
    PROPERTY_DELIVERY_MODE = 3
    PROPERTY_PRIORITY = 4
    PROPERTY_TIMESTAMP = 9
    CONTENT_FLAGS = 12      # octets before the flags: class, weight, size of the body

cdef struct Properties:  # of each, in the order of its flag, where its value is
    int64_t begin[PROPERTIES]   # -1: it is not there
    int64_t end[PROPERTIES]

cdef inline int64_t contents_prefix(int number) noexcept nogil:
    """Octets that say how long a property is."""
    if number == PROPERTY_HEADERS:
        return 4
    return 0 if number in (PROPERTY_DELIVERY_MODE, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP) else 1

cdef inline int64_t contents_fixed(int number) noexcept nogil:
    """Octets of a property that has no prefix."""
    return 8 if number == PROPERTY_TIMESTAMP else 1

cdef inline bint contents_find(const uint8_t* header, int64_t size, Properties* found) noexcept nogil:
    """Find the properties in the payload of a content header; False: it is none. A table begins with its length."""
    cdef int64_t at = CONTENT_FLAGS + 2, prefix, length
    cdef uint64_t flags
    cdef int number
    if size < at:
        return False
    flags = frames_number(header + CONTENT_FLAGS, 2)
    if flags & 3:  # no such property, or more flags
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
