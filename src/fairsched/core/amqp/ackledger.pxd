"""Exact coalescing of the settlements of one channel.

Delivery tags of a channel run 1, 2, 3, …; an acknowledgement with multiple=True settles every outstanding tag up to
its own. It is used only for a contiguous settled prefix, and the nacks of that prefix are sent before it, so that an
unprocessed message is never acknowledged. Nor does that prefix reach beyond a tag that is left to the broker, which
takes it back when the channel is closed.

A ring has one byte per tag, from the oldest unsettled tag to the newest delivered, and the sizes of the messages.
Thread safety: none; the caller synchronizes. Complexity: O(1) per tag, amortised; ackledger_unsettled O(unsettled
tags). Memory: 5 bytes per tag in the window, and 8 per settlement not yet flushed.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef enum Verdict:
    VERDICT_ACK = 0      # processed
    VERDICT_REQUEUE = 1  # back to the queue
    VERDICT_REJECT = 2   # dropped, or dead-lettered
    VERDICT_FAIL = 3     # back to the queue, which may count and delay it as a failure

cdef enum TagState:
    TAG_OUTSTANDING = 0  # delivered, the handler has it
    TAG_ACKED = 1        # settled; the acknowledgement is not sent yet
    TAG_DONE = 2         # its own frame is sent or stands in `refused`
    TAG_LEFT = 3         # never settled: the broker takes it back with the channel

cdef struct Refusal:
    uint64_t tag
    int64_t verdict

cdef struct Frame:  # to be sent
    uint64_t tag
    int64_t verdict
    bint multiple

cdef struct AckLedger:
    uint8_t* states      # TagState by tag & (capacity - 1)
    uint32_t* sizes      # of the bodies, likewise; longer ones count as the longest
    uint64_t capacity    # a power of two
    uint64_t base        # oldest tag in doubt: everything below is settled and sent
    uint64_t high        # one past the newest tag delivered
    uint64_t outstanding
    uint64_t size        # of all that is outstanding
    uint64_t* acked      # acknowledged since the last flush, in order of settlement
    uint64_t acked_size
    uint64_t acked_capacity
    Refusal* refused     # refused since the last flush, in order of settlement
    uint64_t refused_size
    uint64_t refused_capacity

cdef inline void ackledger_init(AckLedger* a) noexcept nogil:
    a.states = NULL
    a.sizes = NULL
    a.size = 0
    a.acked = NULL
    a.refused = NULL
    a.capacity = a.outstanding = a.acked_size = a.acked_capacity = a.refused_size = a.refused_capacity = 0
    a.base = a.high = 1

cdef inline void ackledger_clear(AckLedger* a) noexcept nogil:
    free(a.states)
    free(a.sizes)
    free(a.acked)
    free(a.refused)
    ackledger_init(a)

cdef inline uint8_t* ackledger_state(const AckLedger* a, uint64_t tag) noexcept nogil:
    return &a.states[tag & (a.capacity - 1)]

cdef inline bint ackledger_grow(AckLedger* a) noexcept nogil:
    cdef uint64_t capacity = 64 if a.capacity == 0 else 2 * a.capacity
    cdef uint8_t* states = <uint8_t*> calloc(capacity, 1)
    cdef uint32_t* sizes = <uint32_t*> calloc(capacity, sizeof(uint32_t))
    cdef uint64_t tag
    if states == NULL or sizes == NULL:
        free(states)
        free(sizes)
        return False
    for tag in range(a.base, a.high):
        states[tag & (capacity - 1)] = ackledger_state(a, tag)[0]
        sizes[tag & (capacity - 1)] = a.sizes[tag & (a.capacity - 1)]
    free(a.states)
    free(a.sizes)
    a.states = states
    a.sizes = sizes
    a.capacity = capacity
    return True

cdef inline bint ackledger_deliver(AckLedger* a, uint64_t size) noexcept nogil:
    """Book the next tag as outstanding, with the size of its body; False when memory is exhausted."""
    if a.high - a.base == a.capacity and not ackledger_grow(a):
        return False
    ackledger_state(a, a.high)[0] = TAG_OUTSTANDING
    a.sizes[a.high & (a.capacity - 1)] = <uint32_t> min(size, <uint64_t> 0xFFFFFFFF)
    a.size += a.sizes[a.high & (a.capacity - 1)]
    a.high += 1
    a.outstanding += 1
    return True

cdef inline void ackledger_let_go(AckLedger* a, uint64_t tag, TagState state) noexcept nogil:
    """Note that a tag is no longer outstanding."""
    ackledger_state(a, tag)[0] = state
    a.size -= a.sizes[tag & (a.capacity - 1)]
    a.outstanding -= 1

cdef inline uint64_t ackledger_unsettled(const AckLedger* a, uint64_t last) noexcept nogil:
    """Tags up to `last` that the broker has not been told about: they take up room in its window."""
    cdef uint64_t tag, count = 0
    for tag in range(a.base, min(last + 1, a.high)):
        count += ackledger_state(a, tag)[0] != TAG_DONE
    return count

cdef inline bint ackledger_is_outstanding(const AckLedger* a, uint64_t tag) noexcept nogil:
    return a.base <= tag < a.high and ackledger_state(a, tag)[0] == TAG_OUTSTANDING

cdef inline void* ackledger_make_room(void* block, uint64_t* capacity, uint64_t size, size_t item) noexcept nogil:
    """Return the array of `size` items with room for one more; NULL when memory is exhausted."""
    cdef void* grown = block
    if size == capacity[0]:
        grown = realloc(block, (2 * size + 16) * item)
        if grown != NULL:
            capacity[0] = 2 * size + 16
    return grown

cdef inline bint ackledger_ack(AckLedger* a, uint64_t tag) noexcept nogil:
    """Settle an outstanding tag as processed; False when memory is exhausted."""
    cdef void* block = ackledger_make_room(a.acked, &a.acked_capacity, a.acked_size, sizeof(uint64_t))
    if block == NULL:
        return False
    a.acked = <uint64_t*> block
    a.acked[a.acked_size] = tag
    a.acked_size += 1
    ackledger_let_go(a, tag, TAG_ACKED)
    return True

cdef inline bint ackledger_refuse(AckLedger* a, uint64_t tag, int64_t verdict) noexcept nogil:
    """Settle an outstanding tag by a frame of its own; False when memory is exhausted."""
    cdef void* block = ackledger_make_room(a.refused, &a.refused_capacity, a.refused_size, sizeof(Refusal))
    if block == NULL:
        return False
    a.refused = <Refusal*> block
    a.refused[a.refused_size].tag = tag
    a.refused[a.refused_size].verdict = verdict
    a.refused_size += 1
    ackledger_let_go(a, tag, TAG_DONE)
    return True

cdef inline int ackledger_settle(AckLedger* a, uint64_t tag, int64_t verdict) noexcept nogil:
    """Settle a tag. 1: done, 0: it is not outstanding, -1: memory is exhausted."""
    if not ackledger_is_outstanding(a, tag):
        return 0
    return 1 if (ackledger_ack(a, tag) if verdict == VERDICT_ACK else ackledger_refuse(a, tag, verdict)) else -1

cdef inline bint ackledger_leave(AckLedger* a, uint64_t tag) noexcept nogil:
    """Leave an outstanding tag to the broker; False if it is not outstanding."""
    if not ackledger_is_outstanding(a, tag):
        return False
    ackledger_let_go(a, tag, TAG_LEFT)
    return True

cdef inline uint64_t ackledger_advance(AckLedger* a, uint64_t* last) noexcept nogil:
    """Move the base past the contiguous settled prefix; return how many of it await their acknowledgement.

    `last` is set to the newest of them. The refusals of the prefix must be sent before that acknowledgement.
    """
    cdef uint64_t acked = 0
    cdef uint8_t state
    while a.base < a.high:
        state = ackledger_state(a, a.base)[0]
        if state == TAG_OUTSTANDING or state == TAG_LEFT:
            break
        if state == TAG_ACKED:
            acked += 1
            last[0] = a.base
        a.base += 1
    return acked

cdef inline uint64_t ackledger_flush(AckLedger* a, Frame* frames) noexcept nogil:
    """Take all that must be sent, in its order, and return how much; `frames` has room for one more than is pending."""
    cdef uint64_t i, prefix, last = 0, size = 0
    for i in range(a.refused_size):
        frames[size] = Frame(a.refused[i].tag, a.refused[i].verdict, False)
        size += 1
    prefix = ackledger_advance(a, &last)
    if prefix:
        frames[size] = Frame(last, VERDICT_ACK, prefix > 1)
        size += 1
    for i in range(a.acked_size):
        if a.acked[i] >= a.base:
            frames[size] = Frame(a.acked[i], VERDICT_ACK, False)
            size += 1
            ackledger_state(a, a.acked[i])[0] = TAG_DONE
    a.refused_size = a.acked_size = 0
    return size
