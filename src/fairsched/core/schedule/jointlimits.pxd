"""Limits of several slots together: a named one, which some slots have in common, and the total of all slots.

A joint limit counts the messages in hand of its slots, and has one token bucket for all of them. A slot has at most one
named limit, and the total, besides its own limit (limits.pxd). A message is served if all of them allow it, and counts
in all of them, in one step.

* Turns. A joint limit that is reached takes no slot off the active list. A slot whose turn comes while one of its joint
  limits is reached *waits for it*: it leaves the list, and the limit's slots wait in the order in which their turns
  came; one that is in the middle of its turn waits first of all. When the limit allows a message, the first of them
  goes on with its turn, at the head of the list. So no slot gets more turns because of a joint limit, and none loses
  one.
* One after the other. When a slot has its turn, its own limit allows a message. It waits for its named limit first, and
  then for the total. All slots of a named limit are slots of the total, so one that waits for the total keeps no other
  slot from anything that it could use.
* Candidates. While a limit that is not reached has waiting slots, one slot that was let go is in its turn, or another
  one is let go before the next message is served: limits_arrange checks this before each. With bands all are let go,
  since the first in the order of turns may be of a later band.
* Shared. The limit is one of a group of processes: see limits.pxd. It is short if slots wait for it, and it lacks
  permits or the bucket.

A joint limit stays when no slot has it: names are those of a configuration. Thread safety: none; the caller
synchronizes. Complexity: O(1) for what is called with one limit.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from fairsched.core.schedule.slots cimport NO_SLOT

cdef enum:
    NO_JOINT = 0  # no joint limit has this number

cdef struct Limit:
    int64_t concurrency  # most messages in hand; 0: no limit
    int64_t interval     # nanoseconds until a token comes back; 0: no rate
    int64_t tolerance    # nanoseconds for which the bucket may lack being full: of all tokens but one
    bint shared          # with other processes: what may be served here is granted with limits_permit

cdef struct JointLimit:
    Limit limit
    int64_t in_hand   # messages of its slots; counted whatever the limit is
    uint64_t served   # messages of its slots, since it was made
    int64_t full_at   # when its bucket will be full
    int64_t permits   # most messages in hand of a shared limit, now
    bint has_bucket   # the bucket of a shared limit is here
    bint asked        # the owner knows that it is short, and has asked the group
    bint listed       # the owner has to look at it
    bint tight_before  # slots waited for more than its permits at the last call of joints_look_at_tight
    uint32_t first    # of the slots that wait for it, or NO_SLOT
    uint32_t last
    uint32_t passed   # slots of it that wait for the total
    uint32_t candidate  # the slot that was let go last, or NO_SLOT

cdef struct JointSlot:  # what belongs to the index of a slot
    uint32_t named    # number of its named limit, or NO_JOINT
    uint32_t waits    # number of the limit that it waits for, or NO_JOINT
    uint32_t before   # in the list of those that wait for that, or NO_SLOT
    uint32_t next
    int64_t loose     # messages in hand that are given back by the name of the slot

cdef struct Joints:
    JointLimit* of        # by number, from 1 on
    JointSlot* slot       # by index of the slot
    uint32_t count        # of limits
    uint32_t capacity     # of slots
    uint32_t usual_named  # of slots that are not told otherwise
    uint32_t total        # the limit of all slots, or NO_JOINT
    uint32_t last         # slot that was served last
    uint32_t listed       # limits that the owner has to look at
    bint on               # a slot has, or had, a joint limit

cdef inline void joints_init(Joints* j) noexcept nogil:
    memset(j, 0, sizeof(Joints))
    j.last = NO_SLOT

cdef inline void joints_clear(Joints* j) noexcept nogil:
    free(j.of)
    free(j.slot)
    joints_init(j)

cdef inline bint joints_reserve(Joints* j, uint32_t capacity) noexcept nogil:
    """Make room for slots; False when memory is exhausted."""
    cdef void* grown
    if capacity <= j.capacity:
        return True
    grown = realloc(j.slot, capacity * sizeof(JointSlot))
    if grown == NULL:
        return False
    j.slot = <JointSlot*> grown
    memset(&j.slot[j.capacity], 0, (capacity - j.capacity) * sizeof(JointSlot))
    j.capacity = capacity
    return True

cdef inline uint32_t joints_make(Joints* j) noexcept nogil:
    """Make a limit that allows everything, and return its number; NO_JOINT when memory is exhausted."""
    cdef JointLimit* grown = <JointLimit*> realloc(j.of, (j.count + 2) * sizeof(JointLimit))
    if grown == NULL:
        return NO_JOINT
    j.of = grown
    j.count += 1
    memset(&j.of[j.count], 0, sizeof(JointLimit))
    j.of[j.count].first = j.of[j.count].last = j.of[j.count].candidate = NO_SLOT
    return j.count

# Waiting slots --------------------------------------------------------------------------------------------------------

cdef inline void joints_wait(Joints* j, uint32_t index, uint32_t number, bint first) noexcept nogil:
    """Let a slot, which waits for nothing, wait for a limit: before the others that do, or behind them."""
    cdef JointLimit* joint = &j.of[number]
    cdef JointSlot* at = &j.slot[index]
    at.waits = number
    at.before = <uint32_t> NO_SLOT if first else joint.last
    at.next = joint.first if first else <uint32_t> NO_SLOT
    if at.before == NO_SLOT:
        joint.first = index
    else:
        j.slot[at.before].next = index
    if at.next == NO_SLOT:
        joint.last = index
    else:
        j.slot[at.next].before = index
    if at.named != NO_JOINT and number == j.total:
        j.of[at.named].passed += 1

cdef inline void joints_wait_no_more(Joints* j, uint32_t index) noexcept nogil:
    """Take a slot out of the list of the limit that it waits for, if there is one."""
    cdef JointSlot* at = &j.slot[index]
    cdef JointLimit* joint = &j.of[at.waits]
    if at.waits == NO_JOINT:
        return
    if at.named != NO_JOINT and at.waits == j.total:
        j.of[at.named].passed -= 1
    if at.before == NO_SLOT:
        joint.first = at.next
    else:
        j.slot[at.before].next = at.next
    if at.next == NO_SLOT:
        joint.last = at.before
    else:
        j.slot[at.next].before = at.before
    at.waits = NO_JOINT

# What a limit allows --------------------------------------------------------------------------------------------------

cdef inline bint joints_is_full(const JointLimit* joint) noexcept nogil:
    """Return whether as many messages are in hand as may be."""
    if joint.limit.concurrency == 0:
        return False
    return joint.in_hand >= (joint.permits if joint.limit.shared else joint.limit.concurrency)

cdef inline bint joints_lacks(const JointLimit* joint) noexcept nogil:
    """Return whether a shared limit could allow more if the group gave it more."""
    if not joint.limit.shared:
        return False
    return joints_is_full(joint) or (joint.limit.interval != 0 and not joint.has_bucket)

cdef inline void joints_list(Joints* j, uint32_t number) noexcept nogil:
    """Have the owner look at a limit."""
    if not j.of[number].listed:
        j.of[number].listed = True
        j.listed += 1

cdef inline bint joints_is_short(const JointLimit* joint) noexcept nogil:
    """Return whether slots wait, the group was not asked, and nothing ends here that would let them go on."""
    if joint.first == NO_SLOT or joint.asked or not joints_lacks(joint):
        return False
    return joint.permits == 0 or (joint.limit.interval != 0 and not joint.has_bucket)

cdef inline void joints_look_at_tight(Joints* j) noexcept nogil:
    """List limits as short for which slots wait now and did at the last call, as limits_look_at_tight. O(limits)."""
    cdef uint32_t number
    cdef bint tight
    for number in range(1, j.count + 1):
        tight = j.of[number].first != NO_SLOT and not j.of[number].asked and joints_lacks(&j.of[number])
        if tight and j.of[number].tight_before:
            joints_list(j, number)
        j.of[number].tight_before = tight

cdef inline bint joints_is_reached(const JointLimit* joint, int64_t now) noexcept nogil:
    """Return whether no message may be served now."""
    return joints_is_full(joint) or joints_lacks(joint) or joints_is_early(joint, now)

cdef inline bint joints_is_contended(const Joints* j, uint32_t number, int64_t now) noexcept nogil:
    """Return whether a limit is shared with other processes, and slots wait for it or the next one will."""
    cdef const JointLimit* joint = &j.of[number]
    if number == NO_JOINT or not joint.limit.shared:
        return False
    return joint.first != NO_SLOT or joints_is_reached(joint, now)

cdef inline bint joints_is_early(const JointLimit* joint, int64_t now) noexcept nogil:
    """Return whether the next token is still to come."""
    return joint.limit.interval != 0 and joint.full_at > now and joint.full_at - joint.limit.tolerance > now

cdef inline uint32_t joints_reached(const Joints* j, uint32_t index, int64_t now) noexcept nogil:
    """Return the first joint limit of a slot that is reached, or NO_JOINT."""
    cdef uint32_t named = j.slot[index].named
    if named != NO_JOINT and joints_is_reached(&j.of[named], now):
        return named
    if j.total != NO_JOINT and joints_is_reached(&j.of[j.total], now):
        return j.total
    return NO_JOINT

cdef inline bint joints_has(const Joints* j, uint32_t index, uint32_t number) noexcept nogil:
    """Return whether a slot has a joint limit."""
    return number == j.total or number == j.slot[index].named

cdef inline bint joints_counts(const Joints* j, uint32_t index) noexcept nogil:
    """Return whether messages of a slot count in a joint limit."""
    return j.on and (j.slot[index].named != NO_JOINT or j.total != NO_JOINT)

# Counting -------------------------------------------------------------------------------------------------------------

cdef inline void joints_take(Joints* j, uint32_t number, int64_t now) noexcept nogil:
    """Count a message that was served just now."""
    cdef JointLimit* joint = &j.of[number]
    if number == NO_JOINT:
        return
    joint.in_hand += 1
    joint.served += 1
    if joint.limit.interval:
        joint.full_at = max(joint.full_at, now) + joint.limit.interval

cdef inline void joints_give_back(Joints* j, uint32_t number, int64_t count, bint unused) noexcept nogil:
    """Note that messages are in hand no more; unused: as though they had not been served."""
    cdef JointLimit* joint = &j.of[number]
    if number == NO_JOINT:
        return
    if joint.limit.shared and joint.limit.concurrency and joint.in_hand > joint.permits:
        joints_list(j, number)
    joint.in_hand -= min(count, joint.in_hand)
    if unused and joint.limit.interval and (joint.has_bucket or not joint.limit.shared):
        joint.full_at -= min(count * joint.limit.interval, joint.limit.tolerance + joint.limit.interval)

cdef inline void joints_set(Joints* j, uint32_t number, Limit limit, int64_t now) noexcept nogil:
    """Change a limit; its bucket is full when it would have been, or sooner."""
    cdef JointLimit* joint = &j.of[number]
    if limit.shared != joint.limit.shared:
        joint.permits = 0
        joint.has_bucket = joint.asked = False
    joint.limit = limit
    joint.full_at = min(joint.full_at, now + limit.tolerance + limit.interval)

cdef inline void joints_permit(
    Joints* j, uint32_t number, int64_t permits, bint has_bucket, int64_t full_at
) noexcept nogil:
    """Set what may be served under a shared limit; see limits_permit."""
    cdef JointLimit* joint = &j.of[number]
    joint.permits = permits
    if has_bucket and not joint.has_bucket:
        joint.full_at = full_at
    joint.has_bucket = has_bucket
    if not has_bucket:
        joint.full_at = -0x7FFFFFFFFFFFFFFF  # it fills elsewhere
    joint.asked = joints_lacks(joint) and joint.first != NO_SLOT

cdef inline uint32_t joints_take_short(Joints* j) noexcept nogil:
    """Take a limit that the owner has to look at; NO_JOINT if there is none. O(limits)."""
    cdef uint32_t number
    if j.listed:
        for number in range(1, j.count + 1):
            if j.of[number].listed:
                j.listed -= 1
                j.of[number].listed = False
                j.of[number].asked = True
                return number
    return NO_JOINT

cdef inline int64_t joints_due(const Joints* j, int64_t never) noexcept nogil:
    """Return when the first limit for which slots wait gets its next token; `never` if no time is known. O(limits)."""
    cdef int64_t due = never
    cdef uint32_t number
    cdef const JointLimit* joint
    for number in range(1, j.count + 1):
        joint = &j.of[number]
        if joint.first != NO_SLOT and joint.limit.interval and not joints_is_full(joint) and not joints_lacks(joint):
            due = min(due, joint.full_at - joint.limit.tolerance)
    return due
