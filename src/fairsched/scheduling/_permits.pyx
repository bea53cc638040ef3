"""Permits of a fair queue's slots: the part that this process has of a limit that counts for a group of processes.

`consumer/group_limits` asks the group and grants; core/schedule/limits.pxd counts. Exclusion is that of the queue: see
_fairqueue.pyx.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport int64_t, uint32_t

from fairsched._core cimport slot_find
from fairsched.core.schedule.jointlimits cimport NO_JOINT, JointLimit, Joints, joints_take_short
from fairsched.core.schedule.limits cimport (
    NEVER, NO_PLACE, SlotLimit, limits_look_at_tight, limits_permit, limits_permit_joint, limits_take_short,
    limits_tell, limits_waiting_for, limits_waits_for_group,
)
from fairsched.core.schedule.slots cimport Slot
from fairsched.scheduling._fairqueue cimport FairQueue, hand_over, tell_shorts
from fairsched.scheduling._numbers cimport as_int64, as_nanoseconds

from fairsched.scheduling.limit import JointName
from fairsched.stats import PermitUse

cdef extern from *:
    """
    // The slots of a fair queue; see _fairqueue.pyx.
    #undef FAIRSCHED_BANDED
    #define FAIRSCHED_BANDED 1
    #undef FAIRSCHED_SPARSE
    #define FAIRSCHED_SPARSE 1
    """


@cython.final
@cython.no_gc_clear  # a finalizer may use it while the collector clears its cycle, which the queue breaks
cdef class Permits:
    """Permits(queue)
    --

    The permits of a fair queue's slots whose limits have ``scope="group"``, and of such limits of several slots, which
    have a `JointName` in place of the slot's name.

    Parameters
    ----------
    queue : FairQueue
        The queue.

    Notes
    -----
    Thread safety: any thread.
    """

    cdef FairQueue queue

    def __cinit__(self, FairQueue queue not None):
        self.queue = queue

    def grant(self, slot, permits, full_in=None):
        """grant($self, slot, permits, full_in=None)
        --

        Set what a slot whose limit has ``scope="group"`` may do in this process.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        permits : int
            Maximum number of its items in hand here; may be less than there are.
        full_in : float, optional
            With a rate: the group's token bucket is here, and full in so many seconds; ignored if it has been here.
            None: it is elsewhere, and no item is served.

        Returns
        -------
        PermitUse or None
            Figures of the slot after the call, with the seconds until the bucket is full before it. None if there is no
            such slot, or its limit is not one of the group.

        Raises
        ------
        ValueError, OverflowError
            `permits` is not an integer of at least 0.

        Notes
        -----
        O(log slots); O(backlogged slots) if the slot stops taking turns. Safe from any thread.
        """
        cdef FairQueue fair = self.queue
        cdef int64_t most = as_int64(permits, "permits", "an integer of 0 or more")
        cdef int64_t wait = 0 if full_in is None else as_nanoseconds(full_in)
        cdef bint has_bucket = full_in is not None
        cdef int64_t now = 0, hash
        cdef long index
        cdef SlotLimit at
        cdef Slot found
        cdef bint waits
        cdef int64_t full_at = -NEVER
        if most < 0:
            raise ValueError(f"permits must be an integer of 0 or more, got {permits!r}")
        if type(slot) is JointName:
            return grant_joint(fair, slot, most, has_bucket, wait)
        with cython.critical_section(fair):
            if fair.limits.rated:
                now = as_nanoseconds(fair.getters.clock())
                limits_tell(&fair.limits, &fair.table, now)
            index = slot_find(fair, slot, &hash)
            if index < 0 or not fair.limits.on or not fair.limits.of[index].limit.shared:
                return None
            if fair.limits.of[index].has_bucket:
                full_at = fair.limits.of[index].full_at
            limits_permit(&fair.limits, &fair.table, index, most, has_bucket, now + wait)
            at = fair.limits.of[index]
            found = fair.table.slots[index]
            waits = limits_waits_for_group(&fair.limits, index)
            hand_over(fair)
            if fair.table.idle_count:
                fair.forget_idle()
        return figures(&at, &found, waits, max(0, full_at - now) if full_at > now else 0)

    def use(self, slot):
        """use($self, slot)
        --

        Figures of a slot whose limit has ``scope="group"``, as `grant` returns them; None if there is none. O(1).
        """
        cdef FairQueue fair = self.queue
        cdef int64_t now = 0, hash
        cdef long index
        cdef SlotLimit at
        cdef Slot found
        cdef bint waits
        if type(slot) is JointName:
            return use_of_joint(fair, slot)
        with cython.critical_section(fair):
            if fair.limits.rated:
                now = as_nanoseconds(fair.getters.clock())
            index = slot_find(fair, slot, &hash)
            if index < 0 or not fair.limits.on or not fair.limits.of[index].limit.shared:
                return None
            at = fair.limits.of[index]
            found = fair.table.slots[index]
            waits = limits_waits_for_group(&fair.limits, index)
        return figures(&at, &found, waits, at.full_at - now if at.has_bucket and at.full_at > now else 0)

    def short(self, tight=False):
        """short($self, tight=False)
        --

        Names of the slots with a group's limit that have changed since the last call so that the group should hear of
        it: they have items and no permits or bucket for any, or they have fewer items in hand than before, and had more
        than their permits. A slot is named once, until `grant` is called for it; what it lacks after that call is not
        named either, until it has been granted.

        Parameters
        ----------
        tight : bool
            Name also the slots that have items, and of which as many are in hand as they have permits, if that was so
            at the last call with ``tight=True``, too. With each item that waits behind one in hand, it is so for a
            moment.

        Notes
        -----
        O(slots named); with `tight` O(slots that were tight since the last such call). Safe from any thread.
        """
        cdef FairQueue fair = self.queue
        cdef list found = []
        cdef uint32_t index
        cdef bint look = tight
        with cython.critical_section(fair):
            fair.told = False
            if look:
                limits_look_at_tight(&fair.limits, &fair.table)
            while True:
                index = limits_take_short(&fair.limits)
                if index == NO_PLACE:
                    break
                if fair.table.slots[index].quantum:
                    found.append(<object> PyList_GET_ITEM(fair.name_of, index))
            while True:
                index = joints_take_short(&fair.limits.joints)
                if index == NO_JOINT:
                    break
                fair.limits.shorts -= 1
                found.append(fair.joint_names[index - 1])
        return found

    def call_when_short(self, callback):
        """call_when_short($self, callback)
        --

        Have a function without parameters called, in any thread, when `short()` has something to say: once
        until that is called. None: no more.

        Raises
        ------
        ValueError
            `callback` is neither callable nor None.
        """
        cdef FairQueue fair = self.queue
        if callback is not None and not callable(callback):
            raise ValueError(f"callback must be callable or None, got {callback!r}")
        with cython.critical_section(fair):
            fair.asker = callback
            fair.told = False
            tell_shorts(fair)


cdef uint32_t find_joint(FairQueue fair, object name):
    """Return the number of a limit of several slots that is one of the group, or NO_JOINT."""
    cdef uint32_t number = fair.joint_names.index(name) + 1 if name in fair.joint_names else NO_JOINT
    return number if number and fair.limits.joints.of[number].limit.shared else NO_JOINT


cdef object grant_joint(FairQueue fair, object name, int64_t permits, bint has_bucket, int64_t wait):
    """Set what the slots with a limit may do together."""
    cdef uint32_t number
    cdef int64_t now = 0, full_at = -NEVER, waiting
    cdef JointLimit joint
    with cython.critical_section(fair):
        if fair.limits.rated:
            now = as_nanoseconds(fair.getters.clock())
            limits_tell(&fair.limits, &fair.table, now)
        number = find_joint(fair, name)
        if number == NO_JOINT:
            return None
        if fair.limits.joints.of[number].has_bucket:
            full_at = fair.limits.joints.of[number].full_at
        limits_permit_joint(&fair.limits, &fair.table, number, permits, has_bucket, now + wait)
        joint = joint_copy(&fair.limits.joints, number)
        waiting = limits_waiting_for(&fair.limits, &fair.table, number, joint.limit.concurrency or 1)
        hand_over(fair)
        if fair.table.idle_count:
            fair.forget_idle()
    return joint_use(&joint, waiting, full_at - now if full_at > now else 0)


cdef object use_of_joint(FairQueue fair, object name):
    """Return what the slots with a limit do together."""
    cdef uint32_t number
    cdef int64_t now = 0, waiting
    cdef JointLimit joint
    with cython.critical_section(fair):
        if fair.limits.rated:
            now = as_nanoseconds(fair.getters.clock())
        number = find_joint(fair, name)
        if number == NO_JOINT:
            return None
        joint = joint_copy(&fair.limits.joints, number)
        waiting = limits_waiting_for(&fair.limits, &fair.table, number, joint.limit.concurrency or 1)
    return joint_use(&joint, waiting, joint.full_at - now if joint.has_bucket and joint.full_at > now else 0)


cdef JointLimit joint_copy(const Joints* joints, uint32_t number) noexcept:
    """Return a copy of a limit; what waits for a total of this process alone does not count as reserved."""
    cdef JointLimit joint = joints.of[number]
    if not joints.of[joints.total].limit.shared:
        joint.passed = 0
    return joint


cdef object joint_use(const JointLimit* joint, int64_t waiting, int64_t wait):
    return PermitUse(
        joint.in_hand if joint.limit.concurrency else 0, joint.permits, waiting, joint.served, joint.has_bucket,
        wait * 1e-9, joint.passed,
    )


cdef object figures(const SlotLimit* at, const Slot* slot, bint waits, int64_t wait):
    cdef int64_t queued = <int64_t> (slot.pushed - slot.served)
    return PermitUse(
        at.in_hand if at.limit.concurrency else 0, at.permits, queued, slot.served, at.has_bucket, wait * 1e-9,
        queued if waits else 0,
    )
