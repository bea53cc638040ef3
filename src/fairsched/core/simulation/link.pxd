"""One direction of a connection: the frames in flight, in the order of sending.

The order is kept: if the delay becomes shorter, no frame overtakes an earlier one.

Thread safety: none; the caller synchronizes. Complexity: O(1), growing amortised.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

cdef enum FrameKind:
    FRAME_DELIVERY
    FRAME_ACK
    FRAME_NACK    # the message returns to its place
    FRAME_REJECT  # the message is removed
    FRAME_CANCEL  # no more deliveries

cdef struct SimFrame:
    int64_t time  # of arrival
    uint32_t message
    uint32_t slot
    int kind

cdef struct SimLink:
    SimFrame* frames
    uint32_t capacity  # a power of two
    uint32_t head      # never wraps; the index is this modulo capacity
    uint32_t tail
    int64_t delay
    int64_t last       # arrival of the frame sent last

cdef inline void simlink_init(SimLink* link, int64_t delay) noexcept nogil:
    link.frames = NULL
    link.capacity = link.head = link.tail = 0
    link.delay = delay
    link.last = 0

cdef inline void simlink_clear(SimLink* link) noexcept nogil:
    free(link.frames)
    simlink_init(link, link.delay)

cdef inline bint simlink_empty(const SimLink* link) noexcept nogil:
    return link.head == link.tail

cdef inline bint simlink_direct(const SimLink* link) noexcept nogil:
    """Return whether a frame sent now arrives now."""
    return link.delay == 0 and link.head == link.tail

cdef inline void simlink_cut(SimLink* link) noexcept nogil:
    """Lose all frames in flight."""
    link.head = link.tail
    link.last = 0

cdef inline bint simlink_grow(SimLink* link) noexcept nogil:
    """Double the room; False: memory is exhausted."""
    cdef uint32_t capacity = 2 * link.capacity if link.capacity else 16
    cdef uint32_t i, count = link.tail - link.head
    cdef SimFrame* frames = <SimFrame*> malloc(capacity * sizeof(SimFrame))
    if frames == NULL:
        return False
    for i in range(count):
        frames[i] = link.frames[(link.head + i) & (link.capacity - 1)]
    free(link.frames)
    link.frames = frames
    link.capacity = capacity
    link.head = 0
    link.tail = count
    return True

cdef inline bint simlink_send(SimLink* link, int64_t now, int kind, uint32_t slot, uint32_t message) noexcept nogil:
    """Send a frame; False: memory is exhausted."""
    cdef SimFrame* frame
    if link.tail - link.head == link.capacity and not simlink_grow(link):
        return False
    if now + link.delay > link.last:
        link.last = now + link.delay
    frame = &link.frames[link.tail & (link.capacity - 1)]
    frame.time = link.last
    frame.kind = kind
    frame.slot = slot
    frame.message = message
    link.tail += 1
    return True

cdef inline SimFrame* simlink_head(const SimLink* link) noexcept nogil:
    """Return the frame that arrives next; the link must not be empty. Valid until the next frame is sent."""
    return &link.frames[link.head & (link.capacity - 1)]
