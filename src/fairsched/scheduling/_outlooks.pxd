"""The outlook of a slot, or all that has to happen before its next item is served: from the table, and as an object."""

from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from fairsched._core cimport slot_figures
from fairsched.core.schedule.bands cimport bands_above, bands_enter, bands_of, bands_serve
from fairsched.core.schedule.branches cimport (
    branches_next_served, branches_outlook, branches_priority, branches_total,
)
from fairsched.core.schedule.limits cimport LimitTable, SlotLimit
from fairsched.core.schedule.outlook cimport Outlook, outlook_read
from fairsched.core.schedule.slots cimport AT_LIMIT, NO_SLOT, Slot, SlotTable

cdef struct NextService:
    Slot slot           # with priorities: the sums of its branches
    bint has_item
    int64_t cost        # of the next item
    bint takes_turns    # the slot, which is not at its limit
    Outlook outlook
    SlotLimit limit
    bint has_bands
    int64_t band        # of the slot; -1: none, or items have priorities
    int64_t above       # items that are served before because of their band
    int64_t priority    # of the next item; -1: none


cdef inline uint32_t outlook_branch(const SlotTable* table, uint32_t root, Slot* found) noexcept:
    """Copy a slot with the figures of all its branches, and with the next item; return the branch that has it."""
    cdef uint32_t branch = branches_next_served(table, root)
    found[0] = table.slots[root]
    branches_total(table, root, found)
    if branch == NO_SLOT:
        return root
    found.head = table.slots[branch].head
    found.deficit = table.slots[branch].deficit
    return branch


cdef inline void next_service(SlotTable* table, const LimitTable* limits, uint32_t root, NextService* found) noexcept:
    """Copy what is to be told of a slot. Runs no Python code."""
    cdef uint32_t index = root
    memset(found, 0, sizeof(NextService))
    found.priority = found.band = -1
    found.has_bands = table.bands != NULL
    if table.branches != NULL:
        index = outlook_branch(table, root, &found.slot)
    else:
        found.slot = table.slots[index]
    found.has_item = found.slot.head != NULL
    if found.has_item:
        found.cost = found.slot.head.cost
        found.takes_turns = not found.slot.flags & AT_LIMIT
    if found.takes_turns:
        bands_enter(table, index)
        if table.branches == NULL:
            outlook_read(table, index, &found.outlook)
        else:
            found.above = branches_outlook(table, index, &found.outlook)
            found.priority = branches_priority(table, index)
        bands_serve(table)
    if table.bands != NULL and table.branches == NULL:
        found.band = bands_of(table, index)
        found.above = bands_above(table, index, &found.outlook.before, &found.outlook.others)
    if limits.on:
        found.limit = limits.of[root]


cdef inline object slot_outlook(const NextService* service, object item, object awaited, int64_t now):
    """Return the outlook of a slot whose next item this is, at a time; `awaited`: the slot that getters wait for."""
    from fairsched.stats import SlotOutlook
    cdef const SlotLimit* limit = &service.limit
    cdef int64_t wait = max(
        limit.full_at - limit.limit.tolerance - now if limit.limit.interval and limit.full_at > now else 0,
        limit.blocked - now if limit.blocked > now else 0,
    )
    stats = slot_figures(&service.slot)
    limited = (
        limit.in_hand if limit.limit.concurrency else None,
        limit.limit.concurrency or None,
        wait * 1e-9 if wait > 0 else None,
        None if service.band < 0 else service.band,
        service.above if service.has_bands else None,
        None if service.priority < 0 else service.priority,
    )
    if not service.has_item:
        return SlotOutlook(stats, None, None, None, None, None, awaited, *limited)
    if not service.takes_turns:
        return SlotOutlook(stats, item, service.cost, None, None, None, awaited, *limited)
    outlook = service.outlook
    return SlotOutlook(stats, item, service.cost, outlook.before, outlook.turns, outlook.others, awaited, *limited)
