"""Who waits for an item of a `FairQueue` without blocking a thread, as an event loop does."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from fairsched._fairqueue cimport FairQueue
from fairsched._fairwaiting cimport hand_over, is_awaiting
from fairsched._numbers cimport as_priority
from fairsched._waitingroom cimport Seat


@cython.final
cdef class Waiter:
    """Who waits for an item of a `FairQueue` with a callback; made by `FairQueue.call_when_ready`.

    Notes
    -----
    Thread safety: any thread. Complexity: O(1). It leaves, too, when it is no longer used.
    """

    def __del__(self):
        self.leave()

    def again(self):
        """again($self)
        --

        Wait on, behind all others of this priority, after a call that found nothing. The callback is called again. If
        `FairQueue.anticipated` is not None, try again after so many seconds without being called, too.

        Raises
        ------
        RuntimeError
            The waiter has left.
        """
        if self.queue is None:
            raise RuntimeError("the waiter has left")
        with cython.critical_section(self.queue):
            if self.seat == NULL:
                raise RuntimeError("the waiter has left")
            self.queue.getters.stay(self.seat)
            if not is_awaiting(self.queue):  # else nobody else could take an item either
                hand_over(self.queue)

    def leave(self):
        """leave($self)
        --

        Wait no longer; whoever is next is woken for what is left. Does nothing the second time.
        """
        cdef Seat* seat
        if self.queue is None:  # not made by call_when_ready
            return
        with cython.critical_section(self.queue):
            seat = self.seat
            self.seat = NULL
            if seat != NULL:
                self.queue.getters.leave(seat)
                hand_over(self.queue)


cdef Waiter waiter_of(FairQueue q, object callback, object priority):
    """Take a seat for a callback."""
    cdef int32_t rank = as_priority(priority)
    cdef Waiter waiter
    if not callable(callback):
        raise ValueError(f"callback must be callable, got {callback!r}")
    waiter = Waiter.__new__(Waiter)
    waiter.queue = q
    waiter.callback = callback
    with cython.critical_section(q):
        waiter.seat = q.getters.sit(rank, 1, <PyObject*> callback)
        if not is_awaiting(q):
            hand_over(q)  # it may be the one that is to have what is queued
    return waiter
