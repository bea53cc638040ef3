"""Limits as Python code gives them and sees them: `fairsched.Limit`, and the figures of each."""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched._core cimport NamedSlots
from fairsched.core.schedule.limits cimport Limit, LimitTable, SlotLimit, limits_is_full


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


cdef inline dict all_limits(NamedSlots slots, LimitTable* table, int64_t now):
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
    return figures


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
