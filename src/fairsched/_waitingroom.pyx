"""Threads of one kind that wait for one thing, and the deadline they wait until.

Every method is called with the owner's exclusion held: the GIL, or on free-threaded builds the owner's critical
section. It is given up while a thread is parked and around a wake-up. The protocol, and why no wake-up is lost or left
over, stands in core/parking.pxd.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

import threading
import time

cdef enum:
    # The main thread looks for signals this often while it waits: only it can run their handlers.
    SIGNAL_CHECK_NS = 50_000_000
    # A clock of the caller's own is looked at this often while a thread waits by it.
    CLOCK_CHECK_NS = 1_000_000


cdef class WaitingRoom:
    """Where threads wait; `clock` returns seconds, None: time.monotonic."""

    def __cinit__(self, clock):
        self.parking = new Parking()
        self.clock = time.monotonic if clock is None else clock
        self.own_clock = clock is not None

    def __dealloc__(self):
        del self.parking

    cdef object deadline(self, object block, object timeout):
        """When a wait ends, by the clock; None: never."""
        if not block or timeout is None:
            return None
        if not timeout >= 0:  # NaN too
            raise ValueError(f"timeout must be a number of seconds, 0 or more, got {timeout!r}")
        return self.clock() + timeout

    cdef bint wait(self, object deadline) except? -1:
        """Wait for a wake-up; False when the deadline passed without one."""
        cdef int64_t slice_ns
        cdef bint woken = False
        self.waiting += 1
        try:
            while not woken:
                slice_ns = self.look_around_ns(deadline)
                if slice_ns == 0:
                    break
                with nogil:
                    woken = self.parking.park(slice_ns)
                if not woken:
                    PyErr_CheckSignals()
        except BaseException:
            if self.withdraw():
                self.wake(1)  # the wake-up was for something that another must see to
            raise
        return woken or self.withdraw()

    cdef bint withdraw(self) noexcept:
        """Stop waiting; True when a wake-up was under way, which is taken."""
        if self.waiting > 0:
            self.waiting -= 1
            return False
        with nogil:
            self.parking.park(-1)
        return True

    cdef void wake(self, int64_t wanted) noexcept:
        """Wake up to `wanted` threads. The GIL is given up meanwhile, so that they can have it at once."""
        cdef int64_t count = min(wanted, self.waiting)
        if count:
            self.waiting -= count
            with nogil:
                self.parking.unpark(count)

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
