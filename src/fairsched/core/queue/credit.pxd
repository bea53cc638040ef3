"""A consumer's credit, in messages and in bytes: sending uses it, and settling restores it.

Source: Qpid Broker-J's Pre0_10CreditManager. A limit of 0 is no limit, for messages and for bytes separately; counters
go on all the same, below zero, so that a limit may be set at any time. There is credit while neither limited counter
has come to 0. One message larger than the window in bytes passes while the window is unused, or it never would.

The edges. Every operation says whether the consumer is to be told that it may pull:
    CREDIT_SPENT     credit was used, and none is left: from now on the consumer is not desired.
    CREDIT_REGAINED  after a refusal, or the use of the last credit, there is credit again: the consumer pulls again.
Regained credit is announced once, at the first restore that leaves some; with more than HIGH_PREFETCH messages as the
only limit, not before more than CREDIT_BATCH, so that a consumer that settles one by one is not woken for each.
set_limits announces at once. A consumer that was refused with credit left (for a message larger than the bytes left) is
told of every restore.

  synchronization  any operation; what a manager holds is read and written under its lock `busy` (A1, R1), which is
  held for a few instructions and within which nothing is called. init: X, before others know the manager.
Progress: a thread that wants the lock waits for the one that has it. Complexity: O(1). Memory: 48 bytes.
Range: sizes and limits from 0 to CREDIT_MAX; what would take a counter below -CREDIT_MAX is refused.
"""

from libc.stdint cimport int64_t, uint32_t
from libcpp.atomic cimport atomic, memory_order_release

from fairsched.core.atomics cimport spin_wait

cdef enum:
    HIGH_PREFETCH = 100
    CREDIT_BATCH = 10

cdef enum: CREDIT_MAX = 2305843009213693952  # 2**61: sums of a few do not overflow

cdef enum:
    CREDIT_REFUSED = 0   # nothing has changed
    CREDIT_DONE = 1
    CREDIT_SPENT = 2     # done, and none is left
    CREDIT_REGAINED = 3  # done, and the consumer is to be told

cdef struct CreditManager:
    atomic[uint32_t] busy   # 1 while a thread is at the rest
    bint owed               # the consumer thinks that there is no credit, or not enough
    int64_t messages        # credit: limit - used + restored
    int64_t bytes
    int64_t message_limit   # 0: none
    int64_t byte_limit

cdef inline void credit_init(CreditManager* c, int64_t messages, int64_t bytes) noexcept nogil:
    c.busy.store(0)
    c.owed = False
    c.messages = c.message_limit = messages
    c.bytes = c.byte_limit = bytes

cdef inline void credit_lock(CreditManager* c) noexcept nogil:
    cdef unsigned int spins = 0
    while c.busy.exchange(1):  # A1: pairs with R1
        spin_wait(&spins)

cdef inline void credit_unlock(CreditManager* c) noexcept nogil:
    # R1 (counted): pairs with A1; the counters are what the next thread goes on from.
    c.busy.store(0, memory_order_release)

cdef inline bint credit_left(const CreditManager* c) noexcept nogil:
    """Whether there is credit. Locked."""
    return (c.byte_limit == 0 or c.bytes > 0) and (c.message_limit == 0 or c.messages > 0)

cdef inline bint credit_has(CreditManager* c) noexcept nogil:
    """Whether there is credit, at this moment: another thread may use it up before the caller does."""
    cdef bint left
    credit_lock(c)
    left = credit_left(c)
    credit_unlock(c)
    return left

cdef inline bint credit_covers(const CreditManager* c, int64_t size) noexcept nogil:
    """Whether one message of `size` bytes may be sent. Locked."""
    if size < 0 or c.bytes < size - CREDIT_MAX or c.messages <= -CREDIT_MAX:
        return False
    if c.message_limit != 0 and c.messages <= 0:
        return False
    return c.byte_limit == 0 or c.bytes >= size or c.bytes == c.byte_limit

cdef inline int credit_use(CreditManager* c, int64_t size) noexcept nogil:
    """Take credit for one message: CREDIT_REFUSED, CREDIT_DONE or CREDIT_SPENT."""
    cdef int outcome = CREDIT_REFUSED
    credit_lock(c)
    if credit_covers(c, size):
        c.messages -= 1
        c.bytes -= size
        outcome = CREDIT_DONE if credit_left(c) else CREDIT_SPENT
    if outcome != CREDIT_DONE:
        c.owed = True
    credit_unlock(c)
    return outcome

cdef inline int credit_restore(CreditManager* c, int64_t messages, int64_t bytes) noexcept nogil:
    """Give credit back: CREDIT_DONE, CREDIT_REGAINED, or CREDIT_REFUSED when more is given back than was used."""
    cdef int outcome = CREDIT_REFUSED
    credit_lock(c)
    if 0 <= messages <= c.message_limit - c.messages and 0 <= bytes <= c.byte_limit - c.bytes:
        c.messages += messages
        c.bytes += bytes
        outcome = CREDIT_DONE
        if c.owed and credit_left(c) and (
            c.byte_limit != 0 or c.message_limit <= HIGH_PREFETCH or c.messages > CREDIT_BATCH
        ):
            c.owed = False
            outcome = CREDIT_REGAINED
    credit_unlock(c)
    return outcome

cdef inline int credit_set_limits(CreditManager* c, int64_t messages, int64_t bytes) noexcept nogil:
    """Change the limits, and the credit by as much, perhaps below zero. Never CREDIT_REFUSED.

    CREDIT_SPENT: there was credit and is none now.
    """
    cdef int outcome = CREDIT_DONE
    cdef bint had
    credit_lock(c)
    had = credit_left(c)
    c.messages += messages - c.message_limit
    c.bytes += bytes - c.byte_limit
    c.message_limit = messages
    c.byte_limit = bytes
    if not credit_left(c):
        c.owed = True
        if had:
            outcome = CREDIT_SPENT
    elif c.owed:
        c.owed = False
        outcome = CREDIT_REGAINED
    credit_unlock(c)
    return outcome
