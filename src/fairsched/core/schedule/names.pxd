"""Find a slot by its name: a hash table of slots, with chaining.

Why not a dictionary: to remove a name, it compares names, which may run Python code (the __eq__ of a UUID, an Enum, a
dataclass), in which another thread or a finalizer may use the slot being removed. Here a slot is added and removed by
its index and by numbers only, so that no Python code runs between finding a slot idle and removing it, or finding no
slot of a name and adding one. The caller compares names (slot_find in _core.pxd), and starts again if `changes` has
changed in the meantime.

A name is an opaque pointer; the caller owns the reference. Thread safety: none; the caller synchronizes. Complexity:
O(1) expected, growing amortised. Memory: 28 bytes per slot, 56 after growing.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

from fairsched.core.schedule.slots cimport NO_SLOT

cdef enum:
    SLOTNAMES_MIN = 8

cdef struct SlotName:
    void* name       # NULL: the slot has none
    int64_t hash
    uint32_t next    # following slot in the same chain
    uint32_t pins    # callers that hold the slot's index while Python code may run: it is not to be forgotten

cdef struct SlotNames:
    SlotName* names    # by slot
    uint32_t* chains   # first slot of each chain, or NO_SLOT
    uint32_t capacity  # of both: 0 or a power of two
    uint64_t changes   # names put in and taken out so far

cdef inline void slotnames_init(SlotNames* s) noexcept nogil:
    s.names = NULL
    s.chains = NULL
    s.capacity = 0
    s.changes = 0

cdef inline void slotnames_clear(SlotNames* s) noexcept nogil:
    """Free everything: there is no name any more."""
    free(s.names)
    free(s.chains)
    s.names = NULL
    s.chains = NULL
    s.capacity = 0
    s.changes += 1

cdef inline uint32_t* slotnames_chain(const SlotNames* s, int64_t hash) noexcept nogil:
    """Return the head of a hash's chain; needs capacity > 0. Integers hash to themselves, so bits are mixed."""
    return &s.chains[((<uint64_t> hash * <uint64_t> 0x9E3779B97F4A7C15) >> 32) & (s.capacity - 1)]

cdef inline uint32_t slotnames_first(const SlotNames* s, int64_t hash) noexcept nogil:
    """The first slot whose name may have this hash, or NO_SLOT."""
    return slotnames_chain(s, hash)[0] if s.capacity else <uint32_t> NO_SLOT

cdef inline void slotnames_link(SlotNames* s, uint32_t index) noexcept nogil:
    cdef uint32_t* chain = slotnames_chain(s, s.names[index].hash)
    s.names[index].next = chain[0]
    chain[0] = index

cdef inline bint slotnames_reserve(SlotNames* s, uint32_t index) noexcept nogil:
    """Make room for the name of a slot; False when memory is exhausted, and nothing has changed."""
    cdef uint32_t capacity = max(s.capacity, <uint32_t> SLOTNAMES_MIN), i
    cdef SlotName* names
    cdef uint32_t* chains
    if index < s.capacity:
        return True
    while capacity <= index:
        capacity *= 2
    chains = <uint32_t*> malloc(capacity * sizeof(uint32_t))
    if chains == NULL:
        return False
    names = <SlotName*> realloc(s.names, capacity * sizeof(SlotName))
    if names == NULL:
        free(chains)
        return False
    for i in range(s.capacity, capacity):
        names[i].name = NULL
        names[i].pins = 0
    for i in range(capacity):
        chains[i] = NO_SLOT
    free(s.chains)
    s.names = names
    s.chains = chains
    s.capacity = capacity
    for i in range(capacity):
        if names[i].name != NULL:
            slotnames_link(s, i)
    return True

cdef inline void slotnames_put(SlotNames* s, uint32_t index, void* name, int64_t hash) noexcept nogil:
    """Name a slot for which there is room; no other has this name."""
    s.names[index].name = name
    s.names[index].hash = hash
    s.names[index].pins = 0
    slotnames_link(s, index)
    s.changes += 1

cdef inline void slotnames_take(SlotNames* s, uint32_t index) noexcept nogil:
    """Take a slot's name from it."""
    cdef uint32_t* place = slotnames_chain(s, s.names[index].hash)
    while place[0] != index:
        place = &s.names[place[0]].next
    place[0] = s.names[index].next
    s.names[index].name = NULL
    s.changes += 1

cdef inline bint slotnames_valid(const SlotNames* s) noexcept nogil:
    """True when every name stands in the chain of its hash, once. For tests: O(capacity)."""
    cdef uint32_t i, index, linked = 0, named = 0
    for i in range(s.capacity):
        named += s.names[i].name != NULL
        index = s.chains[i]
        while index != NO_SLOT and linked <= s.capacity:
            if s.names[index].name == NULL or slotnames_chain(s, s.names[index].hash) != &s.chains[i]:
                return False
            linked += 1
            index = s.names[index].next
    return linked == named
