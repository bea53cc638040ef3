"""A simulated broker queue: new messages in order of arrival, and returned messages at their old places.

A queue that never becomes empty stores nothing, an initial depth is a count, and for later messages the arrival time is
stored. Every returned message was taken before any new one, so the next message is the returned one with the lowest
number in the queue, or else the first new one. Returned messages are in a binary heap.

Thread safety: none; the caller synchronizes. Complexity: O(1); O(log returned) for returned messages.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc

cdef struct Returned:
    int64_t sequence
    uint32_t message

cdef struct SimStock:
    bint endless
    int64_t depth      # messages at the start, created at 0
    int64_t arrived    # number of messages so far, and of the next one
    int64_t fresh      # number of the first message that was never sent
    int64_t* times     # arrival times of fresh messages after the initial ones
    int64_t capacity   # a power of two
    Returned* heap
    int64_t returned
    int64_t heap_capacity

cdef inline void stock_init(SimStock* stock, int64_t depth, bint endless) noexcept nogil:
    stock.endless = endless
    stock.depth = stock.arrived = depth
    stock.fresh = 0
    stock.times = NULL
    stock.heap = NULL
    stock.capacity = stock.returned = stock.heap_capacity = 0

cdef inline void stock_clear(SimStock* stock) noexcept nogil:
    free(stock.times)
    free(stock.heap)
    stock_init(stock, stock.depth, stock.endless)

cdef inline int64_t stock_ready(const SimStock* stock) noexcept nogil:
    """Return the number of waiting messages, without the endless supply."""
    return stock.returned + (0 if stock.endless else stock.arrived - stock.fresh)

cdef inline bint stock_has(const SimStock* stock) noexcept nogil:
    return stock.endless or stock.returned > 0 or stock.arrived > stock.fresh

cdef inline bint stock_grow(SimStock* stock) noexcept nogil:
    cdef int64_t capacity = 2 * stock.capacity if stock.capacity else 64
    cdef int64_t* times = <int64_t*> malloc(capacity * sizeof(int64_t))
    cdef int64_t number
    if times == NULL:
        return False
    for number in range(stock.arrived - stock.capacity, stock.arrived):
        times[number & (capacity - 1)] = stock.times[number & (stock.capacity - 1)]
    free(stock.times)
    stock.times = times
    stock.capacity = capacity
    return True

cdef inline bint stock_arrive(SimStock* stock, int64_t now) noexcept nogil:
    """Add a new message; False: memory is exhausted."""
    cdef int64_t oldest = stock.fresh if stock.fresh > stock.depth else stock.depth
    if stock.endless:
        return True
    if stock.arrived - oldest == stock.capacity and not stock_grow(stock):
        return False
    stock.times[stock.arrived & (stock.capacity - 1)] = now
    stock.arrived += 1
    return True

cdef inline int64_t stock_created(const SimStock* stock, int64_t now) noexcept nogil:
    """Return the arrival time of the first fresh message. In an endless supply, it is the time of sending."""
    if stock.endless:
        return now
    return 0 if stock.fresh < stock.depth else stock.times[stock.fresh & (stock.capacity - 1)]

cdef inline bint stock_return(SimStock* stock, int64_t sequence, uint32_t message) noexcept nogil:
    """Add a returned message; False: memory is exhausted."""
    cdef int64_t at = stock.returned
    cdef int64_t capacity
    cdef Returned* grown
    if at == stock.heap_capacity:
        capacity = 2 * stock.heap_capacity if stock.heap_capacity else 16
        grown = <Returned*> realloc(stock.heap, capacity * sizeof(Returned))
        if grown == NULL:
            return False
        stock.heap = grown
        stock.heap_capacity = capacity
    while at and stock.heap[(at - 1) >> 1].sequence > sequence:
        stock.heap[at] = stock.heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    stock.heap[at].sequence = sequence
    stock.heap[at].message = message
    stock.returned += 1
    return True

cdef inline uint32_t stock_take_returned(SimStock* stock) noexcept nogil:
    """Take the first returned message; there must be one."""
    cdef uint32_t message = stock.heap[0].message
    cdef int64_t at = 0, child
    cdef Returned last
    stock.returned -= 1
    last = stock.heap[stock.returned]
    while True:
        child = 2 * at + 1
        if child >= stock.returned:
            break
        if child + 1 < stock.returned and stock.heap[child + 1].sequence < stock.heap[child].sequence:
            child += 1
        if stock.heap[child].sequence >= last.sequence:
            break
        stock.heap[at] = stock.heap[child]
        at = child
    stock.heap[at] = last
    return message
