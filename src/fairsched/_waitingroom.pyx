"""Threads of one kind that wait for one thing: consumers of it, in the lists of core/interest.pxd.

A waiting thread has a seat: a node, and a semaphore to sleep on; who must not sleep, as an event loop, has one with a
callback. What they wait for is work, in some unit: items for getters, room for putters. Whom to wake is said by
core/wakeup.pxd, and what its callers owe is done here:

    waiter   deadline -> sit (interested) -> wait -> looks -> takes it -> leave -> the owner wakes for what is left
                                              ^        `-> stay (interested again; the owner wakes for what is left)
    waker    makes the work visible -> wake: claims waiters until those on their way take what there is -> unparks them

Every method is called with the owner's exclusion held: the GIL, or on free-threaded builds the owner's critical
section. It is given up while a thread is parked, around unparking, and in callbacks. Within it, a look and a move are
one step, so a claimed waiter stays notified until it takes or leaves.
    A claimed waiter has a permit, there or under way. A waiter whose time is over finds itself interested, and leaves;
    or notified, and collects the permit first. So permits never outlive the claims they were made for.
    A seat in a waker's chain stays in the room: its thread cannot leave before it has the permit. One with a callback
    can, so it is the callback that the waker keeps. Seats are freed with the room only, since a waker may still be
    inside unpark when the woken thread has left.

Complexity: O(1), where the priorities are few (core/interest.pxd); wake O(waiters on their way + woken).
Memory: a seat for each of the most threads that ever waited at once, and SPARE: steady waiting allocates nothing.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from fairsched.core.consumernode cimport ConsumerNode, NOTIFIED, REMOVED, node_init, node_state
from fairsched.core.interest cimport (
    MOVED, NO_MEMORY, interest_clear, interest_done, interest_enter, interest_first, interest_init, interest_leave,
    interest_notify, interest_set,
)
from fairsched.core.interestwalk cimport (
    LIST_INTERESTED, LIST_NOTIFIED, InterestWalk, interestwalk_init, interestwalk_next,
)
from fairsched.core.membership cimport interest_add, interest_remove
from fairsched.core.parking cimport Parking
from fairsched.core.reclaim cimport Pin
from fairsched.core.wakeup cimport Wants, wakeup_higher, wakeup_one, wakeup_outranked, wakeup_possible

import threading
import time

cdef enum:
    # The main thread looks for signals this often while it waits: only it can run their handlers.
    SIGNAL_CHECK_NS = 50_000_000
    # A clock of the caller's own is looked at this often while a thread waits by it.
    CLOCK_CHECK_NS = 1_000_000
    # Idle seats that are kept before one of them is given to a waiter of another priority.
    SPARE = 16
    # Dead entries that a list keeps: few, since a room has few waiters, and the same ones come again and again.
    THRESHOLD = 16


cdef bint fits(void* context, ConsumerNode* node) noexcept nogil:
    """True when what is left is enough for the thread in this seat."""
    return (<Seat*> node).amount <= (<int64_t*> context)[0]


cdef Seat** put_aside(Seat** end, Seat* seat, list callbacks) noexcept:
    """Note a claimed seat, for `tell`: at the end of a chain, which is returned, or its callback in a list."""
    if seat.callback != NULL:
        callbacks.append(<object> seat.callback)
        return end
    end[0] = seat
    seat.next = NULL
    return &seat.next


cdef void call_back(object callback) noexcept:
    """What it raises goes to sys.unraisablehook: it has nothing to do with what the caller is at."""
    callback()


cdef void tell(Seat* seat, list callbacks) noexcept:
    """Wake a chain of threads: the GIL is given up meanwhile, so that they can have it at once. Then call back."""
    cdef Seat* following
    if seat != NULL:
        with nogil:
            while seat != NULL:
                following = seat.next  # before the permit: with it, the seat is its thread's again
                seat.parking.unpark(1)
                seat = following
    if callbacks is not None:
        for callback in callbacks:
            call_back(callback)


cdef class WaitingRoom:
    """Where threads wait; `clock` returns seconds, None: time.monotonic."""

    def __cinit__(self, clock, bint whole=False):
        if not interest_init(&self.interest, THRESHOLD):
            raise MemoryError()
        self.clock = time.monotonic if clock is None else clock
        self.own_clock = clock is not None
        self.whole = whole

    def __dealloc__(self):
        cdef Seat* seat
        interest_clear(&self.interest)
        while self.idle != NULL:
            seat = self.idle
            self.idle = seat.next
            del seat.parking
            free(seat)

    cdef object deadline(self, object block, object timeout):
        """When a wait ends, by the clock; None: never."""
        if not block or timeout is None:
            return None
        if not timeout >= 0:  # NaN too
            raise ValueError(f"timeout must be a number of seconds, 0 or more, got {timeout!r}")
        return self.clock() + timeout

    cdef bint outranked(self, int32_t priority) noexcept:
        """True when a waiter of a higher priority is to have the work."""
        cdef bint outranked = False
        cdef Pin* pin
        if wakeup_higher(&self.interest, priority):
            pin = interest_enter(&self.interest)
            outranked = wakeup_outranked(&self.interest, pin, priority, NULL, NULL)
            interest_leave(pin)
        return outranked

    cdef Seat* sit(self, int32_t priority, int64_t amount, PyObject* callback=NULL) except NULL:
        """Have the calling thread, or a callback, wait for at most, or all of, `amount`. Runs no Python code."""
        cdef Seat* seat = self.idle_seat(priority)
        cdef bint seated
        cdef Pin* pin
        if seat == NULL:
            raise MemoryError()
        seated = self.register(seat, priority)
        if seated:
            seat.amount = amount
            seat.callback = callback
            self.calls |= callback != NULL
            pin = interest_enter(&self.interest)
            seated = interest_set(&self.interest, pin, &seat.node, True) == MOVED
            interest_leave(pin)
        if not seated:
            seat.next = self.idle
            self.idle = seat
            raise MemoryError()
        return seat

    cdef bint wait(self, Seat* seat, object deadline) except -1:
        """Wait to be claimed: True, and the seat is notified; False when the deadline passed, and it is interested."""
        cdef int64_t slice_ns
        cdef bint woken = False
        try:
            while not woken:
                slice_ns = self.look_around_ns(deadline)
                if slice_ns == 0:
                    break
                with nogil:
                    woken = seat.parking.park(slice_ns)
                if not woken:
                    PyErr_CheckSignals()
        finally:
            if not woken and node_state(&seat.node) == NOTIFIED:
                woken = True
                with nogil:
                    seat.parking.park(-1)
        return woken

    cdef bint wait_once(self, object deadline) except -1:
        """Sit down, wait and leave: False when the deadline passed before anybody woke this thread."""
        cdef Seat* seat = self.sit(0, 1)
        cdef bint finished = False
        try:
            woken = self.wait(seat, deadline)
            finished = True
        finally:
            self.leave(seat)
            if not finished:  # what this thread may have been woken for is for another to see to
                self.wake(1)
        return woken

    cdef int stay(self, Seat* seat) except -1:
        """Go on waiting after a wake-up for what one may not take. Then wake for what is left."""
        cdef Pin* pin = interest_enter(&self.interest)
        cdef int moved = interest_done(&self.interest, pin, &seat.node)
        interest_leave(pin)
        if moved == NO_MEMORY:
            raise MemoryError()
        return 0

    cdef void leave(self, Seat* seat) noexcept:
        """Wait no longer. Then take what one came for, and then wake for what is left."""
        cdef Pin* pin = interest_enter(&self.interest)
        if interest_set(&self.interest, pin, &seat.node, False) == NO_MEMORY:
            interest_remove(&self.interest, pin, &seat.node)  # takes no memory
        interest_leave(pin)
        seat.next = self.idle
        self.idle = seat

    cdef void wake(self, int64_t available) noexcept:
        """Wake as many as there is work for that nobody on his way takes."""
        cdef int64_t left = available
        cdef Seat* first = NULL
        cdef Seat** end = &first
        cdef Seat* seat
        cdef list callbacks
        cdef Wants wants = NULL
        cdef Pin* pin
        if self.whole:
            wants = fits
        if left <= 0 or not wakeup_possible(&self.interest):
            return
        callbacks = [] if self.calls else None  # before anybody is claimed: it may run finalizers, which use the room
        pin = interest_enter(&self.interest)
        left -= self.promised(pin, left)
        while left > 0:
            seat = <Seat*> wakeup_one(&self.interest, pin, wants, &left)
            if seat == NULL:
                break
            left -= seat.amount
            end = put_aside(end, seat, callbacks)
        interest_leave(pin)
        tell(first, callbacks)

    cdef void wake_all(self) noexcept:
        """Wake everybody, work or not."""
        cdef list callbacks = [] if self.calls else None
        cdef Pin* pin = interest_enter(&self.interest)
        cdef ConsumerNode* node = interest_first(&self.interest, pin)
        cdef Seat* first = NULL
        cdef Seat** end = &first
        while node != NULL and interest_notify(&self.interest, pin, node) == MOVED:
            end = put_aside(end, <Seat*> node, callbacks)
            node = interest_first(&self.interest, pin)
        interest_leave(pin)
        tell(first, callbacks)

    cdef list waiting(self):
        """Priorities of those who wait and have not been woken, in the order in which they would be."""
        cdef list priorities = []
        cdef InterestWalk walk
        cdef ConsumerNode* node
        cdef Pin* pin = interest_enter(&self.interest)
        interestwalk_init(&walk, &self.interest, pin, LIST_INTERESTED)
        node = interestwalk_next(&walk)
        while node != NULL:
            priorities.append(node.priority)
            node = interestwalk_next(&walk)
        interest_leave(pin)
        return priorities

    cdef int64_t promised(self, Pin* pin, int64_t enough) noexcept:
        """How much those on their way take; at least `enough` when it is more."""
        cdef int64_t amount = 0
        cdef InterestWalk walk
        cdef ConsumerNode* node
        interestwalk_init(&walk, &self.interest, pin, LIST_NOTIFIED)
        node = interestwalk_next(&walk)
        while node != NULL and amount < enough:
            amount += (<Seat*> node).amount
            node = interestwalk_next(&walk)
        return amount

    cdef Seat* idle_seat(self, int32_t priority) noexcept:
        """Take an idle seat, of that priority if there is one; or make one: NULL when memory is exhausted."""
        cdef Seat** place = &self.idle
        cdef Seat* seat
        cdef int passed = 0
        while place[0] != NULL:
            seat = place[0]
            passed += 1
            if seat.node.priority == priority or (seat.next == NULL and passed >= SPARE):
                place[0] = seat.next
                return seat
            place = &seat.next
        seat = <Seat*> malloc(sizeof(Seat))
        if seat != NULL:
            node_init(&seat.node, 0, priority, True)
            seat.parking = new Parking()
        return seat

    cdef bint register(self, Seat* seat, int32_t priority) noexcept:
        """See that an idle seat is registered with that priority; False when memory is exhausted.

        Nobody else is inside, since the exclusion is held: so a removed node may be changed at once.
        """
        cdef Pin* pin
        cdef int moved = MOVED
        if seat.node.priority == priority and node_state(&seat.node) != REMOVED:
            return True
        pin = interest_enter(&self.interest)
        interest_remove(&self.interest, pin, &seat.node)
        node_init(&seat.node, 0, priority, True)
        moved = interest_add(&self.interest, pin, &seat.node, False)
        interest_leave(pin)
        return moved == MOVED

    cdef int64_t look_around_ns(self, object deadline) except -2:
        """Nanoseconds until the next look around; 0: the deadline has passed, -1: as long as it takes."""
        cdef int64_t slice_ns = -1
        if threading.current_thread() is threading.main_thread():
            slice_ns = SIGNAL_CHECK_NS
        if deadline is None:
            return slice_ns
        remaining = deadline - self.clock()
        if not remaining > 0:
            return 0
        if self.own_clock:
            return CLOCK_CHECK_NS
        if slice_ns < 0 or remaining * 1e9 < slice_ns:
            slice_ns = <int64_t> max(1, min(remaining * 1e9, 3.6e12))
        return slice_ns
