"""From names to what they stand for: a table of chains that doubles. An entry has a copy of its name.

Thread safety: none; the owner excludes. Any number may look up while nobody changes.
Complexity: O(length) expected, growing amortised.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fairsched.core.amqp.octets cimport Text, text_equal
from fairsched.core.hashing.xxh64 cimport xxh64

cdef enum:
    NAMES_LEAST = 8

cdef struct NameEntry:       # the name follows
    NameEntry* next
    void* value
    uint64_t hash
    uint32_t length

cdef struct Names:
    NameEntry** chains
    uint64_t size            # a power of two, or 0
    uint64_t count

cdef inline void names_init(Names* names) noexcept nogil:
    names.chains = NULL
    names.size = names.count = 0

cdef inline void names_clear(Names* names) noexcept nogil:
    cdef NameEntry* entry
    cdef uint64_t i
    for i in range(names.size):
        entry = names.chains[i]
        while entry != NULL:
            names.chains[i] = entry.next
            free(entry)
            entry = names.chains[i]
    free(names.chains)
    names_init(names)

cdef inline Text names_text(const NameEntry* entry) noexcept nogil:
    return Text(<const uint8_t*> (entry + 1), entry.length)

cdef inline uint64_t names_hash(Text name) noexcept nogil:
    return xxh64(name.data, name.length, 0)

cdef inline NameEntry* names_find_hashed(const Names* names, Text name, uint64_t hashed) noexcept nogil:
    cdef NameEntry* entry
    if names.count == 0:
        return NULL
    entry = names.chains[hashed & (names.size - 1)]
    while entry != NULL and not (entry.hash == hashed and text_equal(names_text(entry), name)):
        entry = entry.next
    return entry

cdef inline NameEntry* names_find(const Names* names, Text name) noexcept nogil:
    """The entry of a name; NULL: there is none."""
    return names_find_hashed(names, name, names_hash(name)) if names.count else NULL

cdef inline bint names_grow(Names* names) noexcept nogil:
    cdef uint64_t size = 2 * names.size if names.size else NAMES_LEAST, i
    cdef NameEntry** chains = <NameEntry**> calloc(size, sizeof(NameEntry*))
    cdef NameEntry* entry
    cdef NameEntry** chain
    if chains == NULL:
        return False
    for i in range(names.size):
        entry = names.chains[i]
        while entry != NULL:
            names.chains[i] = entry.next
            chain = &chains[entry.hash & (size - 1)]
            entry.next = chain[0]
            chain[0] = entry
            entry = names.chains[i]
    free(names.chains)
    names.chains = chains
    names.size = size
    return True

cdef inline NameEntry* names_add(Names* names, Text name, void* value) noexcept nogil:
    """Add a name that is not there; NULL: memory is exhausted."""
    cdef NameEntry* entry
    cdef NameEntry** chain
    if names.count == names.size and not names_grow(names):
        return NULL
    entry = <NameEntry*> malloc(sizeof(NameEntry) + name.length)
    if entry == NULL:
        return NULL
    entry.value = value
    entry.hash = names_hash(name)
    entry.length = name.length
    if name.length:
        memcpy(entry + 1, name.data, name.length)
    chain = &names.chains[entry.hash & (names.size - 1)]
    entry.next = chain[0]
    chain[0] = entry
    names.count += 1
    return entry

cdef inline void names_remove(Names* names, NameEntry* entry) noexcept nogil:
    cdef NameEntry** link = &names.chains[entry.hash & (names.size - 1)]
    while link[0] != entry:
        link = &link[0].next
    link[0] = entry.next
    free(entry)
    names.count -= 1
    if names.count == 0:
        names_clear(names)
