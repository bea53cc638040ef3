"""From keys (bytes) to what stands for them now: the latest message of a key, or a group of messages.

A table of chains that doubles. An entry has a copy of its key and goes with what it stands for, so that keys that are
no longer in the queue take no room.

Thread safety: none; the owner excludes. Complexity: O(1) expected, growing amortised.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from fairsched.core.queue.message cimport Message, MessageKey, messagekey_create, messagekey_equal

cdef enum:
    KEYMAP_MIN = 16

cdef struct KeyEntry:
    KeyEntry* next
    MessageKey* key
    Message* latest      # of a last-value queue
    uint64_t owner       # of a group: the consumer it is assigned to, or 0
    int64_t unsettled    # messages of it that the owner has
    Message* skipped     # the first that somebody went past because it was not his; referenced

cdef struct KeyMap:
    KeyEntry** chains
    uint64_t size        # a power of two, or 0
    uint64_t count

cdef inline void keymap_init(KeyMap* map) noexcept nogil:
    map.chains = NULL
    map.size = map.count = 0

cdef inline void keymap_clear(KeyMap* map) noexcept nogil:
    cdef KeyEntry* entry
    cdef uint64_t i
    for i in range(map.size):
        entry = map.chains[i]
        while entry != NULL:
            map.chains[i] = entry.next
            free(entry.key)
            free(entry)
            entry = map.chains[i]
    free(map.chains)
    keymap_init(map)

cdef inline KeyEntry* keymap_find(const KeyMap* map, const MessageKey* key) noexcept nogil:
    """The entry of a key; NULL: there is none."""
    cdef KeyEntry* entry
    if map.size == 0:
        return NULL
    entry = map.chains[key.hash & (map.size - 1)]
    while entry != NULL and not messagekey_equal(entry.key, key):
        entry = entry.next
    return entry

cdef inline bint keymap_grow(KeyMap* map) noexcept nogil:
    cdef uint64_t size = 2 * map.size if map.size else KEYMAP_MIN, i
    cdef KeyEntry** chains = <KeyEntry**> calloc(size, sizeof(KeyEntry*))
    cdef KeyEntry* entry
    cdef KeyEntry** chain
    if chains == NULL:
        return False
    for i in range(map.size):
        entry = map.chains[i]
        while entry != NULL:
            map.chains[i] = entry.next
            chain = &chains[entry.key.hash & (size - 1)]
            entry.next = chain[0]
            chain[0] = entry
            entry = map.chains[i]
    free(map.chains)
    map.chains = chains
    map.size = size
    return True

cdef inline KeyEntry* keymap_obtain(KeyMap* map, const MessageKey* key) noexcept nogil:
    """The entry of a key, made if there is none; NULL when memory is exhausted."""
    cdef KeyEntry* entry = keymap_find(map, key)
    cdef KeyEntry** chain
    if entry != NULL:
        return entry
    if map.count == map.size and not keymap_grow(map):
        return NULL
    entry = <KeyEntry*> malloc(sizeof(KeyEntry))
    if entry == NULL:
        return NULL
    entry.key = messagekey_create(<const char*> (key + 1), key.length, key.hash)
    if entry.key == NULL:
        free(entry)
        return NULL
    entry.latest = entry.skipped = NULL
    entry.owner = 0
    entry.unsettled = 0
    chain = &map.chains[key.hash & (map.size - 1)]
    entry.next = chain[0]
    chain[0] = entry
    map.count += 1
    return entry

cdef inline void keymap_remove(KeyMap* map, KeyEntry* entry) noexcept nogil:
    cdef KeyEntry** link = &map.chains[entry.key.hash & (map.size - 1)]
    while link[0] != entry:
        link = &link[0].next
    link[0] = entry.next
    free(entry.key)
    free(entry)
    map.count -= 1
    if map.count == 0:
        keymap_clear(map)
