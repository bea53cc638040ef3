"""A room in which threads wait for one kind of work, and its seats; see _waitingroom.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from fairsched.core.waiting.interest cimport Interest
from fairsched.core.waiting.node cimport ConsumerNode
from fairsched.core.waiting.parking cimport Parking
from fairsched.core.waiting.reclaim cimport Pin


cdef struct Seat:
    ConsumerNode node   # must be first
    Parking* parking    # a semaphore for the thread in this seat, with one permit for each claim
    PyObject* callback  # called, if not NULL, instead of waking a thread; its owner holds the reference
    Seat* next_idle     # in the list of unused seats
    Seat* next_told     # in the chain of seats that one waker has claimed and not told yet
    int64_t amount      # units of work that its waiter takes
    bint has_permit     # the thread has collected the permit of the claim it is notified by
    bint telling        # a waker is about to call the callback: until then the seat is not reused
    bint left           # its waiter has left: the waker that is telling puts the seat among the idle


cdef struct Told:  # seats that one waker has claimed, in two chains by next_told
    Seat* threads
    Seat* callbacks
    Seat** last_thread
    Seat** last_callback


cdef class WaitingRoom:
    cdef Interest interest  # every seat is registered; an idle seat is not interested
    cdef Seat* idle         # the seat used last comes first
    cdef bint whole         # a waiter takes all of its amount, or nothing
    cdef bint own_clock
    cdef object clock

    cdef object deadline(self, object block, object timeout)
    cdef void tell(self, Told* told) noexcept
    cdef void call(self, object callback) noexcept
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
    cdef int64_t next_check_ns(self, object deadline) except -2
    cdef int64_t let_others_run(self, object deadline) except -2
