"""Who may go on in a `FairQueue`, and how the others wait; see _fairwaiting.pyx."""

from libc.stdint cimport int32_t, int64_t

from fairsched._fairqueue cimport FairQueue
from fairsched.core.slots cimport NOT_AWAITED, SlotTable, slots_first
from fairsched.core.wakeup cimport wakeup_higher

cdef int is_due(FairQueue q) except -1
cdef bint wait_for_item(FairQueue q, object block, object timeout, int32_t rank, int64_t limit) except -1
cdef bint wait_for_room(FairQueue q, object slot, int64_t count, object block, object timeout) except -1
cdef void hand_over(FairQueue q) noexcept


cdef inline int64_t as_nanoseconds(double seconds) noexcept:
    return <int64_t> (seconds * 1e9)


cdef inline bint is_awaiting(FairQueue q) noexcept:
    """True when items are queued, but the last look found that the turn of an empty slot is waited for."""
    cdef SlotTable* table = &q.table
    return table.queued and table.awaited_since != NOT_AWAITED and table.slots[slots_first(table)].head == NULL


cdef inline int64_t wanted(FairQueue q) noexcept:
    """Items that getters are to be woken for: none while one of them sees to the slot whose turn it is."""
    return 0 if q.anticipating and is_awaiting(q) else q.table.queued


cdef inline bint has_room(FairQueue q, int64_t count) noexcept:
    """True when `count` more items may be put."""
    return not q.is_shut_down and (not q.maxsize or q.table.queued + count <= q.maxsize)


cdef inline int may_take(FairQueue q, int32_t rank) except -1:
    """1 when something is queued, no getter of a higher priority is to have it, and no slot is waited for."""
    return q.table.queued != 0 and not (
        wakeup_higher(&q.getters.interest, rank) and q.getters.outranked(rank)
    ) and (q.table.patience == 0 or is_due(q))
