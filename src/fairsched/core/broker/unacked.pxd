"""The unacknowledged deliveries of a channel, by delivery tag.

A ring from the oldest unacknowledged tag to the newest, since tags ascend. An entry owns a reference to its queue; the
message, which stays acquired, owns the one to the payload.

Thread safety: none; the channel's thread. Complexity: O(1), amortised. Memory: 64 bytes per tag in the ring.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from fairsched.core.broker.state cimport Unacked, UnackedTable

cdef enum:
    UNACKED_MIN = 16

cdef inline void unacked_init(UnackedTable* t) noexcept nogil:
    t.entries = NULL
    t.capacity = t.count = 0
    t.base = t.high = 1

cdef inline void unacked_clear(UnackedTable* t) noexcept nogil:
    free(t.entries)
    t.entries = NULL
    t.capacity = 0

cdef inline Unacked* unacked_at(const UnackedTable* t, uint64_t tag) noexcept nogil:
    return &t.entries[tag & (t.capacity - 1)]

cdef inline bint unacked_reserve(UnackedTable* t, uint64_t more) noexcept nogil:
    """Make room for `more` tags; False: memory is exhausted."""
    cdef uint64_t capacity = t.capacity if t.capacity else <uint64_t> UNACKED_MIN, tag
    cdef Unacked* entries
    if t.high - t.base + more <= t.capacity:
        return True
    while capacity < t.high - t.base + more:
        capacity *= 2
    entries = <Unacked*> calloc(capacity, sizeof(Unacked))
    if entries == NULL:
        return False
    for tag in range(t.base, t.high):
        entries[tag & (capacity - 1)] = unacked_at(t, tag)[0]
    free(t.entries)
    t.entries = entries
    t.capacity = capacity
    return True

cdef inline Unacked* unacked_add(UnackedTable* t) noexcept nogil:
    """Return the entry of the next tag, `t.high` before this call. The caller has reserved room."""
    cdef Unacked* u = unacked_at(t, t.high)
    t.high += 1
    t.count += 1
    return u

cdef inline void unacked_skip(UnackedTable* t) noexcept nogil:
    """Skip a tag that needs no acknowledgement. The caller has reserved room, unless no delivery is outstanding."""
    if t.count == 0:
        t.base = t.high + 1
    else:
        unacked_at(t, t.high).queue = NULL
    t.high += 1

cdef inline Unacked* unacked_find(const UnackedTable* t, uint64_t tag) noexcept nogil:
    """Return the outstanding delivery of a tag; NULL: there is none."""
    if tag < t.base or tag >= t.high or unacked_at(t, tag).queue == NULL:
        return NULL
    return unacked_at(t, tag)

cdef inline void unacked_remove(UnackedTable* t, Unacked* u) noexcept nogil:
    """Remove a settled delivery."""
    u.queue = NULL
    t.count -= 1
    if t.count == 0:
        t.base = t.high
    else:
        while unacked_at(t, t.base).queue == NULL:
            t.base += 1
