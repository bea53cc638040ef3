"""Who may go on in a `FairQueue`, and how the others wait; see _fairwaiting.pyx."""

from libc.stdint cimport int32_t, int64_t

from fairsched._fairqueue cimport FairQueue
from fairsched.core.anticipation cimport anticipation_awaits, anticipation_cost
from fairsched.core.slots cimport NOT_AWAITED, Slot, SlotTable, slots_first
from fairsched.core.wakeup cimport wakeup_higher

cdef enum Verdict:  # on what a call may do at this moment; see _fairwaiting.pyx
    VERDICT_ERROR = -1
    READY
    READY_AFTER_WAIT  # what is left is to be handed over
    TOO_LATE
    IS_SHUT_DOWN
    WAIT

cdef int is_due(FairQueue q) except -1
cdef Verdict wait_for_item(FairQueue q, bint block, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR
cdef bint wait_for_room(FairQueue q, int64_t count, bint block, object timeout) except -1
cdef void hand_over(FairQueue q) noexcept
cdef void hand_room_over(FairQueue q) noexcept
cdef int raise_verdict(Verdict verdict, bint for_item) except -1


cdef inline int64_t as_nanoseconds(double seconds) noexcept:
    """Of any clock: what is no number becomes 0, and what is too large 4e9 seconds, twice which is within 64 bits."""
    return <int64_t> (min(max(seconds, -4e9), 4e9) * 1e9) if seconds == seconds else 0


cdef inline bint is_awaiting(FairQueue q) noexcept:
    """True when items are queued, but the turn of an empty slot is waited for, as the last look found, and still is."""
    cdef SlotTable* table = &q.table
    cdef Slot* slot
    if table.queued == 0 or table.awaited_since == NOT_AWAITED:
        return False
    slot = &table.slots[slots_first(table)]
    return slot.head == NULL and slot.deficit >= anticipation_cost(slot) and anticipation_awaits(table, slot)


cdef inline int64_t wanted(FairQueue q) noexcept:
    """Items that getters are to be woken for: none while one of them sees to the slot whose turn it is."""
    return 0 if q.anticipating and is_awaiting(q) else q.table.queued


cdef inline bint has_room(FairQueue q, int64_t count) noexcept:
    """True when `count` more items may be put."""
    return not q.is_shut_down and (not q.maxsize or q.table.queued + count <= q.maxsize)


cdef inline bint is_outranked(FairQueue q, int32_t rank) noexcept:
    """True when a getter of a higher priority is to have what is queued."""
    return wakeup_higher(&q.getters.interest, rank) and q.getters.outranked(rank)


cdef inline int may_take(FairQueue q, int32_t rank) except -1:
    """1 when something is queued, no getter of a higher priority is to have it, and no slot is waited for."""
    if q.table.queued == 0 or is_outranked(q, rank):
        return 0
    return q.table.patience == 0 or (is_due(q) and q.table.queued != 0 and not is_outranked(q, rank))
