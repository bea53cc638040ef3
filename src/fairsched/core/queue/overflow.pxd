"""The behaviour of a queue that is full.

NONE: nothing. REJECT: a message that does not fit is rejected. RING: it is accepted, and the least significant messages
are dropped until the queue is within its limits; never the newest, and none that a consumer has, unless it may be
stolen. A message that would not fit into an empty queue is rejected. A patient ring waits for notified consumers, which
trim it after they have taken messages. FLOW: producers wait when the queue is full, until it is down to FLOW_RESUME
percent of both limits.

Source: Qpid Broker-J's overflow policies. Thread safety: none; the caller synchronizes. Complexity: O(1).
"""

from libc.stdint cimport int64_t

cdef enum OverflowPolicy:
    OVERFLOW_NONE
    OVERFLOW_RING
    OVERFLOW_REJECT
    OVERFLOW_FLOW

cdef enum:
    FLOW_RESUME = 80

cdef struct Overflow:
    OverflowPolicy policy
    int64_t max_depth   # messages; negative: no limit
    int64_t max_bytes
    bint flowing        # producers wait
    bint ready          # RabbitMQ's limits: what consumers have does not count, and what is next is dropped
    bint patient        # of a ring

cdef inline bint overflow_fits(const Overflow* o, int64_t depth, int64_t size) noexcept nogil:
    """Whether so many messages and bytes are within the limits."""
    return (o.max_depth < 0 or depth <= o.max_depth) and (o.max_bytes < 0 or size <= o.max_bytes)

cdef inline int64_t overflow_resume(int64_t limit) noexcept nogil:
    return limit // 100 * FLOW_RESUME + (limit % 100 * FLOW_RESUME + 99) // 100

cdef inline bint overflow_resumes(const Overflow* o, int64_t depth, int64_t bytes) noexcept nogil:
    """Whether producers that wait may go on."""
    return (o.max_depth < 0 or depth <= overflow_resume(o.max_depth)) and (
        o.max_bytes < 0 or bytes <= overflow_resume(o.max_bytes)
    )

cdef inline bint overflow_flows(Overflow* o, int64_t depth, int64_t bytes, int64_t size) noexcept nogil:
    """Whether a message of `size` bytes has to wait, under FLOW."""
    if o.flowing and overflow_resumes(o, depth, bytes):
        o.flowing = False
    if not o.flowing and depth > 0 and not overflow_fits(o, depth + 1, bytes + size):
        o.flowing = True
    return o.flowing

cdef inline bint overflow_admits(Overflow* o, int64_t depth, int64_t bytes, int64_t size) noexcept nogil:
    """Whether a message of `size` bytes is taken now."""
    if o.policy == OVERFLOW_NONE:
        return True
    if o.policy == OVERFLOW_RING:
        return overflow_fits(o, 1, size)
    if o.policy == OVERFLOW_REJECT:
        return overflow_fits(o, depth + 1, bytes + size)
    return not overflow_flows(o, depth, bytes, size)
