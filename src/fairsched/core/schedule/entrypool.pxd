"""Memory of the entries of the slots' queues, with one free list.

A queued message is a 24-byte entry in a singly linked list. Entries are allocated in chunks that double up to
CHUNK_MAX, so a hundred thousand slots with one message each cost no more than one slot with a hundred thousand, and a
growing queue copies nothing. The free list is last in, first out: the next entry used is still in the cache.

Thread safety: none; the caller synchronizes. Complexity: O(1), except that one call in CHUNK_MAX allocates a chunk.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.memory cimport prefetch

cdef enum:
    CHUNK_MIN = 64
    CHUNK_MAX = 8192
    # An empty pool larger than this gives its memory back, so that one flood does not pin memory for good.
    CHUNK_RETAIN = 16384

cdef struct Entry:
    Entry* next
    uint64_t token
    int64_t cost

cdef struct EntryChunk:
    EntryChunk* next

cdef struct EntryPool:
    Entry* free
    EntryChunk* chunks
    int64_t capacity  # entries in all chunks

cdef inline void entrypool_init(EntryPool* pool) noexcept nogil:
    pool.free = NULL
    pool.chunks = NULL
    pool.capacity = 0

cdef inline void entrypool_clear(EntryPool* pool) noexcept nogil:
    """Free every chunk: entries handed out are gone too."""
    cdef EntryChunk* chunk = pool.chunks
    cdef EntryChunk* following
    while chunk != NULL:
        following = chunk.next
        free(chunk)
        chunk = following
    entrypool_init(pool)

cdef inline bint entrypool_grow(EntryPool* pool, int64_t at_least) noexcept nogil:
    """Add one chunk of `at_least` entries or more; False when memory is exhausted."""
    cdef int64_t size = pool.capacity if pool.capacity > CHUNK_MIN else CHUNK_MIN
    cdef EntryChunk* chunk
    cdef Entry* entries
    cdef int64_t i
    if size > CHUNK_MAX:
        size = CHUNK_MAX
    if size < at_least:
        size = at_least
    chunk = <EntryChunk*> malloc(sizeof(EntryChunk) + <size_t> size * sizeof(Entry))
    if chunk == NULL:
        return False
    chunk.next = pool.chunks
    pool.chunks = chunk
    entries = <Entry*> (chunk + 1)
    for i in range(size - 1):
        entries[i].next = &entries[i + 1]
    entries[size - 1].next = pool.free
    pool.free = entries
    pool.capacity += size
    return True

cdef inline Entry* entrypool_take(EntryPool* pool) noexcept nogil:
    """Hand out one entry; NULL when memory is exhausted."""
    cdef Entry* entry = pool.free
    if entry == NULL:
        if not entrypool_grow(pool, 1):
            return NULL
        entry = pool.free
    pool.free = entry.next
    prefetch(pool.free)  # the next push writes there
    return entry

cdef inline void entrypool_give(EntryPool* pool, Entry* entry) noexcept nogil:
    """Take one entry back."""
    entry.next = pool.free
    pool.free = entry

cdef inline bint entrypool_reserve(EntryPool* pool, int64_t used, int64_t count) noexcept nogil:
    """With `used` entries handed out, make sure that the next `count` takes succeed; False: memory is exhausted."""
    cdef int64_t spare = pool.capacity - used
    return spare >= count or entrypool_grow(pool, count - spare)

cdef inline void entrypool_relax(EntryPool* pool) noexcept nogil:
    """With nothing handed out: a pool that grew large gives its memory back."""
    if pool.capacity > CHUNK_RETAIN:
        entrypool_clear(pool)

cdef inline bint entrypool_valid(const EntryPool* pool, int64_t used) noexcept nogil:
    """True when the free list holds exactly what is not handed out. For tests: O(capacity)."""
    cdef int64_t spare = 0
    cdef const Entry* entry = pool.free
    while entry != NULL and spare <= pool.capacity:
        spare += 1
        entry = entry.next
    return spare == pool.capacity - used
