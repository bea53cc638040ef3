"""Read octets from a method, and write octets to a buffer: short and long strings, tables, numbers.

A reader never goes beyond its end: past it, values are 0 or empty, and `broken` is set, so that callers need to check
only once, at the end. A buffer that could not grow ignores further writes, and `failed` is set.

Source: AMQP 0-9-1, sections 4.2.1 and 4.2.5. Thread safety: none; the caller synchronizes.
Complexity: O(1), and O(octets) for what is copied.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, strlen

from fairsched.core.amqp.frames cimport frames_number, frames_write

cdef enum:
    BYTES_LEAST = 512    # octets of the first block of a buffer
    SHORT_MAX = 255      # octets of a short string


# Strings in memory of another owner -----------------------------------------------------------------------------------

cdef struct Text:
    const uint8_t* data
    uint32_t length

cdef inline Text text_of(const char* literal) noexcept nogil:
    return Text(<const uint8_t*> literal, <uint32_t> strlen(literal))

cdef inline bint text_equal(Text a, Text b) noexcept nogil:
    return a.length == b.length and (a.length == 0 or memcmp(a.data, b.data, a.length) == 0)

cdef inline bint text_is(Text a, const char* literal) noexcept nogil:
    return text_equal(a, text_of(literal))

cdef inline bint text_begins(Text a, const char* literal) noexcept nogil:
    cdef Text prefix = text_of(literal)
    return a.length >= prefix.length and text_equal(Text(a.data, prefix.length), prefix)

cdef inline Text text_copy(Text text) noexcept nogil:
    """Return a copy, to be freed with `text_free`; its data is NULL when memory is exhausted."""
    cdef uint8_t* data = <uint8_t*> malloc(text.length + 1)
    if data != NULL:
        if text.length:
            memcpy(data, text.data, text.length)
        data[text.length] = 0
    return Text(data, text.length if data != NULL else 0)

cdef inline void text_free(Text* text) noexcept nogil:
    free(<void*> text.data)
    text[0] = Text(NULL, 0)


# Reading --------------------------------------------------------------------------------------------------------------

cdef struct Reader:
    const uint8_t* data
    int64_t at
    int64_t end
    bint broken      # a value was cut short

cdef inline Reader reader_of(const uint8_t* data, int64_t size) noexcept nogil:
    return Reader(data, 0, size, False)

cdef inline const uint8_t* reader_skip(Reader* r, int64_t size) noexcept nogil:
    """Skip `size` octets and return their beginning; NULL if fewer are left."""
    cdef const uint8_t* found = r.data + r.at
    if size > r.end - r.at:
        r.broken = True
        r.at = r.end
        return NULL
    r.at += size
    return found

cdef inline uint64_t reader_number(Reader* r, int octets) noexcept nogil:
    cdef const uint8_t* at = reader_skip(r, octets)
    return frames_number(at, octets) if at != NULL else 0

cdef inline Text reader_text(Reader* r, int octets) noexcept nogil:
    """Read a string that follows its length, which takes `octets` octets."""
    cdef uint32_t length = <uint32_t> reader_number(r, octets)
    cdef const uint8_t* data = reader_skip(r, length)
    return Text(data, length if data != NULL else 0)

cdef inline Text reader_short(Reader* r) noexcept nogil:
    return reader_text(r, 1)

cdef inline Text reader_long(Reader* r) noexcept nogil:
    return reader_text(r, 4)

cdef inline bint reader_done(Reader* r) noexcept nogil:
    """Whether no value was cut short, and nothing is left."""
    return not r.broken and r.at == r.end


# Writing --------------------------------------------------------------------------------------------------------------

cdef struct Bytes:
    uint8_t* data
    int64_t begin      # octets before it were taken
    int64_t end
    int64_t room
    bint failed        # memory was exhausted: the content is incomplete

cdef inline void bytes_init(Bytes* b) noexcept nogil:
    b.data = NULL
    b.begin = b.end = b.room = 0
    b.failed = False

cdef inline void bytes_clear(Bytes* b) noexcept nogil:
    free(b.data)
    bytes_init(b)

cdef inline int64_t bytes_size(const Bytes* b) noexcept nogil:
    return b.end - b.begin

cdef inline void bytes_take(Bytes* b, int64_t size) noexcept nogil:
    """Drop `size` octets from the beginning; the caller knows that there are as many."""
    b.begin += size
    if b.begin == b.end:
        b.begin = b.end = 0

cdef inline void bytes_grow(Bytes* b, int64_t size) noexcept nogil:
    """Make room for `size` more octets; in place if at least half of the octets were taken."""
    cdef int64_t held = b.end - b.begin, room = max(2 * b.room, <int64_t> BYTES_LEAST)
    cdef uint8_t* data
    if b.begin >= held and held + size <= b.room:
        if held:
            memmove(b.data, b.data + b.begin, held)
    else:
        while room < held + size:
            room *= 2
        data = <uint8_t*> malloc(room)
        if data == NULL:
            b.failed = True
            return
        if held:
            memcpy(data, b.data + b.begin, held)
        free(b.data)
        b.data = data
        b.room = room
    b.begin = 0
    b.end = held

cdef inline uint8_t* bytes_room(Bytes* b, int64_t size) noexcept nogil:
    """Return room for `size` octets, to be added by `bytes_add`; NULL when memory is exhausted."""
    if size > b.room - b.end and not b.failed:
        bytes_grow(b, size)
    return b.data + b.end if not b.failed else NULL

cdef inline void bytes_add(Bytes* b, int64_t size) noexcept nogil:
    """Add octets that were written to the room that `bytes_room` returned."""
    b.end += size

cdef inline void bytes_append(Bytes* b, const uint8_t* data, int64_t size) noexcept nogil:
    cdef uint8_t* to = bytes_room(b, size)
    if to != NULL and size:
        memcpy(to, data, size)
        b.end += size

cdef inline void bytes_number(Bytes* b, uint64_t number, int octets) noexcept nogil:
    cdef uint8_t* to = bytes_room(b, octets)
    if to != NULL:
        frames_write(to, number, octets)
        b.end += octets

cdef inline void bytes_short(Bytes* b, Text text) noexcept nogil:
    """Append a short string, truncated to SHORT_MAX octets."""
    text.length = min(text.length, <uint32_t> SHORT_MAX)
    bytes_number(b, text.length, 1)
    bytes_append(b, text.data, text.length)

cdef inline void bytes_long(Bytes* b, Text text) noexcept nogil:
    bytes_number(b, text.length, 4)
    bytes_append(b, text.data, text.length)

cdef inline void bytes_put(Bytes* b, int64_t offset, uint64_t number, int octets) noexcept nogil:
    """Overwrite octets at `offset` from the first with a number."""
    if not b.failed:
        frames_write(b.data + b.begin + offset, number, octets)
