"""AMQP 0-9-1 on the receiving side, from the bytes of a connection to the frames that settle what came.

In this file, in this order:

    take_deliveries                  deliveries out of a connection's bytes, cut apart and undecoded
    read_methods, read_properties    what is in deliveries that were cut apart
    AckLedger                        which frames settle them exactly
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.amqp.ackledger cimport (
    Frame, ackledger_ack, ackledger_clear, ackledger_deliver, ackledger_flush, ackledger_init,
    ackledger_is_outstanding, ackledger_refuse, ackledger_unsettled,
)
from fairsched.core.amqp.contents cimport (
    PROPERTIES, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP, Properties,
    contents_find,
)
from fairsched.core.amqp.frames cimport FOUND_OTHER, FOUND_WHOLE, Delivery, Found, frames_find, frames_number
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE, settlements_encode

cdef enum:
    ACK = 0
    REQUEUE = 1
    REJECT = 2

#: The properties of class basic, in the order of their flags.
PROPERTY_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)


# Deliveries in the bytes of a connection ------------------------------------------------------------------------------


cdef inline bytes part(const uint8_t* start, int64_t begin, int64_t end):
    return PyBytes_FromStringAndSize(<const char*> start + begin, end - begin)


def take_deliveries(
    bytes buffer not None, int64_t start, int channel, int64_t longest, int64_t room, int64_t space,
    list found not None, now,
):
    """take_deliveries(buffer, start, channel, longest, room, space, found, now)
    --

    Cut the deliveries of one channel out of a buffer.

    Parameters
    ----------
    buffer : bytes
        What a connection has received.
    start : int
        Where to begin, 0 to ``len(buffer)``.
    channel : int
        Number of the channel.
    longest : int
        Bytes of the longest body that comes in one frame.
    room, space : int
        Deliveries, and bytes of bodies, that are wanted; the last one may exceed `space`.
    found : list
        Gets a tuple for each: method, content header and body (each bytes, the first two undecoded), and `now`.
    now : object
        When the buffer was received.

    Returns
    -------
    position : int
        Where the deliveries end.
    other : bool
        Whether what follows is, or may be, something else; else it is the beginning of a delivery, or not wanted.
    room, space : int
        What is still wanted.

    Notes
    -----
    Complexity O(deliveries). Thread safety: for one thread at a time with the same list.

    Source: AMQP 0-9-1, sections 4.2.3 and 4.2.6.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(buffer)
    cdef int64_t size = PyBytes_GET_SIZE(buffer), position = start
    cdef Delivery d
    cdef Found what = FOUND_WHOLE
    while room > 0 and space > 0:
        what = frames_find(at, size, position, longest, &d)
        if what != FOUND_OTHER and d.channel != <unsigned int> channel:
            what = FOUND_OTHER
        if what != FOUND_WHOLE:
            break
        found.append(
            (part(at, d.method, d.method_end), part(at, d.header, d.header_end), part(at, d.body, d.body_end), now)
        )
        position = d.end
        room -= 1
        space -= d.body_end - d.body
    return position, what == FOUND_OTHER, room, space


# The fields of methods, and the properties in content headers ---------------------------------------------------------


def read_methods(list deliveries not None):
    """read_methods(deliveries)
    --

    Read the fields of basic.deliver.

    Parameters
    ----------
    deliveries : list of tuple
        As `take_deliveries` makes them: the method comes first.

    Returns
    -------
    tags : list of bytes
        Consumer tags.
    redelivered : list of bool
    paths : list of bytes
        Exchange and routing key, each after an octet with its length.

    Raises
    ------
    ValueError
        A method is cut short, or a delivery has not four parts.
    TypeError
        A method is not bytes.

    Notes
    -----
    Complexity O(deliveries). Thread safety: a pure function.

    Source: AMQP 0-9-1, section 1.8.3.13.
    """
    cdef list tags = [], redelivered = [], paths = []
    cdef bytes method
    cdef const uint8_t* at
    cdef int64_t size, end
    for method, _header, _body, _received in deliveries:
        if method is None:
            raise TypeError("method must be bytes, got None")
        at = <const uint8_t*> PyBytes_AS_STRING(method)
        size = PyBytes_GET_SIZE(method)
        end = 5 + <int64_t> at[4] if size > 4 else size
        if end + 9 > size:
            raise ValueError(f"method must be a basic.deliver, got {size} bytes that end before its flags")
        tags.append(method[5:end])
        redelivered.append(at[end + 8] & 1 != 0)
        paths.append(method[end + 9:])
    return tags, redelivered, paths


cdef inline object read_text(const char* text, int64_t length, bint lossless):
    if not lossless:
        return PyUnicode_DecodeUTF8(text, length, "replace")
    try:
        return PyUnicode_DecodeUTF8(text, length, NULL)
    except UnicodeDecodeError:
        return PyBytes_FromStringAndSize(text, length)


cdef inline object read_one(
    bytes header, const uint8_t* at, int number, const Properties* found, table, bint lossless
):
    """The value of a property that is there."""
    cdef int64_t begin = found.begin[number]
    if number == PROPERTY_HEADERS:
        return table(header, begin)[0]
    if number == PROPERTY_TIMESTAMP:
        return frames_number(at + begin, 8)
    if number == PROPERTY_DELIVERY_MODE or number == PROPERTY_PRIORITY:
        return at[begin]
    return read_text(<const char*> at + begin, found.end[number] - begin, lossless)


def read_properties(bytes header not None, tuple wanted not None, table, bint lossless=False):
    """read_properties(header, wanted, table, lossless=False)
    --

    Read properties of a content header.

    Parameters
    ----------
    header : bytes
        Payload of the frame.
    wanted : tuple of int
        Which, as indices of `PROPERTY_NAMES`.
    table : callable
        Called with `header` and where in it a table begins, with its length; returns a tuple that begins with the
        table.
    lossless : bool
        Whether a text that is no UTF-8 is bytes, as in pika; otherwise, what is none in it is replaced.

    Returns
    -------
    dict of str to object
        Those of the wanted that are there, by name: str, int, and the table.

    Raises
    ------
    ValueError
        It is no content header, or is cut short; or there is no such property.

    Notes
    -----
    Complexity O(len(wanted)). Thread safety: a pure function.

    Source: AMQP 0-9-1, section 4.2.6.1.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(header)
    cdef Properties found
    cdef int number
    cdef dict values = {}
    if not contents_find(at, PyBytes_GET_SIZE(header), &found):
        raise ValueError(f"header must be a content header of class basic, got {header[:64]!r}")
    for number in wanted:
        if number < 0 or number >= PROPERTIES:
            raise ValueError(f"wanted must have numbers from 0 to {PROPERTIES - 1}, got {number}")
        if found.begin[number] >= 0:
            values[PROPERTY_NAMES[number]] = read_one(header, at, number, &found, table, lossless)
    return values


# Acknowledgements -----------------------------------------------------------------------------------------------------


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
        cdef Frame* frames = take_frames(self, &size)
        try:  # making the list may run finalizers, which settle and flush: nothing is pending here any more
            return [(frames[i].verdict, frames[i].tag, frames[i].multiple != 0) for i in range(size)]
        finally:
            free(frames)

    def frames(self, unsigned int channel):
        """frames($self, channel)
        --

        Take what must be sent, as the frames that say so.

        Parameters
        ----------
        channel : int
            Number of the channel.

        Returns
        -------
        bytes
            Frames of 21 octets, basic.ack and basic.nack: what is refused comes behind the acknowledgements, unless one
            of these would cover it. The broker's part for a quorum queue puts aside what comes after a few dozen
            settlements at once, and forgets it if the channel is closed right then: what was given back returns to its
            queue even so; what was handled must not.
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
    """Take what must be sent; to be freed."""
    cdef Frame* frames
    with cython.critical_section(ledger):
        frames = <Frame*> malloc((ledger.ledger.refused_size + ledger.ledger.acked_size + 1) * sizeof(Frame))
        if frames != NULL:
            size[0] = ackledger_flush(&ledger.ledger, frames)
    if frames == NULL:
        raise MemoryError()
    return frames
