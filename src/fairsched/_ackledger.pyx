"""The acknowledgement ledger's Python face."""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.ackledger cimport (
    AckLedger as Ledger, Frame, ackledger_ack, ackledger_clear, ackledger_deliver, ackledger_flush, ackledger_init,
    ackledger_is_outstanding, ackledger_refuse, ackledger_unsettled,
)

cdef enum:
    ACK = 0
    REQUEUE = 1
    REJECT = 2

cdef uint64_t as_tag(object tag) except? 0:
    """Convert a delivery tag; 0, which none has, for what cannot be one."""
    try:
        return tag
    except (TypeError, OverflowError):
        return 0


@cython.final
cdef class AckLedger:
    """AckLedger()
    --

    Book the deliveries of one channel and say exactly which frames settle them.

    Notes
    -----
    Thread safety: every method may be called from any thread; each is atomic.
    Complexity: O(1) a delivery tag, amortised; one byte a tag in the window.

    Examples
    --------
    >>> ledger = AckLedger()
    >>> for tag in (1, 2, 3, 4):
    ...     ledger.deliver(tag)
    >>> [ledger.settle(tag, AckLedger.ACK) for tag in (2, 1, 4)]
    [True, True, True]
    >>> ledger.flush()
    [(0, 2, True), (0, 4, False)]
    """

    cdef Ledger ledger

    ACK = 0
    REQUEUE = 1
    REJECT = 2

    def __cinit__(self):
        ackledger_init(&self.ledger)

    def __dealloc__(self):
        ackledger_clear(&self.ledger)

    @property
    def outstanding(self):
        """Messages delivered and not settled."""
        return self.ledger.outstanding

    @property
    def pending(self):
        """Settlements not flushed."""
        return self.ledger.acked_size + self.ledger.refused_size

    @property
    def size(self):
        """Bytes of the bodies of the messages delivered and not settled."""
        return self.ledger.size

    @property
    def delivered(self):
        """Messages delivered so far: the newest delivery tag."""
        return self.ledger.high - 1

    def unsettled(self, uint64_t last):
        """unsettled($self, last)
        --

        Count the deliveries up to the tag `last` whose settlement was not flushed. O(window).
        """
        with cython.critical_section(self):
            return ackledger_unsettled(&self.ledger, last)

    def deliver(self, tag, uint64_t size=0):
        """deliver($self, tag, size=0)
        --

        Book a delivery.

        Parameters
        ----------
        tag : int
            The delivery tag: the one after the last.
        size : int
            Bytes of its body.

        Raises
        ------
        ValueError
            The tag does not follow the last.
        """
        cdef uint64_t number = as_tag(tag), due
        cdef bint booked = True
        with cython.critical_section(self):
            due = self.ledger.high
            if number == due:
                booked = ackledger_deliver(&self.ledger, size)
        if number != due:
            raise ValueError(f"delivery tag must be {due}, the one after the last, got {tag!r}")
        if not booked:
            raise MemoryError()

    def settle(self, uint64_t tag, int verdict):
        """settle($self, tag, verdict)
        --

        Settle one delivery.

        Parameters
        ----------
        tag : int
            Its delivery tag.
        verdict : int
            `ACK` (processed), `REQUEUE` (back to the queue) or `REJECT` (dropped, or dead-lettered).

        Returns
        -------
        bool
            False when the tag is not outstanding: never delivered here, or settled already.

        Raises
        ------
        ValueError
            The verdict is none of the three.
        """
        if verdict not in (ACK, REQUEUE, REJECT):
            raise ValueError(f"verdict must be AckLedger.ACK, REQUEUE or REJECT, got {verdict}")
        with cython.critical_section(self):
            if not ackledger_is_outstanding(&self.ledger, tag):
                return False
            if verdict == ACK:
                done = ackledger_ack(&self.ledger, tag)
            else:
                done = ackledger_refuse(&self.ledger, tag, verdict)
            if not done:
                raise MemoryError()
            return True

    def flush(self):
        """flush($self)
        --

        Take what must be sent, in the order in which it must be sent.

        Returns
        -------
        list of (int, int, bool)
            (verdict, delivery tag, multiple): refusals singly, then one acknowledgement for the contiguous settled
            prefix (multiple where it covers more than its own tag), then stragglers singly.
        """
        cdef uint64_t i, size = 0
        cdef Frame* frames
        with cython.critical_section(self):
            frames = <Frame*> malloc((self.ledger.refused_size + self.ledger.acked_size + 1) * sizeof(Frame))
            if frames != NULL:
                size = ackledger_flush(&self.ledger, frames)
        if frames == NULL:
            raise MemoryError()
        try:  # making the list may run finalizers, which settle and flush: nothing is pending here any more
            return [(frames[i].verdict, frames[i].tag, frames[i].multiple != 0) for i in range(size)]
        finally:
            free(frames)
