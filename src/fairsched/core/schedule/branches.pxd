"""Priorities of messages: strict priority first, and among the messages of one priority, shares by quantum.

The messages that a slot has of one priority are queued in a branch of it: a slot of the same table that has no name,
with a deficit and turns of its own, in the band (bands.pxd) of that priority. A named slot, the root of its branches,
has no messages itself and takes no turns.

* Service. Each message served is of the highest priority that has one in a slot that is not at its limit. Among the
  slots that have messages of this priority, the order is that of dwrr.pxd for these messages alone, with its bound: a
  slot gains or loses nothing in one priority by what it is served in another.
* Limits (limits.pxd) are those of the root: at its limit none of its branches takes turns, and each continues its
  interrupted turn when the slot returns.
* Counts. The root counts the messages of all its branches; deficit and work are added up when they are asked for.
* Debt stays with the branch whose message was charged, and is paid by its turns.
* Removal. A branch is removed when it is empty and out of debt, and leaves its work to its root. The owner pins a root
  while it has branches, so an idle slot has none, and costs what it costs without priorities.
* A held slot keeps the deficit of each branch; none is waited for (anticipation.pxd): what comes next may be of any
  priority.

Source: Linux's ets queueing discipline, of which each class has a deficit round robin of its own; see bands.pxd. Thread
safety: none; the caller synchronizes. Complexity: O(branches of the slot), at most PRIORITIES, for each message put,
for each branch that is removed, and where a slot reaches or leaves its limit.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.bands cimport bands_of, bands_queued
from fairsched.core.schedule.dwrr cimport dwrr_hold, dwrr_push, dwrr_set_quantum, dwrr_settle
from fairsched.core.schedule.outlook cimport Outlook, outlook_grants
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, NO_SLOT, NO_TURN, PRIORITIES, Branch, Branches, Slot, SlotTable, slots_add, slots_first, slots_remove,
)

cdef inline void branches_init(Branches* b) noexcept nogil:
    b.of = NULL
    b.capacity = 0

cdef inline void branches_clear(Branches* b) noexcept nogil:
    """Free everything: the table is not used any more."""
    free(b.of)
    branches_init(b)

cdef inline bint branches_reserve(Branches* b, const SlotTable* t) noexcept nogil:
    """Make sure that all slots, and another one, have a place; False when memory is exhausted."""
    cdef uint32_t capacity = max(8, b.capacity)
    cdef Branch* grown
    if t.size < b.capacity:
        return True
    while capacity <= t.size:
        capacity *= 2
    grown = <Branch*> realloc(b.of, capacity * sizeof(Branch))
    if grown == NULL:
        return False
    b.of = grown
    b.capacity = capacity
    return True

cdef inline void branches_add_root(SlotTable* t, uint32_t index) noexcept nogil:
    """Note a new slot, which has no branches. Needs branches_reserve."""
    cdef Branch* at = &t.branches.of[index]
    at.root = at.next = NO_SLOT
    at.band = 0
    memset(at.left, 0, sizeof(at.left))

cdef inline bint branches_is_branch(const SlotTable* t, uint32_t index) noexcept nogil:
    """Return whether an index is that of a branch, not of a named slot."""
    return t.branches.of[index].root != NO_SLOT

cdef inline bint branches_is_idle(const SlotTable* t, uint32_t index) noexcept nogil:
    """Return whether a branch that takes no turns, and is not held, may be removed.

    While its slot is at its limit, a branch takes no turns, but may have messages, or a debt.
    """
    return t.slots[index].head == NULL and t.slots[index].deficit >= 0

cdef inline uint32_t branches_band(int64_t priority) noexcept nogil:
    """Return the band of a priority: the highest priority is the first band."""
    return <uint32_t> (PRIORITIES - 1 - priority)

cdef inline int64_t branches_priority(const SlotTable* t, uint32_t index) noexcept nogil:
    """Return the priority of the messages of a branch."""
    return PRIORITIES - 1 - <int64_t> t.branches.of[index].band

cdef inline uint32_t branches_find(const SlotTable* t, uint32_t root, uint32_t band) noexcept nogil:
    """Return the branch of a slot in a band, or NO_SLOT."""
    cdef uint32_t index = t.branches.of[root].next
    while index != NO_SLOT and t.branches.of[index].band != band:
        index = t.branches.of[index].next
    return index

cdef inline uint32_t branches_add(SlotTable* t, uint32_t root, uint32_t band) noexcept nogil:
    """Add a branch to a slot that has none in this band; NO_SLOT when memory is exhausted. Needs branches_reserve."""
    cdef uint32_t index = slots_add(t, t.slots[root].quantum, True)
    cdef Branch* at
    if index == NO_SLOT:
        return index
    at = &t.branches.of[index]
    at.root, at.band = root, band
    at.next = t.branches.of[root].next
    t.branches.of[root].next = index
    t.slots[index].flags |= t.slots[root].flags & AT_LIMIT
    t.slots[index].held = t.slots[root].held
    return index

cdef inline uint32_t branches_remove(SlotTable* t, uint32_t index) noexcept nogil:
    """Remove a branch without messages, which leaves its work to its root, and return the root."""
    cdef uint32_t root = t.branches.of[index].root, before = root
    while t.branches.of[before].next != index:
        before = t.branches.of[before].next
    t.branches.of[before].next = t.branches.of[index].next
    branches_earn(&t.slots[root], t.slots[index].work)
    branches_add_work(&t.branches.of[root].left[t.branches.of[index].band], t.slots[index].work)
    slots_remove(t, index)
    t.branches.of[index].root = t.branches.of[index].next = NO_SLOT
    return root

cdef inline void branches_earn(Slot* slot, int64_t work) noexcept nogil:
    """Add to the work of a slot, which saturates as in dwrr_charge."""
    branches_add_work(&slot.work, work)

cdef inline void branches_add_work(int64_t* total, int64_t work) noexcept nogil:
    if total[0] <= AMOUNT_MAX:
        total[0] += min(work, AMOUNT_MAX)

cdef inline bint branches_push(SlotTable* t, uint32_t index, uint64_t token, int64_t cost) noexcept nogil:
    """Append a message to a branch; False when memory is exhausted."""
    if not dwrr_push(t, index, token, cost):
        return False
    t.slots[t.branches.of[index].root].pushed += 1
    return True

cdef inline uint32_t branches_served(SlotTable* t, uint32_t index) noexcept nogil:
    """Count a message that a branch was served just now, and return its root."""
    cdef uint32_t root = t.branches.of[index].root
    t.slots[root].served += 1
    return root

cdef inline bint branches_settle(SlotTable* t, uint32_t index, int64_t difference) noexcept nogil:
    """Charge a branch `difference` more (less, when negative); False past the largest debt.

    What is refunded of the work of a branch that was removed in the meantime, its root has.
    """
    cdef Slot* root = &t.slots[t.branches.of[index].root]
    cdef int64_t before = t.slots[index].work
    cdef int64_t* left = &t.branches.of[t.branches.of[index].root].left[t.branches.of[index].band]
    if not dwrr_settle(t, index, difference):
        return False
    if before < -difference:
        root.work -= min(root.work, -difference - before)
        left[0] -= min(left[0], -difference - before)
    return True

cdef inline void branches_hold(SlotTable* t, uint32_t root, int state) noexcept nogil:
    """Set whether the branches of a slot keep their deficits when they are empty: a HoldState, and none of waiting."""
    cdef uint32_t index = t.branches.of[root].next
    while index != NO_SLOT:
        dwrr_hold(t, index, state)
        index = t.branches.of[index].next

cdef inline void branches_set_quantum(SlotTable* t, uint32_t root, int64_t quantum) noexcept nogil:
    """Change the quantum of a slot in all its branches, at once for their backlog."""
    cdef uint32_t index = t.branches.of[root].next
    t.slots[root].quantum = quantum
    while index != NO_SLOT:
        dwrr_set_quantum(t, index, quantum)
        index = t.branches.of[index].next

cdef inline void branches_drop_counts(SlotTable* t) noexcept nogil:
    """Let the slots count only what was served: all messages are about to be dropped. O(slots)."""
    cdef uint32_t i
    for i in range(t.size):
        if t.slots[i].quantum and not branches_is_branch(t, i):
            t.slots[i].pushed = t.slots[i].served

cdef inline void branches_total(const SlotTable* t, uint32_t root, Slot* copy) noexcept nogil:
    """Give a copy of a slot the deficits and the work of its branches."""
    cdef uint32_t index = t.branches.of[root].next
    while index != NO_SLOT:
        branches_report(copy, &t.slots[index])
        index = t.branches.of[index].next

cdef inline void branches_report(Slot* copy, const Slot* branch) noexcept nogil:
    copy.deficit = max(-AMOUNT_MAX, min(AMOUNT_MAX, copy.deficit + branch.deficit))
    branches_earn(copy, branch.work)

cdef inline void branches_add_up(const SlotTable* t, Slot* slots) noexcept nogil:
    """In a copy of all slots, give deficits and work of the branches to their roots, and take the branches out."""
    cdef uint32_t i
    for i in range(t.size):
        if slots[i].quantum and branches_is_branch(t, i):
            branches_report(&slots[t.branches.of[i].root], &slots[i])
            slots[i].quantum = 0

# The outlook of a slot ------------------------------------------------------------------------------------------------

cdef inline uint32_t branches_next_served(const SlotTable* t, uint32_t root) noexcept nogil:
    """Return the branch of a slot with messages of the highest priority; NO_SLOT if no branch has messages."""
    cdef uint32_t index = t.branches.of[root].next, found = NO_SLOT
    while index != NO_SLOT:
        if t.slots[index].head != NULL and (found == NO_SLOT or bands_of(t, index) < bands_of(t, found)):
            found = index
        index = t.branches.of[index].next
    return found

cdef inline bint branches_precedes(
    const SlotTable* t, uint32_t index, uint32_t other, bint ahead, int64_t turns
) noexcept nogil:
    """Return whether a message of another branch is served before the first one of a branch.

    `turns`: own turns up to and including the one in which that is served; `ahead`: the other has its turns earlier.
    """
    cdef const Slot* slot = &t.slots[other]
    if slot.head == NULL or slot.flags & AT_LIMIT or bands_of(t, other) > bands_of(t, index):
        return False
    if bands_of(t, other) < bands_of(t, index):
        return True
    turns -= not ahead
    return turns > 0 and outlook_grants(slot) <= turns - (slot.granted != NO_TURN)

cdef inline uint32_t branches_mark_ahead(SlotTable* t, uint32_t index, bint mark) noexcept nogil:
    """Mark the slots ahead of a branch in the active list, which is in the table, or take the marks away."""
    cdef uint32_t at = slots_first(t), count = 0
    while at != index:
        t.slots[at].active = 2 if mark else 1
        at = t.slots[at].next
        count += 1
    return count

cdef inline int64_t branches_outlook(SlotTable* t, uint32_t index, Outlook* found) noexcept nogil:
    """Look what stands before a branch with messages, whose list is in the table; return the messages of higher bands.

    Slots are counted, not their branches. O(slots and branches).
    """
    cdef const Slot* slot = &t.slots[index]
    cdef int64_t turns = max(1, outlook_grants(slot) + (slot.granted != NO_TURN)), above = 0
    cdef uint32_t root, at
    cdef bint before, takes_turns
    found.turns = turns - 1
    found.before = found.others = 0
    branches_mark_ahead(t, index, True)
    for root in range(t.size):
        if t.slots[root].quantum == 0 or branches_is_branch(t, root) or root == t.branches.of[index].root:
            continue
        before = takes_turns = False
        at = t.branches.of[root].next
        while at != NO_SLOT:
            takes_turns |= t.slots[at].active != 0
            before |= branches_precedes(t, index, at, t.slots[at].active == 2, turns)
            at = t.branches.of[at].next
        found.before += before
        found.others += takes_turns
    branches_mark_ahead(t, index, False)
    for at in range(bands_of(t, index)):
        above += bands_queued(t, at)
    return above
