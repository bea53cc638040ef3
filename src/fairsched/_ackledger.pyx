"""The acknowledgement ledger's Python face."""

cimport cython
from libc.stdint cimport uint64_t

from fairsched.core.ackledger cimport (
    AckLedger as Ledger, ackledger_ack, ackledger_advance, ackledger_clear, ackledger_deliver, ackledger_init,
    ackledger_is_outstanding, ackledger_refuse, ackledger_state, ackledger_unsettled, TAG_DONE,
)

cdef enum:
    ACK = 0
    REQUEUE = 1
    REJECT = 2


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
        with cython.critical_section(self):
            if tag != self.ledger.high:
                raise ValueError(f"delivery tag must be {self.ledger.high}, the one after the last, got {tag!r}")
            if not ackledger_deliver(&self.ledger, size):
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
        with cython.critical_section(self):
            return self.take_frames()

    cdef list take_frames(self):
        cdef Ledger* ledger = &self.ledger
        cdef list frames = []
        cdef uint64_t i, tag, prefix, last = 0
        for i in range(ledger.refused_size):
            frames.append((ledger.refused[i].verdict, ledger.refused[i].tag, False))
        ledger.refused_size = 0
        prefix = ackledger_advance(ledger, &last)
        if prefix:
            frames.append((ACK, last, prefix > 1))
        for i in range(ledger.acked_size):
            tag = ledger.acked[i]
            if tag >= ledger.base:
                frames.append((ACK, tag, False))
                ackledger_state(ledger, tag)[0] = TAG_DONE
        ledger.acked_size = 0
        return frames
