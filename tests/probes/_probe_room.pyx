"""A waiting room for tests: threads that wait for a stock, its seats, and what is left over when all is quiet."""

from libc.stdint cimport int32_t, int64_t

from fairsched.core.waiting.interest cimport interest_enter, interest_leave
from fairsched.core.waiting.reclaim cimport Pin
from fairsched.core.waiting.walk cimport (
    LIST_INTERESTED, LIST_NOT_INTERESTED, LIST_NOTIFIED, interest_count, interest_size, interest_valid,
)
from fairsched.scheduling._waitingroom cimport Seat, WaitingRoom


cdef class ProbeRoom:
    """A stock that threads add to and take from, as a queue's owner does, with the GIL for its exclusion."""

    cdef WaitingRoom room
    cdef int64_t stock

    def __init__(self, clock=None, whole=False):
        self.room = WaitingRoom(clock, whole)

    def add(self, int64_t amount):
        """Add to the stock, and wake the threads that are to have it."""
        self.stock += amount
        self.room.wake(self.stock)

    cdef bint may_take(self, int32_t priority, int64_t amount):
        return self.stock >= (amount if self.room.whole else 1) and not self.room.outranked(priority)

    def take(self, timeout=None, int32_t priority=0, int64_t amount=1):
        """Wait for the stock; how much was taken: 0 when the time was over."""
        cdef object deadline = self.room.deadline(True, timeout)
        cdef int64_t taken
        cdef bint in_time
        cdef Seat* seat
        if self.may_take(priority, amount):
            taken = min(amount, self.stock)
            self.stock -= taken
            return taken
        seat = self.room.sit(priority, amount)
        try:
            in_time = self.room.wait(seat, deadline)
            while in_time and not self.may_take(priority, amount):
                self.room.stay(seat)
                self.room.wake(self.stock)
                in_time = self.room.wait(seat, deadline)
        finally:
            self.room.leave(seat)
            taken = min(amount, self.stock) if self.may_take(priority, amount) else 0
            self.stock -= taken
            self.room.wake(self.stock)
        return taken

    def wake_all(self):
        self.room.wake_all()

    @property
    def left(self):
        return self.stock

    @property
    def lists(self):
        """How many seats are interested, notified, and neither."""
        cdef Pin* pin = interest_enter(&self.room.interest)
        sizes = tuple([
            interest_size(&self.room.interest, pin, which)
            for which in (LIST_INTERESTED, LIST_NOTIFIED, LIST_NOT_INTERESTED)
        ])
        interest_leave(pin)
        return sizes

    @property
    def seats(self):
        """How many seats were made."""
        return interest_count(&self.room.interest)

    @property
    def priorities(self):
        """How many priorities have seats."""
        return self.room.interest.levels.load().count

    @property
    def capacity(self):
        """Entries of lists allocated."""
        return self.room.interest.reclaim.capacity.load()

    @property
    def permits(self):
        """Permits left over, which are taken; for when no thread waits."""
        cdef Seat* seat = self.room.idle
        cdef int64_t permits = 0
        while seat != NULL:
            permits += seat.parking.park(0)
            seat = seat.next_idle
        return permits

    @property
    def valid(self):
        cdef Pin* pin = interest_enter(&self.room.interest)
        cdef bint valid = interest_valid(&self.room.interest, pin)
        interest_leave(pin)
        return valid
