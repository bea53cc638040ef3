"""Threads of one kind that wait for one thing, as consumers of it; see _waitingroom.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from fairsched.core.waiting.interest cimport Interest
from fairsched.core.waiting.node cimport ConsumerNode
from fairsched.core.waiting.parking cimport Parking
from fairsched.core.waiting.reclaim cimport Pin


cdef struct Seat:
    ConsumerNode node   # must be first
    Parking* parking    # where the thread in this seat sleeps; it has a permit for each time it was claimed
    PyObject* callback  # called, if there is one, in place of waking a thread; its owner holds the reference
    Seat* next_idle     # among the seats that nobody sits in
    Seat* next_told     # among those that one waker claimed, and has not told yet
    int64_t amount      # how much its waiter takes
    bint has_permit     # the thread has collected the permit of the claim it is notified by
    bint telling        # a waker is yet to call the callback: the seat is nobody else's until then
    bint left           # its waiter has left it to the waker that is telling


cdef struct Told:  # seats that one waker has claimed, in two chains by next_told
    Seat* threads
    Seat* callbacks
    Seat** last_thread
    Seat** last_callback


cdef class WaitingRoom:
    cdef Interest interest  # every seat is registered; an idle one is not interested
    cdef Seat* idle         # used last comes first
    cdef bint whole         # a waiter takes all of its amount, or nothing
    cdef bint own_clock
    cdef object clock

    cdef object deadline(self, object block, object timeout)
    cdef void tell(self, Told* told) noexcept
    cdef void put_idle(self, Seat* seat) noexcept
    cdef bint outranked(self, int32_t priority) noexcept
    cdef Seat* sit(self, int32_t priority, int64_t amount, PyObject* callback=*) except NULL
    cdef bint wait(self, Seat* seat, object deadline) except -1
    cdef bint collect(self, Seat* seat) noexcept
    cdef bint wait_once(self, object deadline) except -1
    cdef int stay(self, Seat* seat) except -1
    cdef void leave(self, Seat* seat) noexcept
    cdef void wake(self, int64_t available) noexcept
    cdef void wake_all(self) noexcept
    cdef list waiting(self)
    cdef Seat* idle_seat(self, int32_t priority) noexcept
    cdef bint register(self, Seat* seat, int32_t priority) noexcept
    cdef int64_t promised(self, Pin* pin, int64_t enough) noexcept
    cdef int64_t look_around_ns(self, object deadline) except -2
    cdef int64_t let_others_run(self, object deadline) except -2
