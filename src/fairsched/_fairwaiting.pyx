"""Who may go on in a `FairQueue`, and how the others wait: for items, for room, for the slot whose turn it is.

Threads that wait are consumers, of items or of room, each kind in a `WaitingRoom`. All of this is called with the
queue's exclusion held. It is given up while a thread waits, collects a permit or wakes others, and whenever Python
code runs: a clock of the caller's own, a finalizer that the collector calls, an exception being made. So the verdict
on a wait is found last, and holds until the caller does something that gives the exclusion up: it takes its items, or
puts them, at once; exceptions are raised after the seat was left. Who waited hands over what is left, once he has
taken his own or has given up.
"""

from libc.stdint cimport int32_t, int64_t

from fairsched._fairqueue cimport FairQueue
from fairsched._waitingroom cimport Seat, WaitingRoom
from fairsched.core.anticipation cimport anticipation_end_wait, anticipation_left
from fairsched.core.consumernode cimport NOTIFIED, node_state
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


cdef Verdict item_verdict(FairQueue q, int32_t rank) except VERDICT_ERROR:
    if may_take(q, rank):
        return READY
    return IS_SHUT_DOWN if q.is_shut_down and q.table.queued == 0 else WAIT


cdef Verdict room_verdict(FairQueue q, int64_t count) noexcept:
    if has_room(q, count):
        return READY
    return IS_SHUT_DOWN if q.is_shut_down else WAIT


cdef Verdict wait_for_item(FairQueue q, bint block, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR:
    """Wait until something may be taken, or say why nothing will be."""
    cdef Verdict verdict = item_verdict(q, rank)
    if verdict == WAIT:
        verdict = wait_as_getter(q, deadline, rank, limit) if block else TOO_LATE
    if verdict > READY_AFTER_WAIT:
        q.forget_idle()
    return verdict


cdef Verdict wait_as_getter(FairQueue q, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR:
    """Be one of the getters that wait; who gives up hands over."""
    cdef Seat* seat = q.getters.sit(rank, limit)
    cdef Verdict verdict = WAIT
    cdef bint in_time
    try:
        while verdict == WAIT:
            in_time = wait_for_turn(q, seat, deadline)
            verdict = item_verdict(q, rank)
            if is_told_late(q.getters, seat):
                verdict = item_verdict(q, rank)
            if verdict == WAIT and not in_time:
                verdict = TOO_LATE
            if verdict == WAIT:
                q.getters.stay(seat)
                if not is_awaiting(q):  # else this getter sees to it
                    hand_over(q)
    except BaseException:
        q.getters.leave(seat)
        hand_over(q)
        raise
    q.getters.leave(seat)
    if verdict == READY:
        return READY_AFTER_WAIT
    hand_over(q)
    return verdict


cdef bint is_told_late(WaitingRoom room, Seat* seat) noexcept:
    """Whether a seat was claimed after its wait was over. Its permit is collected: what was found before may be over.

    After this, leaving the seat does not give the exclusion up.
    """
    return node_state(&seat.node) == NOTIFIED and not seat.has_permit and room.collect(seat)


cdef bint wait_for_turn(FairQueue q, Seat* seat, object deadline) except -1:
    """Wait to be claimed, or until the turn passes that is waited for; False when the deadline passed."""
    cdef bint woken
    cdef double until
    if not is_awaiting(q):
        return q.getters.wait(seat, deadline)
    until = q.getters.clock()
    if not is_awaiting(q):  # the clock may have run anything
        return True
    until += anticipation_left(&q.table, as_nanoseconds(until)) * 1e-9
    q.anticipating += 1
    try:
        woken = q.getters.wait(seat, until if deadline is None else min(until, <double> deadline))
    finally:
        q.anticipating -= 1
    return woken or deadline is None or q.getters.clock() < deadline


cdef void hand_over(FairQueue q) noexcept:
    """Wake getters for what is left, after one that waited has taken its items or has given up."""
    if q.table.queued:
        q.getters.wake(wanted(q))
    elif q.is_shut_down:
        q.getters.wake_all()


cdef bint wait_for_room(FairQueue q, int64_t count, bint block, object timeout) except -1:
    """Return once `count` more items fit, or raise why they will not. The caller has pinned the slots they are for.

    True: it was waited for, and what room is left is to be handed over.
    """
    cdef object deadline = q.putters.deadline(block, timeout)
    cdef Verdict verdict = room_verdict(q, count)
    if verdict == WAIT:
        verdict = wait_as_putter(q, deadline, count) if block else TOO_LATE
    if verdict > READY_AFTER_WAIT:
        raise_verdict(verdict, False)
    return verdict == READY_AFTER_WAIT


cdef Verdict wait_as_putter(FairQueue q, object deadline, int64_t count) except VERDICT_ERROR:
    """Be one of the putters that wait; who gives up hands over."""
    cdef Seat* seat = q.putters.sit(0, count)
    cdef Verdict verdict = WAIT
    cdef bint in_time
    try:
        while verdict == WAIT:
            in_time = q.putters.wait(seat, deadline)
            verdict = room_verdict(q, count)
            if verdict == WAIT and not in_time:
                verdict = TOO_LATE
            if verdict == WAIT:
                q.putters.stay(seat)
                hand_room_over(q)
    except BaseException:
        q.putters.leave(seat)
        hand_room_over(q)
        raise
    q.putters.leave(seat)
    if verdict == READY:
        return READY_AFTER_WAIT
    hand_room_over(q)
    return verdict


cdef void hand_room_over(FairQueue q) noexcept:
    """Wake putters for the room that is left."""
    q.putters.wake(q.maxsize - q.table.queued)


cdef int raise_verdict(Verdict verdict, bint for_item) except -1:
    """Raise what a call that cannot go on has to."""
    if verdict == TOO_LATE:
        raise queue.Empty if for_item else queue.Full
    raise ShutDown("the queue is shut down and has no item left" if for_item else "the queue is shut down")
