"""Limits of slots: how many messages of a slot may be in hand at a time, and how fast they may be served.

A slot at its limit takes no turns: it leaves the active list, and its messages count as `withheld` instead of `queued`,
as though they had not arrived yet. It returns when time has passed, or a message is given back. The caller calls
limits_take together with each pop, without Python code in between, and limits_give_back when a message is done.

* In hand. At most `concurrency` messages that were popped and not given back.
* Rate. A token bucket, kept as the moment at which it will be full again: serving takes a token, which comes back
  `interval` later, and is possible while that leaves no more than `burst` of them missing. So in any time t at most
  burst + t/interval messages are served. An interval is rounded up: the rate is never exceeded.
* Turns. A slot stopped in the middle of its turn continues it, at the head of the list, when it returns, without
  another quantum. So within its limit its share follows its quantum, the limit gives it no credit, and between two
  turns of another slot it is granted at most one quantum, and finishes at most one turn. Debt is not paid meanwhile.
* Removal. A transient slot is not idle while a message of it is in hand, or before its bucket is full: otherwise it
  would return with a full bucket. Nor is it while it has permits or the bucket of a shared limit, which the owner takes
  from it when it was not used for a while: otherwise it would ask again for each message that comes when it has none.
* Priorities. The branches of a slot (branches.pxd) have no limit of their own: that of the slot holds for all together.
* Blocked. A slot may be told to take no turns until a time.
* Joint. A limit of several slots together, by name or of all: see jointlimits.pxd. limits_arrange lets the slots whose
  turn it is wait for it, and go on; the owner calls it before each look at what can be served.
* Shared. The limit is one of a group of processes. The slot then has `permits` in place of the concurrency, and serves
  at the rate only while the group's bucket is here. A new slot has neither. One that has messages and can serve none
  before it gets a permit or the bucket is `short`: listed for the owner, once until the owner calls limits_permit,
  which asks the group for what is lacking then. So is one from which permits were withdrawn (`permits` below what is in
  hand) when a message is given back. A slot with as many messages in hand as permits is `tight`, for as long as one of
  them is in hand perhaps: it is short if it is tight at two calls of limits_look_at_tight one after the other.

Sources: Turner, "New Directions in Communications (or Which Way to the Information Age?)" (1986), the leaky bucket;
ITU-T I.371, annex A, the generic cell rate algorithm, which needs one time per bucket. Thread safety: none; the caller
synchronizes. Complexity: O(1), and O(log slots) to store a time; O(active slots) to remove a slot that is not the first
from the active list, when its limit changes. The caller passes the time, in nanoseconds; while its clock runs
backwards, time stands still.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.bands cimport BANDED, bands_enter, bands_serve
from fairsched.core.schedule.dwrr cimport dwrr_trim_deficit, dwrr_turn
from fairsched.core.schedule.jointlimits cimport (
    NO_JOINT, JointLimit, JointSlot, Joints, Limit, joints_clear, joints_counts, joints_due, joints_give_back,
    joints_has, joints_init, joints_is_contended, joints_is_reached, joints_is_short, joints_list,
    joints_look_at_tight, joints_permit, joints_reached, joints_reserve, joints_take, joints_wait,
    joints_wait_no_more,
)
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, AWAITED_SLOT, IN_USE, NO_SLOT, NO_TURN, TRANSIENT, TURN, Slot, SlotTable, slots_activate,
    slots_deactivate_after, slots_first, slots_report_idle,
)

cdef extern from *:
    """
    static const int64_t FAIRSCHED_NEVER = INT64_MAX;
    """
    const int64_t NEVER "FAIRSCHED_NEVER"

cdef enum:
    NO_PLACE = 0xFFFFFFFF  # not in the heap

cdef enum Listed:
    UNLISTED
    TIGHT      # more permits may be needed
    SHORT      # the owner has to look at it

cdef struct SlotLimit:
    Limit limit
    int64_t in_hand   # messages; counted where there is a concurrency, or a joint limit
    int64_t most      # messages in hand, now; NEVER without a concurrency; 0 while the group's bucket is elsewhere
    uint64_t count    # number of that count: another one for another slot, and when counting begins or ends
    int64_t full_at   # when its bucket will be full
    int64_t blocked   # until when it takes no turns, whatever its limit
    int64_t due       # when it has to be looked at
    uint32_t place    # of it in the heap
    int64_t permits   # most messages in hand of a shared limit, now
    bint has_bucket   # the bucket of a shared limit is here
    bint asked        # the owner knows that it is short, and has asked the group
    Listed listed     # in which list it is
    uint32_t spot     # in that list
    bint tight_before  # at the last call of limits_look_at_tight

cdef struct LimitTable:
    SlotLimit* of      # by index of the slot
    uint32_t* heap     # of those that have to be looked at in time: indices, the earliest first
    uint32_t* short_of  # those that the owner has to look at: indices
    uint32_t* tight_of  # those that may need more permits: indices
    uint32_t short_slots  # in the first of these lists
    uint32_t shorts    # of these, and of joint limits that are short
    uint32_t tights    # in the second list
    uint32_t capacity  # of all four
    uint32_t timed     # in the heap
    uint64_t counts    # begun so far
    Limit usual        # of slots that are not told otherwise
    int64_t now        # the latest time that was brought
    bint on            # a slot has, or had, a limit: so the owner calls
    bint rated         # a rate: so it brings the time
    bint shared        # a limit that is shared
    bint watched       # the owner calls before each look: there is a rate, or a joint limit
    Joints joints

cdef inline void limits_init(LimitTable* l) noexcept nogil:
    l.of = NULL
    l.heap = l.short_of = l.tight_of = NULL
    l.capacity = l.timed = l.short_slots = l.shorts = l.tights = 0
    l.counts = 0
    l.usual.concurrency = l.usual.interval = l.usual.tolerance = 0
    l.usual.shared = False
    l.now = -NEVER
    l.on = l.rated = l.shared = l.watched = False
    joints_init(&l.joints)

cdef inline void limits_clear(LimitTable* l) noexcept nogil:
    free(l.of)
    free(l.heap)
    free(l.short_of)
    free(l.tight_of)
    joints_clear(&l.joints)
    limits_init(l)

cdef inline bint limits_reserve(LimitTable* l, const SlotTable* t) noexcept nogil:
    """Make sure that all slots, and another one, have a place; False when memory is exhausted."""
    cdef uint32_t capacity = max(8, l.capacity)
    cdef void* grown
    if t.size < l.capacity:
        return not l.joints.on or joints_reserve(&l.joints, l.capacity)
    while capacity <= t.size:
        capacity *= 2
    grown = realloc(l.of, capacity * sizeof(SlotLimit))
    if grown == NULL:
        return False
    l.of = <SlotLimit*> grown
    grown = realloc(l.heap, capacity * sizeof(uint32_t))
    if grown == NULL:
        return False
    l.heap = <uint32_t*> grown
    grown = realloc(l.short_of, capacity * sizeof(uint32_t))
    if grown == NULL:
        return False
    l.short_of = <uint32_t*> grown
    grown = realloc(l.tight_of, capacity * sizeof(uint32_t))
    if grown == NULL:
        return False
    l.tight_of = <uint32_t*> grown
    memset(&l.of[l.capacity], 0, (capacity - l.capacity) * sizeof(SlotLimit))
    l.capacity = capacity
    return not l.joints.on or joints_reserve(&l.joints, capacity)

cdef inline void limits_count_anew(LimitTable* l, uint32_t index) noexcept nogil:
    """Count from now on: what was popped before is no part of it."""
    l.counts += 1
    l.of[index].count = l.counts
    l.of[index].in_hand = 0

# The heap -------------------------------------------------------------------------------------------------------------

cdef inline void limits_put(LimitTable* l, uint32_t place, uint32_t index) noexcept nogil:
    l.heap[place] = index
    l.of[index].place = place

cdef inline bint limits_before(const LimitTable* l, uint32_t one, uint32_t other) noexcept nogil:
    """Return whether one slot is due before another; of the same time, the one with the smaller index."""
    return l.of[one].due < l.of[other].due or (l.of[one].due == l.of[other].due and one < other)

cdef inline void limits_sift(LimitTable* l, uint32_t place) noexcept nogil:
    """Move an entry to where it belongs."""
    cdef uint32_t index = l.heap[place], child
    while place > 0 and limits_before(l, index, l.heap[(place - 1) // 2]):
        limits_put(l, place, l.heap[(place - 1) // 2])
        place = (place - 1) // 2
    while 2 * place + 1 < l.timed:
        child = 2 * place + 1
        if child + 1 < l.timed and limits_before(l, l.heap[child + 1], l.heap[child]):
            child += 1
        if not limits_before(l, l.heap[child], index):
            break
        limits_put(l, place, l.heap[child])
        place = child
    limits_put(l, place, index)

cdef inline void limits_schedule(LimitTable* l, uint32_t index, int64_t due) noexcept nogil:
    """Have a slot looked at in time, or no more: NEVER."""
    cdef SlotLimit* at = &l.of[index]
    cdef uint32_t place = at.place
    at.due = due
    if due != NEVER:
        if place == NO_PLACE:
            place = l.timed
            l.timed += 1
            l.heap[place] = index
        limits_sift(l, place)
    elif place != NO_PLACE:
        at.place = NO_PLACE
        l.timed -= 1
        if place < l.timed:
            l.heap[place] = l.heap[l.timed]
            limits_sift(l, place)

cdef inline int64_t limits_slot_due(const LimitTable* l) noexcept nogil:
    """Return when the first slot is due; NEVER if there is none."""
    return l.of[l.heap[0]].due if l.timed else NEVER

cdef inline int64_t limits_due(const LimitTable* l) noexcept nogil:
    """Return when the first slot is due, or the first joint limit for which slots wait; NEVER if there is none."""
    cdef int64_t due = limits_slot_due(l)
    return min(due, joints_due(&l.joints, NEVER)) if rarely(l.joints.on) else due

# Shared limits ------------------------------------------------------------------------------------------------------

cdef inline void limits_unlist(LimitTable* l, uint32_t index) noexcept nogil:
    """Take a slot out of the list in which it is."""
    cdef SlotLimit* at = &l.of[index]
    cdef uint32_t last
    if at.listed == SHORT:
        l.shorts -= 1
        l.short_slots -= 1
        last = l.short_of[at.spot] = l.short_of[l.short_slots]
    elif at.listed == TIGHT:
        l.tights -= 1
        last = l.tight_of[at.spot] = l.tight_of[l.tights]
    else:
        return
    l.of[last].spot = at.spot
    at.listed = UNLISTED
    at.tight_before = False

cdef inline void limits_list(LimitTable* l, uint32_t index, Listed listed) noexcept nogil:
    """Put a slot into a list, unless it is in that of those that are short."""
    cdef SlotLimit* at = &l.of[index]
    if at.listed == listed or at.listed == SHORT:
        return
    limits_unlist(l, index)
    at.listed = listed
    if listed == SHORT:
        at.spot = l.short_slots
        l.short_of[l.short_slots] = index
        l.short_slots += 1
        l.shorts += 1
    else:
        at.spot = l.tights
        l.tight_of[l.tights] = index
        l.tights += 1

cdef inline void limits_count_most(SlotLimit* at) noexcept nogil:
    """Note how many messages of a slot may be in hand: its limit, its permits or its bucket have changed."""
    if at.limit.shared and at.limit.interval and not at.has_bucket:
        at.most = 0
    elif at.limit.concurrency == 0:
        at.most = NEVER
    else:
        at.most = at.permits if at.limit.shared else at.limit.concurrency

cdef inline bint limits_is_full(const SlotLimit* at) noexcept nogil:
    """Return whether a slot has as many messages in hand as it may."""
    return at.in_hand >= at.most

cdef inline bint limits_lacks(const SlotLimit* at, const Slot* slot) noexcept nogil:
    """Return whether a slot with a shared limit could serve messages if it had more permits, or the bucket."""
    return limits_is_full(at) and slot.pushed != slot.served

cdef inline void limits_pushed(LimitTable* l, const SlotTable* t, uint32_t index) noexcept nogil:
    """Note that a message was put into a slot, or is left in it: list the slot if it lacks anything."""
    cdef SlotLimit* at = &l.of[index]
    if at.limit.shared and not at.asked and limits_lacks(at, &t.slots[index]):
        limits_list(l, index, TIGHT if at.most else SHORT)

cdef inline void limits_look_at_tight(LimitTable* l, const SlotTable* t) noexcept nogil:
    """List slots as short that are tight now and were at the last call. O(slots that were tight since then)."""
    cdef uint32_t i = l.tights, index
    cdef SlotLimit* at
    while i:
        i -= 1
        index = l.tight_of[i]
        at = &l.of[index]
        if at.asked or not at.limit.shared or not limits_lacks(at, &t.slots[index]):
            limits_unlist(l, index)
        elif at.tight_before:
            limits_list(l, index, SHORT)
        else:
            at.tight_before = True
    if rarely(l.joints.on):
        joints_look_at_tight(&l.joints)
        l.shorts = l.short_slots + l.joints.listed

cdef inline uint32_t limits_take_short(LimitTable* l) noexcept nogil:
    """Take a slot, which may have been removed, from the list: the owner looks at it now. NO_PLACE if there is none."""
    cdef uint32_t index
    if l.short_slots == 0:
        return NO_PLACE
    index = l.short_of[l.short_slots - 1]
    limits_unlist(l, index)
    l.of[index].asked = True
    return index

cdef inline void limits_add(LimitTable* l, SlotTable* t, uint32_t index) noexcept nogil:
    """Note a new slot without messages: nothing of it is in hand, and its bucket is full. Needs limits_reserve."""
    cdef SlotLimit* at = &l.of[index]
    limits_unlist(l, index)  # a slot that had this index, and was removed
    if rarely(l.joints.on):
        joints_wait_no_more(&l.joints, index)
        l.joints.slot[index].named = l.joints.usual_named
        l.joints.slot[index].loose = 0
    at.limit = l.usual
    limits_count_anew(l, index)
    at.full_at = at.due = at.blocked = -NEVER
    at.place = NO_PLACE
    at.permits = 0
    at.has_bucket = at.asked = False
    limits_count_most(at)
    if at.limit.shared:
        t.slots[index].flags |= AT_LIMIT

cdef inline void limits_exempt(LimitTable* l, uint32_t index) noexcept nogil:
    """Note a new slot that has no limit, whatever is usual: a branch (branches.pxd). Needs limits_reserve."""
    limits_unlist(l, index)
    if rarely(l.joints.on):
        joints_wait_no_more(&l.joints, index)
        l.joints.slot[index].named = NO_JOINT
    memset(&l.of[index], 0, sizeof(SlotLimit))
    limits_count_anew(l, index)
    l.of[index].full_at = l.of[index].due = l.of[index].blocked = -NEVER
    l.of[index].place = NO_PLACE
    l.of[index].most = NEVER

cdef inline bint limits_counts(const LimitTable* l, int64_t index) noexcept nogil:
    """Return whether the messages in hand of a slot are counted; -1: of one that was forgotten, or is not known."""
    if not l.on:
        return False
    if index < 0:
        return l.usual.concurrency != 0 or l.joints.usual_named != NO_JOINT or l.joints.total != NO_JOINT
    return l.of[index].limit.concurrency != 0 or joints_counts(&l.joints, <uint32_t> index)

# Leaving the active list, and coming back -----------------------------------------------------------------------------

cdef inline void limits_withhold(SlotTable* t, uint32_t index) noexcept nogil:
    """Let a slot, and all its branches, take no turns; a turn that has begun is interrupted."""
    cdef uint32_t branch
    if BANDED and rarely(t.branches != NULL):
        branch = t.branches.of[index].next
        while branch != NO_SLOT:
            limits_withhold_one(t, branch)
            branch = t.branches.of[branch].next
        t.slots[index].flags |= AT_LIMIT
    else:
        limits_withhold_one(t, index)

cdef inline void limits_withhold_one(SlotTable* t, uint32_t index) noexcept nogil:
    """Take a slot with its own messages, or a branch, off the active list."""
    cdef Slot* slot = &t.slots[index]
    cdef int64_t count = <int64_t> (slot.pushed - slot.served)
    cdef bint interrupted = slot.granted != NO_TURN and slot.head != NULL
    cdef uint32_t before
    bands_enter(t, index)
    if slot.active:
        before = t.active_tail
        while t.slots[before].next != index:  # none, for the one that has just been served
            before = t.slots[before].next
        slots_deactivate_after(t, before)
        dwrr_trim_deficit(t, slot)
        slot.granted = TURN if interrupted else NO_TURN
    slot.flags |= AT_LIMIT
    t.queued -= count
    t.withheld += count
    bands_serve(t)

cdef inline void limits_let_go(SlotTable* t, uint32_t index) noexcept nogil:
    """Let a slot, and all its branches, take turns again, first of all what is left of those that were interrupted."""
    cdef uint32_t branch
    if BANDED and rarely(t.branches != NULL):
        branch = t.branches.of[index].next
        while branch != NO_SLOT:
            limits_let_one_go(t, branch)
            branch = t.branches.of[branch].next
        t.slots[index].flags &= ~AT_LIMIT
    else:
        limits_let_one_go(t, index)

cdef inline void limits_let_one_go(SlotTable* t, uint32_t index) noexcept nogil:
    """Put a slot with its own messages, or a branch, back into the active list."""
    cdef Slot* slot = &t.slots[index]
    cdef int64_t count = <int64_t> (slot.pushed - slot.served)
    cdef bint interrupted = slot.granted != NO_TURN and slot.head != NULL
    cdef uint32_t tail
    bands_enter(t, index)
    tail = t.active_tail
    slot.flags &= ~AT_LIMIT
    t.withheld -= count
    t.queued += count
    slot.granted = NO_TURN
    dwrr_trim_deficit(t, slot)
    if slot.head != NULL or slot.deficit < 0:
        slots_activate(t, index)
        if interrupted:
            slot.granted = TURN
            if t.active_count > 1:
                t.active_tail = tail  # so it is the first
    else:
        slots_report_idle(t, index)  # a branch whose messages were dropped; a slot may still be in use
    bands_serve(t)

cdef inline bint limits_waits(const LimitTable* l, uint32_t index) noexcept nogil:
    """Return whether a slot waits for a joint limit."""
    return rarely(l.joints.on) and l.joints.slot[index].waits != NO_JOINT

cdef inline bint limits_waits_for_group(const LimitTable* l, uint32_t index) noexcept nogil:
    """Return whether a slot waits, or may have to wait, for a joint limit that it shares with other processes."""
    cdef const Joints* j = &l.joints
    if not j.on:
        return False
    return joints_is_contended(j, j.slot[index].named, l.now) or joints_is_contended(j, j.total, l.now)

cdef inline void limits_look(LimitTable* l, SlotTable* t, uint32_t index) noexcept nogil:
    """See whether a slot is at its limit, and when that may be otherwise."""
    cdef SlotLimit* at = &l.of[index]
    cdef Slot* slot = &t.slots[index]
    cdef bint full = limits_is_full(at)
    cdef int64_t due = max(at.blocked, at.full_at - at.limit.tolerance if at.full_at > l.now else -NEVER)
    cdef bint early = due > l.now
    if full or early:
        if rarely(l.joints.on):
            joints_wait_no_more(&l.joints, index)
        if not slot.flags & AT_LIMIT:
            limits_withhold(t, index)
    elif slot.flags & AT_LIMIT and not limits_waits(l, index):
        limits_let_go(t, index)
    if at.in_hand | at.permits | at.has_bucket or at.full_at > l.now or at.blocked > l.now:
        slot.flags |= IN_USE
    else:
        slot.flags &= ~IN_USE
        slots_report_idle(t, index)
    if early and not full:
        limits_schedule(l, index, due)
    elif at.full_at > l.now and not at.in_hand and slot.flags & TRANSIENT:
        limits_schedule(l, index, at.full_at)  # to be forgotten then
    else:
        limits_schedule(l, index, NEVER)
    if at.limit.shared:
        limits_pushed(l, t, index)

# What the owner calls -------------------------------------------------------------------------------------------------

cdef inline void limits_set(LimitTable* l, SlotTable* t, uint32_t index, Limit limit) noexcept nogil:
    """Change the limit of a slot, at the time brought last; its bucket is full when it would have been, or sooner."""
    cdef SlotLimit* at = &l.of[index]
    if (limit.concurrency != 0) != (at.limit.concurrency != 0) and not joints_counts(&l.joints, index):
        limits_count_anew(l, index)
    if limit.shared != at.limit.shared:
        at.permits = 0
        at.has_bucket = at.asked = False
    at.limit = limit
    limits_count_most(at)
    at.full_at = min(at.full_at, l.now + limit.tolerance + limit.interval)
    limits_look(l, t, index)

cdef inline void limits_permit(
    LimitTable* l, SlotTable* t, uint32_t index, int64_t permits, bint has_bucket, int64_t full_at
) noexcept nogil:
    """Set what a slot with a shared limit may do; `full_at` counts if the bucket comes with this call.

    The caller asks the group for what the slot lacks after the call, so the slot is not listed for it.
    """
    cdef SlotLimit* at = &l.of[index]
    at.permits = permits
    if has_bucket and not at.has_bucket:
        at.full_at = full_at
    at.has_bucket = has_bucket
    if not has_bucket:
        at.full_at = -NEVER  # it fills elsewhere
    limits_count_most(at)
    at.asked = limits_lacks(at, &t.slots[index])
    limits_look(l, t, index)

cdef inline void limits_block(LimitTable* l, SlotTable* t, uint32_t index, int64_t until) noexcept nogil:
    """Let a slot take no turns until a time, or until a later one if it is blocked already."""
    cdef SlotLimit* at = &l.of[index]
    at.blocked = max(at.blocked, until)
    limits_look(l, t, index)

cdef inline void limits_tell(LimitTable* l, SlotTable* t, int64_t now) noexcept nogil:
    """Bring the time: those that are due are looked at."""
    l.now = max(l.now, now)
    while l.timed and limits_slot_due(l) <= l.now:
        limits_look(l, t, l.heap[0])

cdef inline void limits_take(LimitTable* l, SlotTable* t, uint32_t index, bint loose) noexcept nogil:
    """Note that a message of a slot was popped just now; loose: it is given back by the name of the slot."""
    cdef SlotLimit* at = &l.of[index]
    at.in_hand += at.limit.concurrency != 0 or joints_counts(&l.joints, index)
    if at.limit.interval:
        at.full_at = max(at.full_at, l.now) + at.limit.interval
    if at.in_hand or at.limit.interval:
        limits_look(l, t, index)
    if rarely(l.joints.on):
        l.joints.slot[index].loose += loose
        l.joints.last = index
        joints_take(&l.joints, l.joints.slot[index].named, l.now)
        joints_take(&l.joints, l.joints.total, l.now)
        limits_arrange(l, t)

cdef inline void limits_give_back(
    LimitTable* l, SlotTable* t, uint32_t index, int64_t count, bint unused
) noexcept nogil:
    """Note that popped messages are in hand no more; unused: as though they had not been popped."""
    cdef SlotLimit* at = &l.of[index]
    if at.limit.shared and at.limit.concurrency and at.in_hand > at.permits:
        limits_list(l, index, SHORT)
    at.in_hand -= min(count, at.in_hand)
    if unused and at.limit.interval and (at.has_bucket or not at.limit.shared):  # else the bucket is elsewhere
        at.full_at -= min(count * at.limit.interval, at.limit.tolerance + at.limit.interval)
    limits_look(l, t, index)

# Joint limits ---------------------------------------------------------------------------------------------------------

cdef inline bint limits_has_candidate(const LimitTable* l, const SlotTable* t, uint32_t number) noexcept nogil:
    """Return whether the slot that was let go last for a joint limit is still in its turn, and may be served in it."""
    cdef uint32_t index = l.joints.of[number].candidate
    cdef const Slot* slot = &t.slots[index]
    if index == NO_SLOT or slot.quantum == 0 or not joints_has(&l.joints, index, number):
        return False
    return slot.active and slot.granted != NO_TURN and slot.head != NULL and slot.head.cost <= slot.deficit

cdef inline void limits_go_on(LimitTable* l, SlotTable* t, uint32_t index) noexcept nogil:
    """Let a slot that waits for a joint limit take turns, if its own limit allows it."""
    joints_wait_no_more(&l.joints, index)
    if t.slots[index].quantum:  # not one that was removed
        limits_look(l, t, index)

cdef inline void limits_choose(LimitTable* l, SlotTable* t, uint32_t number) noexcept nogil:
    """Let slots go on that wait for a joint limit, which is not reached."""
    cdef JointLimit* joint = &l.joints.of[number]
    if t.bands != NULL:
        while joint.last != NO_SLOT:  # each goes to the head of the list of its band
            limits_go_on(l, t, joint.last)
        return
    while joint.first != NO_SLOT and not limits_has_candidate(l, t, number):
        joint.candidate = joint.first
        limits_go_on(l, t, joint.first)

cdef inline void limits_open(LimitTable* l, SlotTable* t) noexcept nogil:
    """Let slots go on whose joint limits allow it. O(joint limits)."""
    cdef uint32_t number
    for number in range(1, l.joints.count + 1):
        if l.joints.of[number].first != NO_SLOT and not joints_is_reached(&l.joints.of[number], l.now):
            limits_choose(l, t, number)

cdef inline bint limits_goes_on(const SlotTable* t) noexcept nogil:
    """Return whether the first slot is in the middle of its turn. Needs queued > 0."""
    cdef const Slot* slot = &t.slots[slots_first(t)]
    return slot.granted != NO_TURN and slot.head != NULL and slot.head.cost <= slot.deficit

cdef inline uint32_t limits_next(const LimitTable* l, SlotTable* t) noexcept nogil:
    """Return the slot whose turn it is, and not its branch. Needs queued > 0."""
    cdef uint32_t index = dwrr_turn(t)
    if index == AWAITED_SLOT:
        index = slots_first(t)
    return index if t.branches == NULL else t.branches.of[index].root

cdef inline bint limits_arrange(LimitTable* l, SlotTable* t) noexcept nogil:
    """Let slots wait for their joint limits, and go on, until the slot whose turn it is may be served.

    Return whether one has to wait.
    """
    cdef uint32_t number, index
    cdef bint goes_on, changed = False
    limits_open(l, t)
    while t.queued:
        goes_on = limits_goes_on(t)
        index = limits_next(l, t)
        number = joints_reached(&l.joints, index, l.now)
        if number == NO_JOINT:
            break
        changed = True
        limits_withhold(t, index)
        joints_wait(&l.joints, index, number, goes_on and index == l.joints.last)
        if joints_is_short(&l.joints.of[number]):
            joints_list(&l.joints, number)
        limits_open(l, t)
    l.shorts = l.short_slots + l.joints.listed
    return changed

cdef inline void limits_give_back_joint(
    LimitTable* l, SlotTable* t, uint32_t named, uint32_t total, bint unused
) noexcept nogil:
    """Note that a message that counted in these joint limits is in hand no more."""
    joints_give_back(&l.joints, named, 1, unused)
    joints_give_back(&l.joints, total, 1, unused)
    limits_arrange(l, t)

cdef inline void limits_release(LimitTable* l, SlotTable* t, uint32_t index) noexcept nogil:
    """Note that a message is in hand no more that is given back by the name of its slot."""
    limits_give_back(l, t, index, 1, False)
    if rarely(l.joints.on) and l.joints.slot[index].loose:
        l.joints.slot[index].loose -= 1
        limits_give_back_joint(l, t, l.joints.slot[index].named, l.joints.total, False)

cdef inline void limits_permit_joint(
    LimitTable* l, SlotTable* t, uint32_t number, int64_t permits, bint has_bucket, int64_t full_at
) noexcept nogil:
    """Set what may be served under a shared joint limit, as limits_permit does for a slot."""
    joints_permit(&l.joints, number, permits, has_bucket, full_at)
    limits_arrange(l, t)

cdef inline void limits_set_named(LimitTable* l, SlotTable* t, uint32_t index, uint32_t named) noexcept nogil:
    """Change the named limit of a slot; what is in hand and given back by its name counts no more."""
    cdef JointSlot* at = &l.joints.slot[index]
    cdef bint counted = limits_counts(l, index)
    if named == at.named:
        return
    joints_wait_no_more(&l.joints, index)
    joints_give_back(&l.joints, at.named, at.loose, False)
    joints_give_back(&l.joints, l.joints.total, at.loose, False)
    l.of[index].in_hand -= min(at.loose, l.of[index].in_hand)
    at.loose = 0
    at.named = named
    if counted != limits_counts(l, index):
        limits_count_anew(l, index)
    limits_look(l, t, index)
    limits_arrange(l, t)

cdef inline int64_t limits_waiting_for(
    const LimitTable* l, const SlotTable* t, uint32_t number, int64_t most
) noexcept nogil:
    """Return how many messages a joint limit could allow at once, of slots that wait for it, up to `most`.

    Each has what its own limit allows. O(most).
    """
    cdef uint32_t index = l.joints.of[number].first
    cdef const SlotLimit* at
    cdef int64_t found = 0, own
    while index != NO_SLOT and found < most:
        at = &l.of[index]
        own = min(<int64_t> (t.slots[index].pushed - t.slots[index].served), at.most - at.in_hand)
        found += max(0, own)
        index = l.joints.slot[index].next
    return min(found, most)

cdef inline int64_t limits_waiting_messages(const LimitTable* l, const SlotTable* t, uint32_t number) noexcept nogil:
    """Return how many messages the slots have that wait for a joint limit. O(these slots)."""
    cdef uint32_t index = l.joints.of[number].first
    cdef int64_t found = 0
    while index != NO_SLOT:
        found += <int64_t> (t.slots[index].pushed - t.slots[index].served)
        index = l.joints.slot[index].next
    return found
