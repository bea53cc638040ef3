"""Frames of AMQP 0-9-1 in the bytes of a connection: any frame (`frames_span`), or a delivery (`frames_find`):
a method, a content header, and a body in one frame or none.

Only lengths are decoded; the caller gets the bytes of the method and the properties. Input may be cut off anywhere, and
is untrusted: each length is checked against the available bytes before use.

Source: AMQP 0-9-1, sections 4.2.3 (frames), 4.2.6 (content) and 1.8.3.13 (basic.deliver).
Thread safety: pure functions. Complexity: O(1) per delivery.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.core.amqp.constants cimport (
    BASIC_DELIVER, FRAME_BODY, FRAME_END, FRAME_HEAD, FRAME_HEADER, FRAME_METHOD,
)

cdef enum Found:
    FOUND_WHOLE
    FOUND_PART    # the beginning of a delivery whose end has not arrived
    FOUND_OTHER   # another frame, a delivery with a longer body, or the possible beginning of either

cdef enum FrameFound:
    FRAME_WHOLE
    FRAME_PART       # the beginning of a frame whose end has not arrived
    FRAME_TOO_LONG   # the payload is longer than the negotiated limit
    FRAME_UNENDED    # the octet after the payload is not FRAME_END

cdef struct FrameSpan:  # one frame, possibly incomplete
    uint8_t kind
    uint32_t channel
    const uint8_t* payload
    int64_t size           # of the payload
    int64_t whole          # of the frame

cdef struct Delivery:  # offsets of its parts in the bytes
    uint32_t channel
    int64_t method
    int64_t method_end
    int64_t tag            # the delivery tag, in the method
    int64_t header
    int64_t header_end
    int64_t body
    int64_t body_end
    int64_t end

cdef inline uint64_t frames_number(const uint8_t* at, int octets) noexcept nogil:
    """Read an unsigned number, most significant octet first."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(octets):
        number = number << 8 | at[i]
    return number

cdef inline uint8_t* frames_write(uint8_t* to, uint64_t number, int octets) noexcept nogil:
    """Write an unsigned number, most significant octet first; return its end."""
    cdef int i
    for i in range(octets):
        to[i] = <uint8_t> (number >> 8 * (octets - 1 - i))
    return to + octets

cdef inline uint8_t* frames_octets(uint8_t* to, const uint8_t* found, int64_t size) noexcept nogil:
    """Write octets; return their end."""
    if size:
        memcpy(to, found, size)
    return to + size

cdef inline uint8_t* frames_text(uint8_t* to, const uint8_t* text, int64_t size) noexcept nogil:
    """Write a short string after its length of one octet; return its end."""
    return frames_octets(frames_write(to, <uint64_t> size, 1), text, size)

cdef inline uint8_t* frames_head(uint8_t* to, int kind, uint32_t channel, int64_t size) noexcept nogil:
    """Write the head of a frame with a payload of `size` octets; return the beginning of the payload."""
    to[0] = <uint8_t> kind
    return frames_write(frames_write(to + 1, channel, 2), <uint64_t> size, 4)

cdef inline FrameFound frames_span(
    const uint8_t* bytes, int64_t size, int64_t longest, FrameSpan* f
) noexcept nogil:
    """Look for any frame at the beginning of `bytes`, with a payload of at most `longest` octets.

    The head is read as soon as it is complete (`payload` is NULL until then): with FRAME_PART, `whole` is the length of
    the frame to come.
    """
    f.payload = NULL
    f.kind = 0
    f.channel = 0
    f.size = f.whole = 0
    if size < FRAME_HEAD:
        return FRAME_PART
    f.kind = bytes[0]
    f.channel = <uint32_t> frames_number(bytes + 1, 2)
    f.size = <int64_t> frames_number(bytes + 3, 4)
    f.payload = bytes + FRAME_HEAD
    f.whole = FRAME_HEAD + f.size + 1
    if f.size > longest:
        return FRAME_TOO_LONG
    if f.whole > size:
        return FRAME_PART
    return FRAME_WHOLE if bytes[f.whole - 1] == FRAME_END else FRAME_UNENDED

cdef inline bint frames_broken(const uint8_t* bytes, int64_t size, int64_t end) noexcept nogil:
    """Whether the octet after a payload has arrived and is not FRAME_END."""
    return end < size and bytes[end] != FRAME_END

cdef inline bint frames_expected(
    const uint8_t* bytes, int64_t size, int64_t start, int kind, uint32_t channel
) noexcept nogil:
    """Whether a frame's kind and channel, as far as they have arrived, are the expected ones: no other must wait."""
    if start < size and bytes[start] != kind:
        return False
    return size - start < 3 or frames_number(bytes + start + 1, 2) == channel

cdef inline bint frames_names(const uint8_t* bytes, int64_t start, int64_t end) noexcept nogil:
    """Whether exchange and routing key, each after an octet with its length, reach from `start` to `end`."""
    cdef int64_t second
    if start >= end:
        return False
    second = start + 1 + bytes[start]
    return second < end and second + 1 + bytes[second] == end

cdef inline Found frames_method(const uint8_t* bytes, int64_t size, int64_t start, Delivery* d) noexcept nogil:
    """Look for the method of a delivery at `start`."""
    if size - start < FRAME_HEAD + 4 or bytes[start] != FRAME_METHOD:
        return FOUND_OTHER
    d.method = start + FRAME_HEAD
    if frames_number(bytes + d.method, 4) != BASIC_DELIVER:
        return FOUND_OTHER
    d.channel = <uint32_t> frames_number(bytes + start + 1, 2)
    d.method_end = d.method + <int64_t> frames_number(bytes + start + 3, 4)
    if d.method_end - d.method < 14 or frames_broken(bytes, size, d.method_end):
        return FOUND_OTHER
    if d.method_end >= size:
        return FOUND_PART
    d.tag = d.method + 5 + bytes[d.method + 4]
    return FOUND_WHOLE if frames_names(bytes, d.tag + 9, d.method_end) else FOUND_OTHER

cdef inline Found frames_body(const uint8_t* bytes, int64_t size, int64_t start, Delivery* d) noexcept nogil:
    """Look for the single frame of a body at `start`; its end is known."""
    if not frames_expected(bytes, size, start, FRAME_BODY, d.channel):
        return FOUND_OTHER
    if d.body <= size and <int64_t> frames_number(bytes + start + 3, 4) != d.body_end - d.body:
        return FOUND_OTHER
    if d.end > size:
        return FOUND_PART
    return FOUND_WHOLE if bytes[d.body_end] == FRAME_END else FOUND_OTHER

cdef inline Found frames_content(
    const uint8_t* bytes, int64_t size, int64_t start, int64_t longest, Delivery* d
) noexcept nogil:
    """Look for the content of a delivery at `start`."""
    cdef int64_t body_size
    if not frames_expected(bytes, size, start, FRAME_HEADER, d.channel):
        return FOUND_OTHER
    if size - start < FRAME_HEAD:
        return FOUND_PART
    d.header = start + FRAME_HEAD
    d.header_end = d.header + <int64_t> frames_number(bytes + start + 3, 4)
    if d.header_end - d.header < 14 or frames_broken(bytes, size, d.header_end):
        return FOUND_OTHER
    if d.header_end >= size:
        return FOUND_PART
    body_size = <int64_t> frames_number(bytes + d.header + 4, 8)
    if frames_number(bytes + d.header, 2) != BASIC_DELIVER >> 16 or body_size < 0 or body_size > longest:
        return FOUND_OTHER
    d.body = d.body_end = d.end = d.header_end + 1
    if body_size == 0:  # has no frame
        return FOUND_WHOLE
    d.body += FRAME_HEAD
    d.body_end = d.body + body_size
    d.end = d.body_end + 1
    return frames_body(bytes, size, d.header_end + 1, d)

cdef inline Found frames_find(
    const uint8_t* bytes, int64_t size, int64_t start, int64_t longest, Delivery* d
) noexcept nogil:
    """Look for a delivery at `start`, with a body of at most `longest` octets.

    `channel` is set unless the result is FOUND_OTHER.
    """
    cdef Found found
    d.method = d.method_end = d.tag = d.header = d.header_end = d.body = d.body_end = d.end = start
    found = frames_method(bytes, size, start, d)
    return frames_content(bytes, size, d.method_end + 1, longest, d) if found == FOUND_WHOLE else found
