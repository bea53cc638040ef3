"""The ledger of a channel: which deliveries are settled, and the frames that settle exactly these."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.amqp.ackledger cimport (
    VERDICT_ACK, VERDICT_FAIL, VERDICT_REJECT, VERDICT_REQUEUE, Frame, ackledger_clear, ackledger_deliver,
    ackledger_flush, ackledger_init, ackledger_leave, ackledger_settle, ackledger_unsettled,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE, settlements_encode


cdef uint64_t as_tag(object tag) except? 0:
    """Convert a delivery tag; 0, which is never a tag, for other values."""
    try:
        return tag
    except (TypeError, OverflowError):
        return 0


@cython.final
cdef class AckLedger:
    """AckLedger()
    --

    Record the deliveries of one channel, and return the frames that settle exactly those that were settled.

    Notes
    -----
    Thread safety: every method may be called from any thread; each is atomic.
    Complexity: O(1) per delivery tag, amortised; one byte per tag in the window.

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

    ACK = VERDICT_ACK
    REQUEUE = VERDICT_REQUEUE
    REJECT = VERDICT_REJECT
    FAIL = VERDICT_FAIL
    FRAME_SIZE = SETTLEMENT_SIZE

    def __cinit__(self):
        ackledger_init(&self.ledger)

    def __dealloc__(self):
        ackledger_clear(&self.ledger)

    @property
    def outstanding(self):
        """Number of messages delivered and not settled."""
        return self.ledger.outstanding

    @property
    def pending(self):
        """Number of settlements not yet flushed."""
        return self.ledger.acked_size + self.ledger.refused_size

    @property
    def size(self):
        """Total body size of the messages delivered and not settled, in bytes."""
        return self.ledger.size

    @property
    def delivered(self):
        """Number of messages delivered so far: the newest delivery tag."""
        return self.ledger.high - 1

    def unsettled(self, uint64_t last):
        """unsettled($self, last)
        --

        Count the deliveries up to the tag `last` whose settlement has not been flushed. O(window).
        """
        with cython.critical_section(self):
            return ackledger_unsettled(&self.ledger, last)

    def deliver(self, tag, uint64_t size=0):
        """deliver($self, tag, size=0)
        --

        Record a delivery.

        Parameters
        ----------
        tag : int
            The delivery tag, one more than the last.
        size : int
            Size of the body in bytes.

        Raises
        ------
        ValueError
            If the tag does not follow the last one.
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
            The delivery tag.
        verdict : int
            `ACK` (processed), `REQUEUE` (back to the queue), `REJECT` (dropped or dead-lettered) or `FAIL` (back to
            the queue, as a failure, which a quorum queue counts).

        Returns
        -------
        bool
            False if the tag is not outstanding: never delivered, or already settled.

        Raises
        ------
        ValueError
            If the verdict is none of the four.
        """
        cdef int done
        if verdict not in (VERDICT_ACK, VERDICT_REQUEUE, VERDICT_REJECT, VERDICT_FAIL):
            raise ValueError(f"verdict must be AckLedger.ACK, REQUEUE, REJECT or FAIL, got {verdict}")
        with cython.critical_section(self):
            done = ackledger_settle(&self.ledger, tag, verdict)
        if done < 0:
            raise MemoryError()
        return done == 1

    def leave(self, uint64_t tag):
        """leave($self, tag)
        --

        Leave one delivery to the broker, which takes it back when the channel is closed: no frame will settle it.

        Parameters
        ----------
        tag : int
            The delivery tag.

        Returns
        -------
        bool
            False if the tag is not outstanding.
        """
        with cython.critical_section(self):
            return ackledger_leave(&self.ledger, tag)

    def flush(self):
        """flush($self)
        --

        Remove the pending settlements and return them in the order in which they must be sent.

        Returns
        -------
        list of (int, int, bool)
            (verdict, delivery tag, multiple): each refusal, then one ack for the contiguous settled prefix (multiple if
            it covers more than its own tag), then each remaining ack.
        """
        cdef uint64_t i, size = 0
        cdef Frame* frames = take_frames(self, &size)
        try:  # making the list may run finalizers, which settle and flush: nothing is pending here any more
            return [(frames[i].verdict, frames[i].tag, frames[i].multiple != 0) for i in range(size)]
        finally:
            free(frames)

    def frames(self, unsigned int channel):
        """frames($self, channel)
        --

        Remove the pending settlements and return them as frames.

        Parameters
        ----------
        channel : int
            The channel number.

        Returns
        -------
        bytes
            Frames of `FRAME_SIZE` octets: basic.ack, basic.nack and basic.reject. A refusal comes after the acks,
            unless an ack would cover it: for a quorum queue, the broker defers settlements beyond a few dozen at once,
            and loses them if the channel is closed at that moment. A lost refusal does no harm, since the message
            returns to its queue anyway; a lost ack would have the message handled twice.
        """
        cdef uint64_t size = 0
        cdef Frame* frames = take_frames(self, &size)
        try:
            found = PyBytes_FromStringAndSize(NULL, size * SETTLEMENT_SIZE)
            settlements_encode(<uint8_t*> PyBytes_AS_STRING(found), channel, frames, size)
            return found
        finally:
            free(frames)


cdef Frame* take_frames(AckLedger ledger, uint64_t* size) except NULL:
    """Remove the pending settlements and return them; the caller frees the memory."""
    cdef Frame* frames
    with cython.critical_section(ledger):
        frames = <Frame*> malloc((ledger.ledger.refused_size + ledger.ledger.acked_size + 1) * sizeof(Frame))
        if frames != NULL:
            size[0] = ackledger_flush(&ledger.ledger, frames)
    if frames == NULL:
        raise MemoryError()
    return frames
