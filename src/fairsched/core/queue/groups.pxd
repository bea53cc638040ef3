"""Message groups: messages of the same group go to the same consumer.

Standard groups: a key's hash names one of GROUP_SLOTS slots, and a slot belongs to the consumer that first acquired
from it, until that goes; keys that share a slot share a consumer, messages without a key have no group. Shared groups:
a key is its own group, and belongs to a consumer only while that has an unsettled message of it; messages without a key
are one group together. A group that is another consumer's is gone past; `skipped` remembers the first that was, so that
cursors can be called back there.

Source: Qpid Broker-J's message group managers. Thread safety: none; the caller synchronizes.
Complexity: O(1) expected; letting go of all groups of a consumer O(groups).
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from fairsched.core.queue.keymap cimport (
    KeyEntry, KeyMap, keymap_clear, keymap_find, keymap_init, keymap_obtain, keymap_remove,
)
from fairsched.core.queue.message cimport Message

cdef enum Grouping:
    GROUPS_NONE
    GROUPS_STANDARD
    GROUPS_SHARED

cdef enum:
    GROUP_SLOTS = 256

cdef struct Groups:
    Grouping kind
    KeyEntry* slots   # standard: GROUP_SLOTS; shared: one, of messages without a key
    KeyMap shared

cdef inline bint groups_init(Groups* g, Grouping kind) noexcept nogil:
    """False when memory is exhausted; groups_clear is due either way."""
    g.kind = kind
    g.slots = NULL
    keymap_init(&g.shared)
    if kind == GROUPS_NONE:
        return True
    g.slots = <KeyEntry*> calloc(GROUP_SLOTS if kind == GROUPS_STANDARD else 1, sizeof(KeyEntry))
    return g.slots != NULL

cdef inline void groups_clear(Groups* g) noexcept nogil:
    free(g.slots)
    g.slots = NULL
    keymap_clear(&g.shared)

cdef inline KeyEntry* groups_find(Groups* g, const Message* m) noexcept nogil:
    """Return the group of a message; NULL: it has none, or no consumer has the group."""
    if g.kind == GROUPS_NONE:
        return NULL
    if m.key == NULL:
        return &g.slots[0] if g.kind == GROUPS_SHARED else NULL
    if g.kind == GROUPS_STANDARD:
        return &g.slots[m.key.hash & (GROUP_SLOTS - 1)]
    return keymap_find(&g.shared, m.key)

cdef inline bint groups_allow(Groups* g, const Message* m, uint64_t consumer) noexcept nogil:
    """Whether that consumer may acquire it."""
    cdef KeyEntry* group = groups_find(g, m)
    return group == NULL or group.owner == 0 or group.owner == consumer

cdef inline bint groups_assign(Groups* g, const Message* m, uint64_t consumer) noexcept nogil:
    """That consumer acquires it; whether its group is new to that. When memory is exhausted, without a group."""
    cdef KeyEntry* group = groups_find(g, m)
    cdef bint fresh
    if group == NULL and g.kind == GROUPS_SHARED and m.key != NULL:
        group = keymap_obtain(&g.shared, m.key)
    if group == NULL:
        return False
    fresh = group.owner != consumer
    group.owner = consumer
    group.unsettled += 1
    return fresh

cdef inline Message* groups_vacate(Groups* g, KeyEntry* group) noexcept nogil:
    """Free a group of its consumer; return the message skipped because of it, with its reference, or NULL."""
    cdef Message* skipped = group.skipped
    group.owner = 0
    group.unsettled = 0
    group.skipped = NULL
    if g.kind == GROUPS_SHARED and group != &g.slots[0]:
        keymap_remove(&g.shared, group)
    return skipped

cdef inline Message* groups_settle(Groups* g, const Message* m, uint64_t consumer) noexcept nogil:
    """That consumer has settled it: what was skipped for a group that is free now, with its reference, or NULL."""
    cdef KeyEntry* group = groups_find(g, m)
    if group == NULL or group.owner != consumer:
        return NULL
    group.unsettled -= 1
    if g.kind == GROUPS_STANDARD or group.unsettled > 0:
        return NULL
    return groups_vacate(g, group)

cdef inline KeyEntry* groups_owned(Groups* g, uint64_t consumer, uint64_t* at) noexcept nogil:
    """The next group of a consumer, `at` being 0 at first; NULL: no more. Vacating the one found is allowed."""
    cdef KeyEntry* entry
    cdef uint64_t slots = 0 if g.kind == GROUPS_NONE else GROUP_SLOTS if g.kind == GROUPS_STANDARD else 1
    while at[0] < slots + g.shared.size:
        entry = &g.slots[at[0]] if at[0] < slots else <KeyEntry*> g.shared.first[at[0] - slots]
        if at[0] < slots:
            at[0] += 1
            if entry.owner == consumer:
                return entry
            continue
        while entry != NULL:
            if entry.owner == consumer:
                return entry
            entry = <KeyEntry*> entry.link.next
        at[0] += 1
    return NULL
