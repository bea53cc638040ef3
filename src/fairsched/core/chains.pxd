"""A hash table with chaining, which doubles when full; entries belong to the caller, and begin with a link.

For a look-up, the caller walks a chain, and compares the data that it stores behind the link.

Thread safety: none; the caller synchronizes. Any number of threads may look up while none changes the table.
Complexity: O(1) expected, growing amortised.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    CHAINS_LEAST = 8

cdef struct ChainLink:       # an entry begins with it
    ChainLink* next
    uint64_t hash

cdef struct Chains:
    ChainLink** first
    uint64_t size            # a power of two, or 0
    uint64_t count

cdef inline void chains_init(Chains* c) noexcept nogil:
    c.first = NULL
    c.size = c.count = 0

cdef inline void chains_clear(Chains* c, void (*dispose)(ChainLink* link) noexcept nogil) noexcept nogil:
    """Take all entries out, and dispose of each."""
    cdef ChainLink* link
    cdef uint64_t i
    for i in range(c.size):
        link = c.first[i]
        while link != NULL:
            c.first[i] = link.next
            dispose(link)
            link = c.first[i]
    free(c.first)
    chains_init(c)

cdef inline ChainLink* chains_at(const Chains* c, uint64_t hash) noexcept nogil:
    """Return the head of the chain for a hash; NULL if there is none."""
    return c.first[hash & (c.size - 1)] if c.size else NULL

cdef inline bint chains_grow(Chains* c) noexcept nogil:
    cdef uint64_t size = 2 * c.size if c.size else CHAINS_LEAST, i
    cdef ChainLink** first = <ChainLink**> calloc(size, sizeof(ChainLink*))
    cdef ChainLink* link
    cdef ChainLink** chain
    if first == NULL:
        return False
    for i in range(c.size):
        link = c.first[i]
        while link != NULL:
            c.first[i] = link.next
            chain = &first[link.hash & (size - 1)]
            link.next = chain[0]
            chain[0] = link
            link = c.first[i]
    free(c.first)
    c.first = first
    c.size = size
    return True

cdef inline bint chains_reserve(Chains* c) noexcept nogil:
    """Make room for one more entry; False: memory is exhausted."""
    return c.count < c.size or chains_grow(c)

cdef inline void chains_add(Chains* c, ChainLink* link, uint64_t hash) noexcept nogil:
    """Put in an entry, room being reserved."""
    cdef ChainLink** chain = &c.first[hash & (c.size - 1)]
    link.hash = hash
    link.next = chain[0]
    chain[0] = link
    c.count += 1

cdef inline void chains_remove(Chains* c, ChainLink* link) noexcept nogil:
    """Take out an entry, which is there; the last one takes the table's memory with it."""
    cdef ChainLink** place = &c.first[link.hash & (c.size - 1)]
    while place[0] != link:
        place = &place[0].next
    place[0] = link.next
    c.count -= 1
    if c.count == 0:
        free(c.first)
        chains_init(c)
