"""The results of filters in one call: an open-addressing table by consumer and message.

Source: linear probing, D. Knuth, The Art of Computer Programming, volume 3, section 6.4. The owner keeps a reference to
each message, so that no address comes back while it is a key. A consumer counts by its id, which is never used again.

Thread safety: none; the caller synchronizes. Nothing of it runs Python code. Complexity: find O(1) expected, add O(1)
amortised. Memory: at most 96 bytes an answer.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from fairsched.core.queue.message cimport Message

cdef enum:
    ANSWERS_MIN = 8
    NO_ANSWER = -1

cdef struct Answer:
    Message* message   # NULL: there is none
    uint64_t consumer
    int accepted

cdef struct Answers:
    Answer* table      # NULL: nothing was asked
    uint64_t size      # a power of two; at most half of it is taken
    uint64_t count

cdef inline void answers_init(Answers* a) noexcept nogil:
    a.table = NULL
    a.size = a.count = 0

cdef inline void answers_clear(Answers* a) noexcept nogil:
    """Forget them; the references are the owner's to give up."""
    free(a.table)
    answers_init(a)

cdef inline Answer* answers_place(const Answers* a, uint64_t consumer, const Message* m) noexcept nogil:
    """The place where that answer is, or would be."""
    cdef uint64_t at = (<uint64_t> <uintptr_t> m >> 6) * <uint64_t> 0x9E3779B97F4A7C15ULL
    at = (at ^ (at >> 32) ^ consumer) * <uint64_t> 0xD6E8FEB86659FD93ULL
    at = (at >> 32) & (a.size - 1)
    while a.table[at].message != NULL and (a.table[at].message != m or a.table[at].consumer != consumer):
        at = (at + 1) & (a.size - 1)
    return &a.table[at]

cdef inline int answers_find(const Answers* a, uint64_t consumer, const Message* m) noexcept nogil:
    """The answer of that consumer's filter about a message: 1, 0, or NO_ANSWER."""
    cdef Answer* answer
    if a.table == NULL:
        return NO_ANSWER
    answer = answers_place(a, consumer, m)
    return answer.accepted if answer.message != NULL else <int> NO_ANSWER

cdef inline bint answers_reserve(Answers* a) noexcept nogil:
    """Make room for one more; False when memory is exhausted, and nothing has changed."""
    cdef Answers larger
    cdef uint64_t i
    if 2 * (a.count + 1) <= a.size:
        return True
    larger.size = max(2 * a.size, <uint64_t> ANSWERS_MIN)
    larger.count = a.count
    larger.table = <Answer*> calloc(larger.size, sizeof(Answer))
    if larger.table == NULL:
        return False
    for i in range(a.size):
        if a.table[i].message != NULL:
            answers_place(&larger, a.table[i].consumer, a.table[i].message)[0] = a.table[i]
    free(a.table)
    a[0] = larger
    return True

cdef inline void answers_add(Answers* a, uint64_t consumer, Message* m, bint accepted) noexcept nogil:
    """Note an answer that is not there yet, room being reserved."""
    cdef Answer* answer = answers_place(a, consumer, m)
    answer.message = m
    answer.consumer = consumer
    answer.accepted = accepted
    a.count += 1
