"""The messages of a simulation: a pool of records, and a broker's lists of unsettled messages.

A message is an index, since records move when the pool grows. It is in the pool from its first delivery until it is
settled, so the pool is as large as all windows together.

Thread safety: none; the caller synchronizes. Complexity: O(1), growing amortised.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

cdef enum:
    NO_MESSAGE = 0xFFFFFFFF

cdef struct SimMessage:  # one cache line
    int64_t sequence    # place in its queue
    int64_t created     # time of arrival in the queue
    int64_t sent        # time of the last delivery
    int64_t arrived     # time of arrival at the consumer
    int64_t started     # time at which a worker took it
    uint32_t ahead      # messages waiting at the consumer when it arrived
    uint32_t returns    # number of returns by consumers
    uint32_t before     # neighbours in the list of its slot; `after` also links free records
    uint32_t after
    uint8_t handled     # a consumer has handled it; the broker may not know yet
    uint8_t redelivery  # it was sent before

cdef struct SimMessages:
    SimMessage* records
    uint32_t capacity
    uint32_t free_record

cdef inline void messages_init(SimMessages* m) noexcept nogil:
    m.records = NULL
    m.capacity = 0
    m.free_record = NO_MESSAGE

cdef inline void messages_clear(SimMessages* m) noexcept nogil:
    free(m.records)
    messages_init(m)

cdef inline bint messages_grow(SimMessages* m) noexcept nogil:
    """Double the pool; False: memory is exhausted."""
    cdef uint32_t capacity = 2 * m.capacity if m.capacity else 256
    cdef uint32_t i
    cdef SimMessage* grown = NULL
    if capacity < <uint32_t> NO_MESSAGE // 2 + 1:
        grown = <SimMessage*> realloc(m.records, capacity * sizeof(SimMessage))
    if grown == NULL:
        return False
    for i in range(m.capacity, capacity):
        grown[i].after = i + 1
    grown[capacity - 1].after = NO_MESSAGE
    m.free_record = m.capacity
    m.records = grown
    m.capacity = capacity
    return True

cdef inline uint32_t messages_take(SimMessages* m, int64_t sequence, int64_t created) noexcept nogil:
    """Allocate a message; NO_MESSAGE: memory is exhausted."""
    cdef uint32_t index
    cdef SimMessage* message
    if m.free_record == NO_MESSAGE and not messages_grow(m):
        return NO_MESSAGE
    index = m.free_record
    message = &m.records[index]
    m.free_record = message.after
    message.sequence = sequence
    message.created = created
    message.returns = 0
    message.handled = message.redelivery = 0
    return index

cdef inline void messages_give(SimMessages* m, uint32_t index) noexcept nogil:
    """Free a message."""
    m.records[index].after = m.free_record
    m.free_record = index

cdef inline void messages_link(SimMessages* m, uint32_t* first, uint32_t index) noexcept nogil:
    """Put a message into a list."""
    cdef SimMessage* message = &m.records[index]
    message.before = NO_MESSAGE
    message.after = first[0]
    if first[0] != NO_MESSAGE:
        m.records[first[0]].before = index
    first[0] = index

cdef inline void messages_unlink(SimMessages* m, uint32_t* first, uint32_t index) noexcept nogil:
    """Remove a message from its list."""
    cdef SimMessage* message = &m.records[index]
    if message.before == NO_MESSAGE:
        first[0] = message.after
    else:
        m.records[message.before].after = message.after
    if message.after != NO_MESSAGE:
        m.records[message.after].before = message.before
