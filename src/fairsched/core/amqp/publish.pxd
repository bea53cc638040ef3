"""Published messages: their frames, the broker's confirms, and the window of unconfirmed messages.

The caller identifies a message by a token, never NULL. Delivery tags number the messages published on a channel from 1;
a new channel starts again at 1, and unconfirmed messages are published on it again, in the same order. Positions in the
window keep counting up, so that entries move only to close the gaps left by confirms out of order.

Source: AMQP 0-9-1, sections 4.2.3 (frames), 4.2.6 (content), 1.8.3.10 (basic.publish); RabbitMQ, "Consumer
Acknowledgements and Publisher Confirms" (basic.ack and basic.nack from the broker).
Thread safety: none; the caller synchronizes. Complexity: O(1) per message, amortised; O(window) for `window_again`.
Memory: 24 bytes per message in the window.

A message may be held: it was returned because its queue did not exist, and is sent again when the queue does, before
all messages that were not sent yet. While one is held nothing is sent, so that no message of its queue overtakes it.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fairsched.core.amqp.constants cimport (
    BASIC_ACK, BASIC_NACK, BASIC_PUBLISH, FRAME_AROUND, FRAME_END, FRAME_HEAD, FRAME_METHOD,
)
from fairsched.core.amqp.contents cimport CONTENT_HEAD, Content, contents_size, contents_write
from fairsched.core.amqp.frames cimport frames_head, frames_number, frames_text, frames_write
from fairsched.core.amqp.settlements cimport SETTLEMENT_PAYLOAD, SETTLEMENT_SIZE


# A message in frames --------------------------------------------------------------------------------------------------

cdef inline int64_t publish_method_size(const Content* c) noexcept nogil:
    """Return the octets of the payload."""
    return 9 + c.exchange_size + c.key_size

cdef inline int64_t publish_size(const Content* c, int64_t longest) noexcept nogil:
    """Return the octets of a message whose frames have payloads of at most `longest` octets."""
    return FRAME_AROUND + publish_method_size(c) + contents_size(c, longest)

cdef inline uint8_t* publish_method(const Content* c, uint32_t channel, uint8_t* to) noexcept nogil:
    to = frames_head(to, FRAME_METHOD, channel, publish_method_size(c))
    to = frames_write(to, <uint64_t> BASIC_PUBLISH << 16, 6)  # and a reserved number, 0
    to = frames_text(frames_text(to, c.exchange, c.exchange_size), c.key, c.key_size)
    to[0] = c.mandatory
    to[1] = FRAME_END
    return to + 2

cdef inline void publish_encode(const Content* c, uint32_t channel, int64_t longest, uint8_t* to) noexcept nogil:
    """Write the frames of a message, `publish_size` octets."""
    contents_write(c, channel, longest, publish_method(c, channel, to))

cdef inline int64_t publish_frame(const uint8_t* at) noexcept nogil:
    """Return the octets of an encoded frame."""
    return FRAME_AROUND + <int64_t> frames_number(at + 3, 4)

cdef inline bint publish_decode(const uint8_t* data, int64_t size, Content* c, uint8_t* body) noexcept nogil:
    """Read an encoded message and copy its body, which has room for `size` octets.

    False: it is none. What `c` has is in `data`, except the body.
    """
    cdef int64_t header, at
    if size < 3 * FRAME_AROUND:
        return False
    header = publish_frame(data)
    c.exchange_size = data[FRAME_HEAD + 6]
    c.exchange = data + FRAME_HEAD + 7
    c.key_size = c.exchange[c.exchange_size]
    c.key = c.exchange + c.exchange_size + 1
    c.mandatory = c.key[c.key_size]
    at = header + publish_frame(data + header)
    c.properties = data + header + FRAME_HEAD + CONTENT_HEAD
    c.properties_size = at - header - FRAME_AROUND - CONTENT_HEAD
    c.body = body
    c.body_size = 0
    while at < size:
        memcpy(body + c.body_size, data + at + FRAME_HEAD, publish_frame(data + at) - FRAME_AROUND)
        c.body_size += publish_frame(data + at) - FRAME_AROUND
        at += publish_frame(data + at)
    return True


# Replies of the broker ------------------------------------------------------------------------------------------------

cdef struct Confirm:
    uint64_t tag
    bint multiple
    bint refused     # basic.nack

cdef inline bint confirm_find(
    const uint8_t* bytes, int64_t size, int64_t start, uint32_t channel, Confirm* c
) noexcept nogil:
    """Whether a complete basic.ack or basic.nack of the channel begins at `start`."""
    cdef const uint8_t* at = bytes + start
    cdef uint64_t method
    if size - start < SETTLEMENT_SIZE or at[0] != FRAME_METHOD or at[SETTLEMENT_SIZE - 1] != FRAME_END:
        return False
    if frames_number(at + 1, 6) != (<uint64_t> channel << 32 | SETTLEMENT_PAYLOAD):
        return False
    method = frames_number(at + FRAME_HEAD, 4)
    if method != BASIC_ACK and method != BASIC_NACK:
        return False
    c.tag = frames_number(at + 11, 8)
    c.multiple = at[19] & 1
    c.refused = method == BASIC_NACK
    return True


# The window between the two -------------------------------------------------------------------------------------------

cdef enum Holding:
    NOT_HELD
    HELD_UNCONFIRMED   # its confirm is still to come, and says nothing about its arrival
    HELD

cdef struct Pending:
    void* token      # NULL: settled
    int64_t size
    Holding holding

cdef struct Window:
    Pending* pending         # by position & (capacity - 1)
    uint64_t capacity        # a power of two, or 0
    uint64_t base            # the oldest unconfirmed message
    uint64_t sent            # the first message that was not passed to the connection
    uint64_t high            # one past the newest
    uint64_t before          # position of delivery tag 0 of the current channel
    uint64_t outstanding
    int64_t size             # octets of all outstanding messages
    uint64_t singly          # number of next messages that are sent one at a time
    uint64_t held            # number of messages that are held

cdef inline void window_init(Window* w) noexcept nogil:
    w.pending = NULL
    w.capacity = w.before = w.outstanding = w.singly = w.held = 0
    w.size = 0
    w.base = w.sent = w.high = 1

cdef inline void window_clear(Window* w) noexcept nogil:
    free(w.pending)
    window_init(w)

cdef inline Pending* window_at(const Window* w, uint64_t position) noexcept nogil:
    return &w.pending[position & (w.capacity - 1)]

cdef inline bint window_grow(Window* w) noexcept nogil:
    cdef uint64_t capacity = 64 if w.capacity == 0 else 2 * w.capacity, position
    cdef Pending* pending = <Pending*> calloc(capacity, sizeof(Pending))
    if pending == NULL:
        return False
    for position in range(w.base, w.high):
        pending[position & (capacity - 1)] = window_at(w, position)[0]
    free(w.pending)
    w.pending = pending
    w.capacity = capacity
    return True

cdef inline bint window_add(Window* w, void* token, int64_t size) noexcept nogil:
    """Append a message; False when memory is exhausted."""
    if w.high - w.base == w.capacity and not window_grow(w):
        return False
    window_at(w, w.high)[0] = Pending(token, size, NOT_HELD)
    w.high += 1
    w.outstanding += 1
    w.size += size
    return True

cdef inline void* window_settle(Window* w, uint64_t position) noexcept nogil:
    """Remove a message; NULL: it is not in the window."""
    cdef void* token
    if position < w.base or position >= w.high:
        return NULL
    token = window_at(w, position).token
    if token != NULL:
        window_at(w, position).token = NULL
        w.outstanding -= 1
        w.size -= window_at(w, position).size
        w.singly -= w.singly > 0
        w.held -= window_at(w, position).holding != NOT_HELD
    while w.base < w.high and window_at(w, w.base).token == NULL:
        w.base += 1
    w.sent = max(w.sent, w.base)
    return token

cdef inline uint64_t window_confirmed(const Window* w, const Confirm* c, uint64_t* first) noexcept nogil:
    """Return the positions that a confirm covers, as the first and one past the last."""
    cdef uint64_t last = w.before + c.tag
    if c.multiple and c.tag == 0:  # covers all published messages
        last = w.sent - 1
    first[0] = w.base if c.multiple else last
    return min(last + 1, w.sent)

cdef inline bint window_may_send(const Window* w) noexcept nogil:
    """Whether the next message may be sent."""
    return w.sent < w.high and w.held == 0 and (w.singly == 0 or w.sent == w.base)

cdef inline void window_hold(Window* w, uint64_t position) noexcept nogil:
    """Hold a sent message that is not settled."""
    if window_at(w, position).holding == NOT_HELD:
        window_at(w, position).holding = HELD_UNCONFIRMED
        w.held += 1

cdef inline bint window_kept(Window* w, uint64_t position) noexcept nogil:
    """Whether a message that is confirmed stays in the window, because it is held."""
    if position < w.base or position >= w.high or window_at(w, position).token == NULL:
        return False
    if window_at(w, position).holding == NOT_HELD:
        return False
    window_at(w, position).holding = HELD
    return True

cdef inline bint window_is_under_way(const Window* w, uint64_t position) noexcept nogil:
    """Whether the broker owes a confirm for a sent message."""
    return window_at(w, position).token != NULL and window_at(w, position).holding != HELD

cdef inline void window_again(Window* w) noexcept nogil:
    """Start over on another channel: all outstanding messages must be sent in order, without gaps."""
    cdef uint64_t position = w.high, to = w.high
    w.held = 0
    while position > w.base:
        position -= 1
        if window_at(w, position).token != NULL:
            to -= 1
            window_at(w, to)[0] = window_at(w, position)[0]
            window_at(w, to).holding = NOT_HELD
    w.base = w.sent = to
    w.before = to - 1

cdef inline void window_resume(Window* w) noexcept nogil:
    """Send held messages again on the same channel, first and in their order. No confirm may be owed."""
    cdef uint64_t tags = w.sent - 1 - w.before
    window_again(w)
    w.before -= tags  # modulo 2**64, as positions are found from it
