"""A hash table from names to objects. An entry has a copy of its name.

Thread safety: none; the caller synchronizes. Any number of threads may look up while none changes the table.
Complexity: O(length) expected, growing amortised.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fairsched.core.amqp.octets cimport Text, text_equal
from fairsched.core.chains cimport (
    ChainLink, Chains, chains_add, chains_at, chains_clear, chains_init, chains_remove, chains_reserve,
)
from fairsched.core.hashing.xxh64 cimport xxh64

cdef struct NameEntry:       # the name follows
    ChainLink link           # must be first
    void* value
    uint32_t length

ctypedef Chains Names        # of NameEntry

cdef inline void names_init(Names* names) noexcept nogil:
    chains_init(names)

cdef inline void name_dispose(ChainLink* link) noexcept nogil:
    free(link)

cdef inline void names_clear(Names* names) noexcept nogil:
    chains_clear(names, name_dispose)

cdef inline Text names_text(const NameEntry* entry) noexcept nogil:
    return Text(<const uint8_t*> (entry + 1), entry.length)

cdef inline uint64_t names_hash(Text name) noexcept nogil:
    return xxh64(name.data, name.length, 0)

cdef inline NameEntry* names_find_hashed(const Names* names, Text name, uint64_t hashed) noexcept nogil:
    cdef ChainLink* link = chains_at(names, hashed)
    while link != NULL and not (link.hash == hashed and text_equal(names_text(<NameEntry*> link), name)):
        link = link.next
    return <NameEntry*> link

cdef inline NameEntry* names_find(const Names* names, Text name) noexcept nogil:
    """Return the entry of a name; NULL: there is none."""
    return names_find_hashed(names, name, names_hash(name)) if names.count else NULL

cdef inline NameEntry* names_add(Names* names, Text name, void* value) noexcept nogil:
    """Add a name that is not in the table; NULL: memory is exhausted."""
    cdef NameEntry* entry
    if not chains_reserve(names):
        return NULL
    entry = <NameEntry*> malloc(sizeof(NameEntry) + name.length)
    if entry == NULL:
        return NULL
    entry.value = value
    entry.length = name.length
    if name.length:
        memcpy(entry + 1, name.data, name.length)
    chains_add(names, &entry.link, names_hash(name))
    return entry

cdef inline void names_remove(Names* names, NameEntry* entry) noexcept nogil:
    chains_remove(names, &entry.link)
    free(entry)
