"""Limits as Python code gives them and sees them: `fairsched.Limit`, and the figures of each."""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched._core cimport NamedSlots
from fairsched.core.schedule.jointlimits cimport (
    NO_JOINT, JointLimit, Limit, joints_is_reached, joints_make, joints_set,
    joints_wait_no_more,
)
from fairsched.core.schedule.limits cimport (
    NEVER, LimitTable, SlotLimit, limits_add, limits_arrange, limits_is_full, limits_reserve, limits_set,
    limits_set_named, limits_waiting_messages,
)
from fairsched.core.schedule.slots cimport SlotTable


cdef inline Limit as_limit(object limit) except *:
    """Convert a `Limit`, or None."""
    from fairsched.scheduling.limit import Limit as GivenLimit
    cdef Limit found
    if limit is not None and not isinstance(limit, GivenLimit):
        raise ValueError(f"limit must be a fairsched.Limit or None, got {limit!r}")
    found.concurrency = 0 if limit is None else limit.concurrency or 0
    found.interval = 0 if limit is None else limit.interval_ns
    found.tolerance = 0 if limit is None else ((limit.burst or 1) - 1) * limit.interval_ns
    found.shared = limit is not None and limit.scope == "group"
    return found


cdef inline void note_kind(LimitTable* l, Limit limit) noexcept:
    """Note what has to be done from now on because of a limit."""
    l.rated |= limit.interval != 0
    l.watched |= limit.interval != 0
    l.shared |= limit.shared


cdef inline int limit_all(LimitTable* l, SlotTable* t, Limit usual) except -1:
    """Give this limit to all slots, and to those that will be added."""
    cdef uint32_t i
    if not limits_reserve(l, t):
        raise MemoryError()
    l.on = True
    l.usual = usual
    note_kind(l, usual)
    for i in range(t.size):
        limits_add(l, t, i)
    return 0


cdef inline void change_limit(LimitTable* l, SlotTable* t, uint32_t index, Limit limit, uint32_t named) noexcept:
    """Change the own limit of a slot, and the limit that it has together with others: its number, or NO_JOINT."""
    note_kind(l, limit)
    limits_set(l, t, index, limit)
    if l.joints.on:
        limits_set_named(l, t, index, named)


cdef inline void lift_all(NamedSlots slots, LimitTable* l) noexcept:
    """Let no slot have a limit."""
    cdef uint32_t i
    for i in range(slots.table.size if l.joints.on else 0):
        joints_wait_no_more(&l.joints, i)
    l.usual = as_limit(None)
    l.joints.usual_named = l.joints.total = NO_JOINT
    for i in range(slots.table.size):
        if slots.names.names[i].name != NULL:  # not that of a branch
            l.of[i].blocked = -NEVER
            change_limit(l, &slots.table, i, l.usual, NO_JOINT)


cdef inline uint32_t joint_number(NamedSlots slots, LimitTable* l, list names, object limit, bint total) except 0:
    """Return the number of the limit of several slots with this name, or of the total; it is as given from now on."""
    from fairsched.scheduling.limit import JointName
    cdef Limit found = as_limit(limit)
    name = JointName(None if total else limit.name)
    cdef uint32_t number = names.index(name) + 1 if name in names else 0
    if not number:
        names.append(name)
        l.joints.on = l.watched = True
        number = joints_make(&l.joints) if limits_reserve(l, &slots.table) else 0
    if not number:
        raise MemoryError()
    l.rated |= found.interval != 0
    joints_set(&l.joints, number, found, l.now)
    limits_arrange(l, &slots.table)
    return number


cdef inline dict all_limits(NamedSlots slots, LimitTable* table, list joint_names, int64_t now):
    """Return the figures of limits by slot name, all of one moment. Called with the queue's exclusion held."""
    cdef uint32_t i, size
    cdef SlotLimit* limits = NULL
    cdef int64_t* queued
    cdef list names = None
    cdef dict figures = {}
    while names is None or PyList_GET_SIZE(names) != slots.table.size:
        names = PyList_New(slots.table.size)  # may run Python code, which may add slots
    size = slots.table.size
    limits = <SlotLimit*> malloc(size * (sizeof(SlotLimit) + sizeof(int64_t)))
    if limits == NULL and size:
        raise MemoryError()
    queued = <int64_t*> (limits + size)
    for i in range(size):
        limits[i] = table.of[i]
        queued[i] = <int64_t> (slots.table.slots[i].pushed - slots.table.slots[i].served)
        if not slots.table.slots[i].quantum:
            limits[i].limit.concurrency = limits[i].limit.interval = 0
        Py_INCREF(<object> PyList_GET_ITEM(slots.name_of, i))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(slots.name_of, i))
    try:
        for i in range(size):
            if limits[i].limit.concurrency or limits[i].limit.interval:
                figures[names[i]] = limit_figures(&limits[i], queued[i], now)
    finally:
        free(limits)
    for i in range(1, len(joint_names) + 1):
        figures[joint_names[i - 1]] = joint_figures(
            &table.joints.of[i], limits_waiting_messages(table, &slots.table, i), now
        )
    return figures


cdef inline object joint_figures(const JointLimit* joint, int64_t waiting, int64_t now):
    """Return the figures of a limit of several slots."""
    from fairsched.stats import LimitStats
    return LimitStats(
        joint.in_hand if joint.limit.concurrency else None,
        joint.limit.concurrency or None,
        1e9 / joint.limit.interval if joint.limit.interval else None,
        waiting if joints_is_reached(joint, now) else 0,
    )


cdef inline object limit_figures(const SlotLimit* at, int64_t queued, int64_t now):
    """Return the figures of one limit, from a copy: the slot's AT_LIMIT flag may be of an earlier moment."""
    cdef bint full = limits_is_full(at)
    cdef bint early = at.blocked > now
    early |= at.limit.interval != 0 and at.full_at > now and at.full_at - at.limit.tolerance > now
    from fairsched.stats import LimitStats
    return LimitStats(
        at.in_hand if at.limit.concurrency else None,
        at.limit.concurrency or None,
        1e9 / at.limit.interval if at.limit.interval else None,
        queued if full or early else 0,
    )
