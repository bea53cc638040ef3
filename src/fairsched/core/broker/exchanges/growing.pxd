"""Vectors of pointers, an allocator of small numbers, and sets of such numbers that are cleared in O(1).

Thread safety: none; the caller synchronizes. Complexity: O(1), amortised.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from fairsched.core.memory cimport array_reserve


# A vector -------------------------------------------------------------------------------------------------------------

cdef struct Pointers:
    void** at
    int64_t count
    int64_t room

cdef inline void pointers_init(Pointers* p) noexcept nogil:
    p.at = NULL
    p.count = p.room = 0

cdef inline void pointers_clear(Pointers* p) noexcept nogil:
    free(p.at)
    pointers_init(p)

cdef inline bint pointers_add(Pointers* p, void* value) noexcept nogil:
    """Append a pointer; False: memory is exhausted."""
    if not array_reserve(<void**> &p.at, &p.room, p.count + 1, sizeof(void*), 16):
        return False
    p.at[p.count] = value
    p.count += 1
    return True


# Small numbers --------------------------------------------------------------------------------------------------------

cdef struct Numbers:
    uint32_t* back       # numbers given back
    uint32_t count       # number of `back`
    uint32_t room        # for all numbers ever taken, so that giving back cannot fail
    uint32_t next

cdef inline void numbers_init(Numbers* n) noexcept nogil:
    n.back = NULL
    n.count = n.room = n.next = 0

cdef inline void numbers_clear(Numbers* n) noexcept nogil:
    free(n.back)
    numbers_init(n)

cdef inline bint numbers_take(Numbers* n, uint32_t* number) noexcept nogil:
    """Take the number given back last, or the next; False: memory is exhausted."""
    cdef uint32_t room
    cdef uint32_t* back
    if n.count:
        n.count -= 1
        number[0] = n.back[n.count]
        return True
    if n.next == n.room:
        room = 2 * n.room if n.room else 16
        back = <uint32_t*> realloc(n.back, room * sizeof(uint32_t))
        if back == NULL:
            return False
        n.back = back
        n.room = room
    number[0] = n.next
    n.next += 1
    return True

cdef inline void numbers_give(Numbers* n, uint32_t number) noexcept nogil:
    n.back[n.count] = number
    n.count += 1


# A set of them --------------------------------------------------------------------------------------------------------

cdef struct Marks:
    uint64_t* at         # the `time` at which each number was last added
    uint64_t size
    uint64_t time

cdef inline void marks_init(Marks* m) noexcept nogil:
    m.at = NULL
    m.size = m.time = 0

cdef inline void marks_clear(Marks* m) noexcept nogil:
    free(m.at)
    marks_init(m)

cdef inline bint marks_begin(Marks* m, uint64_t size) noexcept nogil:
    """Empty the set, for numbers below `size`; False: memory is exhausted."""
    cdef uint64_t room = max(<uint64_t> 16, m.size)
    cdef uint64_t* at
    m.time += 1
    if size > m.size:
        while room < size:
            room *= 2
        at = <uint64_t*> realloc(m.at, room * sizeof(uint64_t))
        if at == NULL:
            return False
        memset(at + m.size, 0, (room - m.size) * sizeof(uint64_t))
        m.at = at
        m.size = room
    return True

cdef inline bint marks_add(Marks* m, uint32_t number) noexcept nogil:
    """Add a number; False: it was present."""
    if m.at[number] == m.time:
        return False
    m.at[number] = m.time
    return True
