"""A hash table from keys (bytes) to the latest message of a key, or to a group of messages.

An entry has a copy of its key, and is removed together with its value, so that keys that are no longer in the queue
use no memory.

Thread safety: none; the caller synchronizes. Complexity: O(1) expected, growing amortised.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.chains cimport (
    ChainLink, Chains, chains_add, chains_at, chains_clear, chains_init, chains_remove, chains_reserve,
)
from fairsched.core.queue.message cimport Message, MessageKey, messagekey_create, messagekey_equal

cdef struct KeyEntry:
    ChainLink link       # must be first
    MessageKey* key
    Message* latest      # of a last-value queue
    uint64_t owner       # of a group: the consumer it is assigned to, or 0
    int64_t unsettled    # messages of it that the owner has
    Message* skipped     # the first message that another consumer skipped because of the group; referenced

ctypedef Chains KeyMap    # of KeyEntry

cdef inline void keymap_init(KeyMap* map) noexcept nogil:
    chains_init(map)

cdef inline void keyentry_dispose(ChainLink* link) noexcept nogil:
    free((<KeyEntry*> link).key)
    free(link)

cdef inline void keymap_clear(KeyMap* map) noexcept nogil:
    chains_clear(map, keyentry_dispose)

cdef inline KeyEntry* keymap_find(const KeyMap* map, const MessageKey* key) noexcept nogil:
    """The entry of a key; NULL: there is none."""
    cdef ChainLink* link = chains_at(map, key.hash)
    while link != NULL and not messagekey_equal((<KeyEntry*> link).key, key):
        link = link.next
    return <KeyEntry*> link

cdef inline KeyEntry* keymap_obtain(KeyMap* map, const MessageKey* key) noexcept nogil:
    """The entry of a key, made if there is none; NULL when memory is exhausted."""
    cdef KeyEntry* entry = keymap_find(map, key)
    if entry != NULL:
        return entry
    if not chains_reserve(map):
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
    chains_add(map, &entry.link, key.hash)
    return entry

cdef inline void keymap_remove(KeyMap* map, KeyEntry* entry) noexcept nogil:
    chains_remove(map, &entry.link)
    keyentry_dispose(&entry.link)
