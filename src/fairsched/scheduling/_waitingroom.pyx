"""A room in which threads wait for one kind of work, in the lists of core/waiting/interest.pxd.

A waiting thread has a seat: a node, and a semaphore to sleep on. A waiter that must not sleep, such as an event loop,
has a seat with a callback. Waiters wait for work, in some unit: items for getters, room for putters.
core/waiting/wakeup.pxd decides which waiter to wake; this module does what that header requires of its callers:

    waiter   deadline -> sit (interested) -> wait -> checks -> takes -> leave -> the owner wakes for what is left
                                              ^        `-> stay (interested again; the owner wakes for what is left)
    waker    makes the work visible -> wake: claims waiters until the claimed ones take all of it -> unparks them

Every method is called with the owner's exclusion held: the GIL, or on free-threaded builds the owner's critical
section. It is given up while a thread is parked, around unparking, and in callbacks. Within it, a check and a move are
one step, so a claimed waiter stays notified until it takes or leaves.
    A claimed waiter has, or will get, a permit. `leave` and `stay` therefore first collect it if the seat is notified
(`collect`, which gives the exclusion up). That holds for every reason to leave: between the end of a wait and `leave`,
an exception may be made, the collector may run, and a finalizer may put an item and claim the seat. So permits never
outlive their claims.
    A waiter's findings from before `leave` or `stay` may be outdated afterwards, unless it has the permit or is
interested.
    A seat in a waker's chain stays in the room: its thread cannot leave before it has the permit. A waiter with a
callback can leave; then the waker (`telling`, `left`) puts the seat among the idle ones before it calls.
    Where gevent or eventlet has replaced threads by greenlets, none of them sleeps on a semaphore: `let_others_run`
sleeps as they do, for a millisecond at a time. No other greenlet runs between its end and the check of the semaphore.
    Each list of seats has a link of its own. Seats are freed with the room only, since a waker may still be inside
unpark when the woken thread has left.

Complexity: O(1), where the priorities are few (core/waiting/interest.pxd); wake O(waiters on their way + woken).
Memory: a seat for each of the most threads that ever waited at once, and SPARE: steady waiting allocates nothing.
"""

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetInterrupt
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched.core.waiting.interest cimport (
    MOVED, NO_MEMORY, interest_clear, interest_done, interest_enter, interest_first, interest_init, interest_leave,
    interest_notify, interest_set,
)
from fairsched.core.waiting.membership cimport interest_add, interest_remove
from fairsched.core.waiting.node cimport ConsumerNode, NOTIFIED, REMOVED, node_init, node_state
from fairsched.core.waiting.parking cimport Parking
from fairsched.core.waiting.reclaim cimport Pin
from fairsched.core.waiting.wakeup cimport Wants, wakeup_higher, wakeup_one, wakeup_outranked, wakeup_possible
from fairsched.core.waiting.walk cimport (
    LIST_INTERESTED, LIST_NOTIFIED, InterestWalk, interestwalk_init, interestwalk_next,
)
from fairsched.scheduling._numbers cimport as_timeout

import sys
import threading
import time

from fairsched.scheduling.greenlets import patched_by

# Calling `patched_by` in each wait would take a twentieth of its time; a check of these modules comes first.
cdef dict modules = sys.modules

cdef extern from "Python.h":
    PyObject* PyObject_CallNoArgs(PyObject* function) noexcept
    bint PyErr_ExceptionMatches(PyObject* kind) noexcept
    void PyErr_Clear() noexcept
    void PyErr_WriteUnraisable(PyObject* function) noexcept

cdef enum:
    # Interval at which the main thread checks for signals while it waits: only it can run their handlers.
    SIGNAL_CHECK_NS = 50_000_000
    # Interval at which a waiting thread reads a clock of the caller's own, and a waiting greenlet checks its seat.
    CLOCK_CHECK_NS = 1_000_000
    # Idle seats that are kept before one of them is given to a waiter of another priority.
    SPARE = 16
    # Dead entries that a list keeps: few, since a room has few waiters, and the same ones come again and again.
    THRESHOLD = 16


cdef bint fits(void* context, ConsumerNode* node) noexcept nogil:
    """True when what is left is enough for the thread in this seat."""
    return (<Seat*> node).amount <= (<int64_t*> context)[0]


cdef void told_init(Told* told) noexcept:
    told.threads = told.callbacks = NULL
    told.last_thread = &told.threads
    told.last_callback = &told.callbacks


cdef void told_append(Told* told, Seat* seat) noexcept:
    """Append a claimed seat to its chain."""
    if seat.callback == NULL:
        seat.next_told = NULL
        told.last_thread[0] = seat
        told.last_thread = &seat.next_told
    elif not seat.telling:  # otherwise it is in the chain of another waker, which has not called it yet
        seat.telling = True
        Py_INCREF(<object> seat.callback)
        seat.next_told = NULL
        told.last_callback[0] = seat
        told.last_callback = &seat.next_told


cdef bint call_back(object callback) noexcept:
    """Call a callback; True if it was interrupted. Its other exceptions, not the caller's, go to sys.unraisablehook.

    Cython would print an exception left in a function that cannot raise, and printing SystemExit ends the process.
    """
    cdef PyObject* result = PyObject_CallNoArgs(<PyObject*> callback)
    if result != NULL:
        Py_DECREF(<object> result)
    elif PyErr_ExceptionMatches(<PyObject*> KeyboardInterrupt):
        PyErr_Clear()
        return True
    else:
        PyErr_WriteUnraisable(<PyObject*> callback)
    return False


cdef class WaitingRoom:
    """A room where threads wait; `clock` returns seconds, None: time.monotonic."""

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
            self.idle = seat.next_idle
            del seat.parking
            free(seat)

    cdef object deadline(self, object block, object timeout):
        """Return the time at which a wait ends, a float, so that freeing it runs no Python code; None: never."""
        cdef double seconds
        if not block or timeout is None:
            return None
        seconds = as_timeout(timeout, "timeout")
        return <double> self.clock() + seconds

    cdef void tell(self, Told* told) noexcept:
        """Wake the threads with the GIL released, so that they can have it at once. Then run the callbacks."""
        cdef Seat* seat = told.threads
        cdef Seat* following
        cdef bint interrupted = False
        if seat != NULL:
            with nogil:
                while seat != NULL:
                    following = seat.next_told  # before the permit: with it, the seat is its thread's again
                    seat.parking.unpark(1)
                    seat = following
        while told.callbacks != NULL:
            seat = told.callbacks
            told.callbacks = seat.next_told
            callback = <object> seat.callback
            Py_DECREF(callback)  # the seat's reference; `callback` holds one of its own
            seat.telling = False
            if seat.left:
                self.put_idle(seat)
            interrupted |= call_back(callback)
        if interrupted:  # Ctrl-C while one of them ran: passed on to the main thread, now that all were called
            PyErr_SetInterrupt()

    cdef void call(self, object callback) noexcept:
        """Call a function of the owner's, which has nothing to do with seats. Runs Python code."""
        if call_back(callback):
            PyErr_SetInterrupt()

    cdef void put_idle(self, Seat* seat) noexcept:
        seat.next_idle = self.idle
        self.idle = seat

    cdef bint outranked(self, int32_t priority) noexcept:
        """True when the work is for a waiter of a higher priority."""
        cdef bint outranked = False
        cdef Pin* pin
        if wakeup_higher(&self.interest, priority):
            pin = interest_enter(&self.interest)
            outranked = wakeup_outranked(&self.interest, pin, priority, NULL, NULL)
            interest_leave(pin)
        return outranked

    cdef Seat* sit(self, int32_t priority, int64_t amount, PyObject* callback=NULL) except NULL:
        """Seat a thread or callback that takes up to (in a `whole` room: all of) `amount`. Runs no Python code."""
        cdef Seat* seat = self.idle_seat(priority)
        cdef bint seated
        cdef Pin* pin
        if seat == NULL:
            raise MemoryError()
        seated = self.register(seat, priority)
        if seated:
            seat.amount = amount
            seat.callback = callback
            seat.has_permit = seat.telling = seat.left = False
            pin = interest_enter(&self.interest)
            seated = interest_set(&self.interest, pin, &seat.node, True) == MOVED
            interest_leave(pin)
        if not seated:
            self.put_idle(seat)
            raise MemoryError()
        return seat

    cdef bint wait(self, Seat* seat, object deadline) except -1:
        """Wait to be claimed: True, and the seat is notified; False when the deadline passed, and it is interested.

        Handlers of signals run after every sleep, so that an interrupt is raised before the caller takes anything:
        items that a call took before it raises would be lost.
        """
        cdef int64_t slice_ns = self.next_check_ns(deadline)
        cdef bint woken
        while slice_ns != 0:
            with nogil:
                woken = seat.parking.park(slice_ns)
            if woken:
                seat.has_permit = True
                PyErr_CheckSignals()
                return True
            PyErr_CheckSignals()
            slice_ns = self.next_check_ns(deadline)
        if self.collect(seat):
            PyErr_CheckSignals()
            return True
        return False

    cdef bint collect(self, Seat* seat) noexcept:
        """Whether the seat is notified; if it is, wait for the permit, which gives the exclusion up."""
        if node_state(&seat.node) != NOTIFIED:
            return False
        if not seat.has_permit and seat.callback == NULL:
            with nogil:
                seat.parking.park(-1)
            seat.has_permit = True
        return True

    cdef bint wait_once(self, object deadline) except -1:
        """Sit down, wait and leave: False when the deadline passed before this thread was woken."""
        cdef Seat* seat = self.sit(0, 1)
        cdef bint finished = False
        try:
            woken = self.wait(seat, deadline)
            finished = True
        finally:
            self.leave(seat)
            if not finished:  # another thread has to take the work that this one may have been woken for
                self.wake(1)
        return woken

    cdef int stay(self, Seat* seat) except -1:
        """Go on waiting after a wake-up without work for this waiter. The owner then wakes others for that work."""
        cdef Pin* pin
        cdef int moved
        self.collect(seat)
        seat.has_permit = False
        pin = interest_enter(&self.interest)
        moved = interest_done(&self.interest, pin, &seat.node)
        interest_leave(pin)
        if moved == NO_MEMORY:
            raise MemoryError()
        return 0

    cdef void leave(self, Seat* seat) noexcept:
        """Stop waiting. The owner then takes the waiter's work, and wakes others for the rest."""
        cdef Pin* pin
        self.collect(seat)
        pin = interest_enter(&self.interest)
        if interest_set(&self.interest, pin, &seat.node, False) == NO_MEMORY:
            interest_remove(&self.interest, pin, &seat.node)  # takes no memory
        interest_leave(pin)
        if seat.telling:
            seat.left = True
        else:
            self.put_idle(seat)

    cdef void wake(self, int64_t available) noexcept:
        """Wake waiters for the part of the available work that those already notified do not take."""
        cdef int64_t left = available
        cdef Seat* seat
        cdef Wants wants = NULL
        cdef Pin* pin
        cdef Told told
        if self.whole:
            wants = fits
        if left <= 0 or not wakeup_possible(&self.interest):
            return
        told_init(&told)
        pin = interest_enter(&self.interest)
        left -= self.promised(pin, left)
        while left > 0:
            seat = <Seat*> wakeup_one(&self.interest, pin, wants, &left)
            if seat == NULL:
                break
            left -= seat.amount
            told_append(&told, seat)
        interest_leave(pin)
        self.tell(&told)

    cdef void wake_all(self) noexcept:
        """Wake all waiters, whether or not there is work."""
        cdef Pin* pin = interest_enter(&self.interest)
        cdef ConsumerNode* node = interest_first(&self.interest, pin)
        cdef Told told
        told_init(&told)
        while node != NULL and interest_notify(&self.interest, pin, node) == MOVED:
            told_append(&told, <Seat*> node)
            node = interest_first(&self.interest, pin)
        interest_leave(pin)
        self.tell(&told)

    cdef list waiting(self):
        """Return the priorities of the waiters not woken yet, in the order in which they would be woken."""
        cdef uint32_t seats = self.interest.count.load(), count = 0, i
        cdef int32_t* priorities = <int32_t*> malloc(seats * sizeof(int32_t))
        cdef InterestWalk walk
        cdef ConsumerNode* node
        cdef Pin* pin
        if priorities == NULL and seats:
            raise MemoryError()
        pin = interest_enter(&self.interest)
        interestwalk_init(&walk, &self.interest, pin, LIST_INTERESTED)
        node = interestwalk_next(&walk)
        while node != NULL:
            priorities[count] = node.priority
            count += 1
            node = interestwalk_next(&walk)
        interest_leave(pin)
        try:  # the list is made only now, since that may run Python code
            return [priorities[i] for i in range(count)]
        finally:
            free(priorities)

    cdef int64_t promised(self, Pin* pin, int64_t enough) noexcept:
        """Return the amount that notified waiters take, counted up to the first value of `enough` or more."""
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
        """Take an idle seat, of that priority if there is one, or make a seat; NULL when memory is exhausted."""
        cdef Seat** place = &self.idle
        cdef Seat* seat
        cdef int passed = 0
        while place[0] != NULL:
            seat = place[0]
            passed += 1
            if seat.node.priority == priority or (seat.next_idle == NULL and passed >= SPARE):
                place[0] = seat.next_idle
                return seat
            place = &seat.next_idle
        seat = <Seat*> malloc(sizeof(Seat))
        if seat != NULL:
            node_init(&seat.node, 0, priority, True)
            seat.parking = new Parking()
        return seat

    cdef bint register(self, Seat* seat, int32_t priority) noexcept:
        """Register an idle seat with that priority, if it is not; False when memory is exhausted.

        The exclusion is held, so no other thread is inside, and a removed node may be changed at once.
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

    cdef int64_t next_check_ns(self, object deadline) except -2:
        """Return nanoseconds until the next check; 0: the deadline has passed, -1: no limit.

        Where threads are greenlets, which cannot wake one that sleeps on a semaphore, the others run in here.
        """
        cdef int64_t slice_ns = -1
        if ("gevent.monkey" in modules or "eventlet.patcher" in modules) and patched_by() is not None:
            return self.let_others_run(deadline)
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

    cdef int64_t let_others_run(self, object deadline) except -2:
        """Sleep as a greenlet does; return 1 for a single check of the semaphore, or 0: the deadline has passed."""
        cdef double seconds = CLOCK_CHECK_NS * 1e-9
        if deadline is not None:
            remaining = deadline - self.clock()
            if not remaining > 0:
                return 0
            if not self.own_clock:
                seconds = min(seconds, <double> remaining)
        time.sleep(seconds)
        return 1
