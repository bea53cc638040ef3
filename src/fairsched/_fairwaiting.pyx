"""Who may go on in a `FairQueue`, and how the others wait: for items, for room, for the slot whose turn it is.

Threads that wait are consumers, of items or of room, each kind in a `WaitingRoom`. All of this is called with the
queue's exclusion held, which is given up only while a thread waits, and around a wake-up. Who waited hands over what is
left, once he has taken his own.
"""

from libc.stdint cimport int32_t, int64_t

from fairsched._core cimport slot_find
from fairsched._fairqueue cimport FairQueue
from fairsched._waitingroom cimport Seat
from fairsched.core.anticipation cimport anticipation_end_wait, anticipation_left
from fairsched.core.dwrr cimport dwrr_turn
from fairsched.core.slots cimport AWAITED_SLOT, NOT_AWAITED, SlotTable

import queue

from fairsched.errors import ShutDown


cdef int is_due(FairQueue q) except -1:
    """1 when the slot whose turn it is has an item; turns that were waited for long enough pass."""
    cdef SlotTable* table = &q.table
    cdef int64_t now
    if dwrr_turn(table) != AWAITED_SLOT and table.awaited_since == NOT_AWAITED:
        return 1
    now = as_nanoseconds(q.getters.clock())  # a clock of the caller's own may run anything
    while table.queued and dwrr_turn(table) == AWAITED_SLOT:
        if anticipation_left(table, now) > 0:
            return 0
    if table.awaited_since != NOT_AWAITED:
        anticipation_end_wait(table, now)
    return table.queued != 0


cdef bint wait_for_item(FairQueue q, object block, object timeout, int32_t rank, int64_t limit) except -1:
    """Return once something may be taken. True: it was waited for, so what is left is to be handed over."""
    cdef object deadline = q.getters.deadline(block, timeout)
    cdef bint in_time = False
    cdef Seat* seat
    if may_take(q, rank):
        return False
    check_for_end(q)
    if not block:
        raise queue.Empty
    seat = q.getters.sit(rank, limit)
    try:
        in_time = wait_seated(q, seat, deadline)
        while not may_take(q, rank):
            check_for_end(q)
            if not in_time:
                raise queue.Empty
            q.getters.stay(seat)
            if not is_awaiting(q):  # else this getter sees to it
                hand_over(q)
            in_time = wait_seated(q, seat, deadline)
    except BaseException:
        q.getters.leave(seat)
        hand_over(q)
        raise
    q.getters.leave(seat)
    return True


cdef bint wait_seated(FairQueue q, Seat* seat, object deadline) except -1:
    """Wait to be claimed, or until the turn passes that is waited for; False when the deadline passed."""
    cdef bint woken
    if not is_awaiting(q):
        return q.getters.wait(seat, deadline)
    now = q.getters.clock()
    until = now + anticipation_left(&q.table, as_nanoseconds(now)) * 1e-9
    q.anticipating += 1
    try:
        woken = q.getters.wait(seat, until if deadline is None else min(until, deadline))
    finally:
        q.anticipating -= 1
    return woken or deadline is None or q.getters.clock() < deadline


cdef int check_for_end(FairQueue q) except -1:
    if q.is_shut_down and q.table.queued == 0:
        raise ShutDown("the queue is shut down and has no item left")
    return 0


cdef void hand_over(FairQueue q) noexcept:
    """Wake getters for what is left, after one that waited has taken its items or has given up."""
    if q.table.queued:
        q.getters.wake(wanted(q))
    elif q.is_shut_down:
        q.getters.wake_all()


cdef bint wait_for_room(FairQueue q, object slot, int64_t count, object block, object timeout) except -1:
    """Return once `count` more items fit. True: they were waited for; what room is left is to be handed over."""
    cdef object deadline = q.putters.deadline(block, timeout)
    cdef bint in_time = False
    cdef Seat* seat
    if not q.default_quantum and slot_find(q, slot) < 0:
        q.admit(slot)  # raises: an unknown slot is an error now, not when there is room
    if has_room(q, count):
        return False
    if not block and not q.is_shut_down:
        raise queue.Full
    if q.is_shut_down:
        raise ShutDown("the queue is shut down")
    seat = q.putters.sit(0, count)
    try:
        in_time = q.putters.wait(seat, deadline)
        while not has_room(q, count):
            if q.is_shut_down:
                raise ShutDown("the queue is shut down")
            if not in_time:
                raise queue.Full
            q.putters.stay(seat)
            q.putters.wake(q.maxsize - q.table.queued)
            in_time = q.putters.wait(seat, deadline)
    except BaseException:
        q.putters.leave(seat)
        q.putters.wake(q.maxsize - q.table.queued)
        raise
    q.putters.leave(seat)
    return True
