"""The sections of a message of AMQP 1.0, as a stream stores it.

Source: OASIS AMQP 1.0, part 3 (Messaging), section 3.2; RabbitMQ, mc_amqp (what it makes of each body).
Thread safety: pure functions. Complexity: O(sections), or O(values) for a value that is looked for.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport Reader, Text, reader_of, reader_skip, text_equal, text_is
from fairsched.core.streams.values cimport (
    KIND_LIST, KIND_MAP, KIND_SYMBOL, Value, value_is_text, value_items, value_kind, value_missing, value_next,
    value_payload, value_text,
)

cdef enum:
    SECTION_HEADER = 0x70
    SECTION_ANNOTATIONS = 0x72
    SECTION_PROPERTIES = 0x73
    SECTION_APPLICATION = 0x74
    SECTION_DATA = 0x75
    SECTION_SEQUENCE = 0x76
    SECTION_VALUE = 0x77

cdef struct Sections:
    Value header
    Value annotations        # of the message
    Value properties
    Value application        # application properties
    int64_t body             # offsets of the first data section's octets, or of a body that is no data, encoded
    int64_t body_end
    int64_t data             # data sections; 0: the body is a sequence or a value
    int64_t first            # offset of the first section of the body

cdef inline int section_code(Reader* r) noexcept nogil:
    """Read a section's descriptor, a number or its name; 0: it is neither."""
    cdef const uint8_t* at = reader_skip(r, 1)
    cdef Value v
    if at == NULL or at[0] != 0:
        return 0
    at = reader_skip(r, 1)
    if at == NULL or not value_payload(r, at[0], &v):
        return 0
    if v.code == 0x53 or v.code == 0x80:
        return <int> min(frames_number(v.data, <int> v.size), <uint64_t> 255)
    if value_kind(&v) != KIND_SYMBOL:
        return 0
    for code in range(SECTION_HEADER, SECTION_VALUE + 2):
        if text_is(value_text(&v), section_name(code)):
            return code
    return 0

cdef inline const char* section_name(int code) noexcept nogil:
    if code == SECTION_HEADER:
        return b"amqp:header:list"
    if code == SECTION_ANNOTATIONS:
        return b"amqp:message-annotations:map"
    if code == SECTION_PROPERTIES:
        return b"amqp:properties:list"
    if code == SECTION_APPLICATION:
        return b"amqp:application-properties:map"
    if code == SECTION_DATA:
        return b"amqp:data:binary"
    if code == SECTION_SEQUENCE:
        return b"amqp:amqp-sequence:list"
    if code == SECTION_VALUE:
        return b"amqp:amqp-value:*"
    return b"amqp:delivery-annotations:map" if code == SECTION_HEADER + 1 else b"amqp:footer:map"

cdef inline void sections_forget(Sections* s) noexcept nogil:
    """Describe octets that are no message: a body without properties."""
    s.header = s.annotations = s.properties = s.application = value_missing()
    s.data = 1

cdef inline bint sections_find(const uint8_t* data, int64_t size, Sections* s) noexcept nogil:
    """Find the sections of a message; False: it is none of AMQP 1.0, or has no body."""
    cdef Reader r = reader_of(data, size)
    cdef Value v
    cdef int64_t start
    cdef int code
    s.header = s.annotations = s.properties = s.application = value_missing()
    s.body = s.body_end = s.first = -1
    s.data = 0
    while r.at < r.end:
        start = r.at
        code = section_code(&r)
        if code in (SECTION_SEQUENCE, SECTION_VALUE) and s.first < 0:
            s.first = s.body = start
            s.body_end = size
            return True
        if not code or not value_next(&r, &v):
            return False
        if code == SECTION_DATA:
            if s.data == 0:
                s.first = start
                s.body = v.data - data
                s.body_end = s.body + v.size
            s.data += 1
        elif code == SECTION_ANNOTATIONS and value_kind(&v) == KIND_MAP:
            s.annotations = v
        elif code == SECTION_PROPERTIES and value_kind(&v) == KIND_LIST:
            s.properties = v
        elif code == SECTION_APPLICATION and value_kind(&v) == KIND_MAP:
            s.application = v
        elif code == SECTION_HEADER and value_kind(&v) == KIND_LIST:
            s.header = v
    return s.data > 0

cdef inline bint sections_more_data(
    const uint8_t* data, int64_t size, int64_t* at, int64_t* begin, int64_t* end
) noexcept nogil:
    """Find the next data section from `at` on, which moves behind it; False: there is none."""
    cdef Reader r = reader_of(data, size)
    cdef Value v
    cdef int code
    r.at = at[0]
    while r.at < r.end:
        code = section_code(&r)
        if not code or not value_next(&r, &v):
            return False
        at[0] = r.at
        if code == SECTION_DATA:
            begin[0] = v.data - data
            end[0] = begin[0] + v.size
            return True
    return False

cdef inline Value list_item(const Value* items, int number) noexcept nogil:
    """Return an item of a list by its number; a missing one if there are fewer."""
    cdef Reader r
    cdef Value v
    if value_kind(items) != KIND_LIST:
        return value_missing()
    r = value_items(items)
    while r.at < r.end and value_next(&r, &v):
        if number == 0:
            return v
        number -= 1
    return value_missing()

cdef inline Value map_item(const Value* items, Text name) noexcept nogil:
    """Return the first value of a map that has a name."""
    cdef Reader r
    cdef Value key, v
    if value_kind(items) != KIND_MAP:
        return value_missing()
    r = value_items(items)
    while r.at < r.end and value_next(&r, &key) and value_next(&r, &v):
        if value_is_text(&key) and text_equal(value_text(&key), name):
            return v
    return value_missing()
