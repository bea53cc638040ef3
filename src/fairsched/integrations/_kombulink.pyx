"""The compiled part of a connection of kombu's: its deliveries, its settlements, and the messages it publishes.

In this file, in this order:

    Delivery      one message as it came: its properties and its body are decoded when they are asked for
    Settlements   what a channel has delivered, and what of it was settled and not sent
    Link          the bytes of a connection, in both directions

All that is not in this file is py-amqp's: the link gives it every frame that is no delivery, and writes its frames.

A settlement waits for others, so that many share a frame and a write. It leaves with the next frame of the connection,
before a thread waits for the socket, when a quarter of the channel's window waits, and otherwise by the timer of
`kombu_timer.py`.

Threads. The GIL, or on free-threaded builds a critical section of the object, protects the octets read and the ledgers;
Python code runs between two such stretches, never within one. The lock of the link, taken before, protects what is
written: a thread may wait there for the socket. While a thread writes, a destructor or a signal handler may have it
write again: that is put aside until the first write is complete.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.time cimport monotonic
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from fairsched.core.amqp.ackledger cimport (
    TAG_DONE, VERDICT_ACK, AckLedger as Ledger, Frame, ackledger_clear, ackledger_deliver, ackledger_flush,
    ackledger_init, ackledger_is_outstanding, ackledger_let_go, ackledger_settle,
)
from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, PROPERTY_CONTENT_ENCODING, PROPERTY_HEADERS, Content, Properties, contents_find, contents_text,
)
from fairsched.core.amqp.constants cimport FRAME_METHOD
from fairsched.core.amqp.frames cimport (
    FOUND_WHOLE, FRAME_PART, FRAME_UNENDED, FRAME_WHOLE, Delivery as Span, FrameFound, FrameSpan, frames_find,
    frames_number, frames_span,
)
from fairsched.core.amqp.octets cimport (
    SHORT_MAX, Bytes, Text, bytes_add, bytes_append, bytes_clear, bytes_init, bytes_room, bytes_size, bytes_take,
    text_is,
)
from fairsched.core.amqp.publish cimport (
    Confirm, Window, confirm_find, publish_encode, publish_size, window_add, window_at, window_clear, window_confirmed,
    window_init, window_settle,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE, settlements_encode
from fairsched.core.amqp.sockets cimport RECEIVED_NOTHING, SOCKETS_LEND, sockets_receive, sockets_send, sockets_wait
from fairsched.core.amqp.tables cimport FIELD_MISSING, Field, tables_find
from fairsched.integrations._amqpfields cimport properties_read, properties_write

cdef extern from *:
    """
    #ifdef _WIN32
    #include <process.h>
    static inline long fairsched_pid() { return _getpid(); }
    #else
    #include <unistd.h>
    static inline long fairsched_pid() { return getpid(); }
    #endif
    """
    long current_pid "fairsched_pid"() noexcept nogil

cdef enum:
    RECEIVE_AT_ONCE = 1 << 16   # octets asked of the socket
    KEPT_ROOM = 1 << 20         # a larger buffer for writing is freed when it is empty
    WRITE_AT_ONCE = 1 << 16     # octets of messages that are written together
    MOST_WAITING = 512          # settlements that wait in a channel without a window
    WINDOW_PART = 4             # they leave when they are this part of the window


# One message ----------------------------------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
cdef class Delivery:
    """One message as it came.

    Notes
    -----
    Methods decode anew with each call. Thread safety: every method may be called from any thread.
    """

    cdef Settlements settlements
    cdef readonly uint64_t tag
    cdef readonly bint redelivered
    cdef readonly bint no_ack
    cdef readonly str consumer_tag
    cdef bytes names      # exchange and routing key, as in the method
    cdef bytes header
    cdef bytes octets     # of the body

    def properties(self):
        """Return the properties by py-amqp's names."""
        if self.header is None:
            return {}
        return properties_read(<const uint8_t*> PyBytes_AS_STRING(self.header), PyBytes_GET_SIZE(self.header))

    def delivery_info(self):
        """Return what the method of the delivery says, by py-amqp's names."""
        cdef const uint8_t* at
        if self.names is None:
            return {}
        at = <const uint8_t*> PyBytes_AS_STRING(self.names)
        return {
            "consumer_tag": self.consumer_tag,
            "delivery_tag": self.tag,
            "redelivered": self.redelivered,
            "exchange": short_text(at),
            "routing_key": short_text(at + 1 + at[0]),
        }

    def body(self):
        """Return the body: text if the content encoding is one, otherwise bytes."""
        cdef Properties found
        cdef Text encoding
        if self.header is None or self.octets is None or self.settlements is None:
            return ""
        if PyBytes_GET_SIZE(self.octets) == 0:
            return ""  # py-amqp's message has it so from its constructor
        if not self.settlements.channel.auto_decode or not contents_find(
            <const uint8_t*> PyBytes_AS_STRING(self.header), PyBytes_GET_SIZE(self.header), &found
        ) or found.begin[PROPERTY_CONTENT_ENCODING] < 0:
            return self.octets
        encoding = contents_text(<const uint8_t*> PyBytes_AS_STRING(self.header), &found, PROPERTY_CONTENT_ENCODING)
        if text_is(encoding, b"binary"):
            return self.octets
        try:
            if text_is(encoding, b"utf-8"):
                return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(self.octets), PyBytes_GET_SIZE(self.octets), NULL)
            return self.octets.decode(PyUnicode_DecodeUTF8(<const char*> encoding.data, encoding.length, NULL))
        except Exception:  # as py-amqp
            return self.octets

    def is_compressed(self):
        """Return whether the headers may have a field ``compression``."""
        cdef Properties found
        cdef Field field
        cdef const uint8_t* at
        if self.header is None:
            return False
        at = <const uint8_t*> PyBytes_AS_STRING(self.header)
        if not contents_find(at, PyBytes_GET_SIZE(self.header), &found):
            return True
        return found.begin[PROPERTY_HEADERS] >= 0 and tables_find(
            at, found.begin[PROPERTY_HEADERS], PyBytes_GET_SIZE(self.header), <const uint8_t*> b"compression", 11,
            &field,
        ) != FIELD_MISSING

    def ack(self, bint multiple=False):
        """ack($self, multiple=False)
        --

        Acknowledge the message; return False if py-amqp has to: it is not outstanding.
        """
        return self.settlements is not None and self.settlements.settle(self.tag, multiple)

    @property
    def body_size(self):
        """Size of the body in octets."""
        return 0 if self.octets is None else PyBytes_GET_SIZE(self.octets)

    @property
    def channel(self):
        """Py-amqp's channel."""
        return None if self.settlements is None else self.settlements.channel

    @property
    def stale(self):
        """Whether its channel was closed, perhaps to be opened again with other delivery tags."""
        return self.settlements is None or self.settlements.closed


cdef str short_text(const uint8_t* at):
    return PyUnicode_DecodeUTF8(<const char*> at + 1, at[0], "surrogatepass")


#: Methods as py-amqp names them.
cdef tuple DELIVER = (60, 60)
cdef tuple ACK = (60, 80)
cdef tuple NACK = (60, 120)

#: Longest wait for the lock when the connection is given up, in seconds.
LEAVE_WITHIN = 1.0

#: The first position in a window of messages: those before it belong to messages that nobody waits for.
cdef uint64_t FIRST_POSITION = 1 << 40


# One channel ----------------------------------------------------------------------------------------------------------

@cython.final
cdef class Settlements:
    """Settlements(link, channel, number, make)
    --

    Record what an open channel has delivered, and what of it was settled.

    Parameters
    ----------
    link : Link
        The link of its connection.
    channel : object
        py-amqp's channel.
    number : int
        Number of the channel.
    make : callable
        Makes py-amqp's message of a `Delivery`.

    Notes
    -----
    Thread safety: every method may be called from any thread.
    """

    cdef Ledger ledger
    cdef Link link
    cdef object channel
    cdef object make
    cdef dict callbacks       # py-amqp's: by consumer tag
    cdef dict pending_calls   # py-amqp's: by method, what waits for it once
    cdef uint32_t number
    cdef readonly bint closed
    cdef public bint immediate    # nothing waits: settlements are part of a transaction
    cdef public int64_t window    # the prefetch count, 0: without limit
    cdef int64_t waiting
    cdef dict no_acks         # by consumer tag, whether its messages need no acknowledgement
    cdef list gets            # of calls of basic.get that were not answered, whether they need none
    cdef Window unconfirmed   # messages of a batch; their tokens are their indices and 1
    cdef uint64_t published   # messages since the channel confirms
    cdef readonly bint confirms   # the channel is in confirm mode
    cdef list refused         # indices of messages of a batch
    cdef bytes last_octets    # of the consumer tag that was delivered to last
    cdef str last_tag

    def __cinit__(self):
        ackledger_init(&self.ledger)
        window_init(&self.unconfirmed)
        self.closed = True
        self.refused = []

    def __init__(self, Link link not None, channel not None, uint32_t number, make not None):
        self.link = link
        self.channel = channel
        self.callbacks = channel.callbacks
        self.pending_calls = channel._pending
        self.number = number
        self.make = make
        self.no_acks = {}
        self.gets = []
        self.closed = False
        link.channels[number] = self

    def __dealloc__(self):
        ackledger_clear(&self.ledger)
        window_clear(&self.unconfirmed)

    @property
    def pending(self):
        """Number of settlements that were not sent."""
        return self.waiting

    def consume(self, consumer_tag, bint no_ack):
        """consume($self, consumer_tag, no_ack)
        --

        Note whether messages of a consumer need no acknowledgement.
        """
        if self.no_acks is not None:
            self.no_acks[consumer_tag] = no_ack

    def get(self, bint no_ack):
        """get($self, no_ack)
        --

        Note that a message is requested, and whether it needs no acknowledgement.
        """
        if self.gets is not None:
            self.gets.append(no_ack)

    def got(self, tag):
        """got($self, tag)
        --

        Record the answer to the oldest request: its delivery tag, or None.
        """
        no_ack = self.gets.pop(0) if self.gets else False
        if tag is not None:
            self.book(tag, 0, no_ack)

    def deliver(self, uint64_t tag, str consumer_tag):
        """deliver($self, tag, consumer_tag)
        --

        Record a delivery that py-amqp has read.
        """
        self.book(tag, 0, self.no_acks is not None and self.no_acks.get(consumer_tag, False))

    cdef bint book(self, uint64_t tag, int64_t size, bint no_ack) except -1:
        cdef bint booked = True
        if self.immediate:
            return True
        with cython.critical_section(self):
            if tag != self.ledger.high:  # the broker does not count as it should: leave it all to py-amqp
                self.immediate = True
            else:
                booked = ackledger_deliver(&self.ledger, size)
                if booked and no_ack:
                    ackledger_let_go(&self.ledger, tag, TAG_DONE)
        if not booked:
            raise MemoryError()
        return True

    def ack(self, uint64_t tag, bint multiple=False):
        """ack($self, tag, multiple=False)
        --

        Acknowledge deliveries; return False if py-amqp has to: there is no such delivery, or nothing may wait.
        """
        return self.settle(tag, multiple)

    cdef bint settle(self, uint64_t tag, bint multiple) except -1:
        cdef uint64_t first = tag, one
        cdef int64_t limit
        cdef int done = 1
        cdef bint late, unseen = False
        with cython.critical_section(self, self.link):
            if self.closed or self.immediate or not ackledger_is_outstanding(&self.ledger, tag):
                return False
            if multiple:
                first = self.ledger.base
            for one in range(first, tag + 1):
                done = ackledger_settle(&self.ledger, one, VERDICT_ACK)
                if done < 0:
                    break
                if done and self.waiting == 0:
                    self.link.waiting.append(self)
                self.waiting += done
            limit = max(1, self.window // WINDOW_PART) if self.window else MOST_WAITING
            late = self.waiting >= limit or not self.link.may_wait()
            if not late and not self.link.armed:
                unseen = self.link.armed = True
        if done < 0:
            raise MemoryError()
        if late:
            self.link.flush()
        elif unseen:
            self.link.wake()
        return True

    def settled(self, uint64_t tag):
        """settled($self, tag)
        --

        Note that py-amqp has settled a delivery.
        """
        with cython.critical_section(self):
            if ackledger_is_outstanding(&self.ledger, tag):
                ackledger_let_go(&self.ledger, tag, TAG_DONE)

    def recovered(self):
        """recovered($self)
        --

        Note that the broker takes back all that is not settled.
        """
        cdef uint64_t tag
        with cython.critical_section(self):
            for tag in range(self.ledger.base, self.ledger.high):
                if ackledger_is_outstanding(&self.ledger, tag):
                    ackledger_let_go(&self.ledger, tag, TAG_DONE)

    def close(self):
        """close($self)
        --

        End: the channel was closed, so what it delivered can be settled no more.
        """
        self.closed = True
        if self.link is not None and self.link.channels.get(self.number) is self:
            del self.link.channels[self.number]

    # Confirms ---------------------------------------------------------------------------------------------------------

    def select(self):
        """select($self)
        --

        Note that the channel is in confirm mode: the broker numbers messages from now on.
        """
        self.confirms = True

    def post(self, int64_t index=-1):
        """post($self, index=-1)
        --

        Note that a message was published; `index` is its index in a batch.
        """
        cdef Window* w = &self.unconfirmed
        cdef bint added = True
        if not self.confirms:
            return
        with cython.critical_section(self):
            self.published += 1
            if index >= 0 or w.outstanding:
                if w.outstanding == 0:
                    window_clear(w)
                    w.base = w.sent = w.high = FIRST_POSITION
                    w.before = w.high - self.published
                added = window_add(w, <void*> <size_t> (max(index, <int64_t> 0) + 1), 0)
                w.sent = w.high
                if added and index < 0:
                    window_settle(w, w.high - 1)
        if not added:
            raise MemoryError()

    @property
    def outstanding(self):
        """Number of messages of a batch that were not confirmed."""
        return self.unconfirmed.outstanding

    @property
    def refusals(self):
        """Indices of the messages of a batch that the broker refused."""
        return self.refused

    def confirm(self, uint64_t tag, bint multiple, bint refused):
        """confirm($self, tag, multiple, refused)
        --

        Note a confirm of the broker.
        """
        cdef Confirm c = Confirm(tag, multiple, refused)
        self.settle_confirm(&c)

    cdef bint settle_confirm(self, const Confirm* c) except -1:
        cdef uint64_t position, first = 0, end
        cdef void* token
        with cython.critical_section(self):
            end = window_confirmed(&self.unconfirmed, c, &first)
            for position in range(first, end):
                token = window_settle(&self.unconfirmed, position)
                if token != NULL and c.refused:
                    self.refused.append(<size_t> token - 1)
        return True

    cdef bint awaits(self) except -1:
        """Whether confirms are counted here, and nobody else is told of them."""
        if self.unconfirmed.outstanding == 0 or self.channel.is_closing:
            return False
        if self.pending_calls and (ACK in self.pending_calls or NACK in self.pending_calls):
            return False
        events = self.channel.events
        return not events.get("basic_ack") and not events.get("basic_nack")

    def end_batch(self):
        """end_batch($self)
        --

        Return the indices of the messages that were not confirmed, or refused, and wait for them no more.
        """
        cdef Window* w = &self.unconfirmed
        cdef uint64_t position
        cdef list left = self.refused
        self.refused = []
        with cython.critical_section(self):
            for position in range(w.base, w.high):
                if window_at(w, position).token != NULL:
                    left.append(<size_t> window_at(w, position).token - 1)
            window_clear(w)
        left.sort()
        return left

    # Writing ----------------------------------------------------------------------------------------------------------

    cdef bint write(self, Bytes* out) except -1:
        """Append the frames of all that was settled and not sent."""
        cdef Frame* frames
        cdef uint64_t size
        cdef uint8_t* to
        with cython.critical_section(self):
            if self.waiting == 0 or self.closed:
                return True
            frames = <Frame*> malloc((self.ledger.acked_size + self.ledger.refused_size + 1) * sizeof(Frame))
            to = bytes_room(out, <int64_t> (self.ledger.acked_size + self.ledger.refused_size + 1) * SETTLEMENT_SIZE)
            if frames == NULL or to == NULL:
                free(frames)
                raise MemoryError()
            size = ackledger_flush(&self.ledger, frames)
            settlements_encode(to, self.number, frames, size)
            bytes_add(out, <int64_t> size * SETTLEMENT_SIZE)
            self.waiting = 0
            free(frames)
        return True

    cdef bint takes(self) except -1:
        """Whether a delivery can be handed to its callback at once: py-amqp does not wait for it, nor closes."""
        if self.pending_calls and DELIVER in self.pending_calls:
            return False
        return not self.channel.is_closing

    cdef bint take(self, const uint8_t* bytes, const Span* d, Delivery found) except -1:
        """Copy a delivery and record it."""
        cdef int64_t names = d.tag + 9
        cdef const uint8_t* name = bytes + d.method + 4
        if self.last_octets is None or PyBytes_GET_SIZE(self.last_octets) != name[0] or memcmp(
            PyBytes_AS_STRING(self.last_octets), name + 1, name[0]
        ) != 0:
            self.last_tag = short_text(name)
            self.last_octets = PyBytes_FromStringAndSize(<const char*> name + 1, name[0])
        found.settlements = self
        found.tag = frames_number(bytes + d.tag, 8)
        found.redelivered = bytes[d.tag + 8] & 1
        found.consumer_tag = self.last_tag
        found.no_ack = self.no_acks.get(self.last_tag, False)
        found.names = PyBytes_FromStringAndSize(<const char*> bytes + names, d.method_end - names)
        found.header = PyBytes_FromStringAndSize(<const char*> bytes + d.header, d.header_end - d.header)
        found.octets = PyBytes_FromStringAndSize(<const char*> bytes + d.body, d.body_end - d.body)
        return self.book(found.tag, d.body_end - d.body, found.no_ack)


# One connection -------------------------------------------------------------------------------------------------------

@cython.final
cdef class Link:
    """Link(transport, fd, lock, wake, kinds)
    --

    The bytes of a connection.

    Parameters
    ----------
    transport : object
        py-amqp's transport.
    fd : int
        Its socket if that may be used directly; otherwise -1: `transport` writes all, and settlements do not wait.
    lock : object
        Protects what is written.
    wake : callable
        Called when a settlement begins to wait; `flush_soon` has to be called within milliseconds.
    kinds : tuple of type
        The classes of messages that may be published without py-amqp's help.

    Notes
    -----
    Thread safety: settlements and publishing may come from any thread; one thread at a time may read.
    """

    cdef Bytes read
    cdef Bytes out            # the lock protects it: frames that were not written
    cdef dict channels        # Settlements by number
    cdef object transport
    cdef object lock
    cdef object wake
    cdef tuple kinds
    cdef int fd
    cdef long pid
    cdef public int64_t longest   # payload of a frame
    cdef public bint armed        # the timer will call `flush_soon`
    cdef uint32_t last_number
    cdef Settlements last
    cdef Delivery spare       # made and not used yet
    cdef list waiting         # Settlements with something to send
    cdef list later           # frames of py-amqp's to be written after the one that is being written
    cdef bint writing         # the thread that has the lock is writing
    cdef object __weakref__

    def __cinit__(self):
        bytes_init(&self.read)
        bytes_init(&self.out)
        self.fd = -1
        self.channels = {}
        self.waiting = []
        self.later = []
        self.longest = 0x7FFFFFFF
        self.pid = current_pid()

    def __init__(self, transport, int fd, lock, wake, tuple kinds not None):
        self.transport = transport
        self.fd = fd if SOCKETS_LEND else -1
        self.lock = lock
        self.wake = wake
        self.kinds = kinds

    def __dealloc__(self):
        bytes_clear(&self.read)
        bytes_clear(&self.out)

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def buffered(self):
        """Number of octets that were read from the socket and not handled."""
        return bytes_size(&self.read)

    def wanted(self):
        """wanted($self)
        --

        Return how many octets to ask of the socket.
        """
        cdef FrameSpan f
        cdef int64_t size = bytes_size(&self.read)
        if size and frames_span(self.read.data + self.read.begin, size, 0x7FFFFFFF, &f) == FRAME_PART:
            return max(<int64_t> RECEIVE_AT_ONCE, f.whole - size)
        return RECEIVE_AT_ONCE

    def fill(self):
        """fill($self)
        --

        Read what has arrived, without waiting.

        Returns
        -------
        int
            1: something was read, 0: nothing has arrived, -1: ask Python's socket.
        """
        cdef int64_t wanted = self.wanted(), found
        cdef uint8_t* to
        if not self.is_usable():
            return -1
        with cython.critical_section(self):
            to = bytes_room(&self.read, wanted)
            if to == NULL:
                raise MemoryError()
            found = sockets_receive(self.fd, to, wanted)
            if found > 0:
                bytes_add(&self.read, found)
        return 1 if found > 0 else 0 if found == RECEIVED_NOTHING else -1

    def wait(self, double seconds):
        """wait($self, seconds)
        --

        Wait without the GIL until something can be read; return False if nothing came in time.

        Parameters
        ----------
        seconds : float
            Negative: without end.
        """
        cdef double deadline = monotonic() + seconds, left = 1
        cdef bint readable = False
        cdef int fd = self.fd
        while not readable and self.is_usable():
            if seconds >= 0:
                left = deadline - monotonic()
                if left <= 0:
                    return False
            with nogil:
                # A signal ends it; one that came just before is noticed within a second.
                readable = sockets_wait(fd, <int64_t> (min(left, 1.0) * 1e6) + 1)
            PyErr_CheckSignals()
        return True

    cdef bint is_usable(self) except -1:
        """Whether the number of the socket is still that of the transport: it may have been closed by others."""
        if self.fd < 0:
            return False
        socket = self.transport.sock
        return socket is not None and socket.fileno() == self.fd

    def add(self, bytes data not None):
        """add($self, data)
        --

        Add octets that Python's socket has read.
        """
        with cython.critical_section(self):
            bytes_append(&self.read, <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if self.read.failed:
            raise MemoryError()

    def step(self, connection):
        """step($self, connection)
        --

        Handle frames until one method was handled; return False if more octets are needed for that.

        Parameters
        ----------
        connection : object
            py-amqp's connection.
        """
        cdef Delivery delivery
        cdef Settlements settlements
        cdef FrameFound found
        cdef FrameSpan f
        cdef Confirm c
        cdef bint confirm = False
        while True:
            delivery = self.next_delivery()
            if delivery is not None:
                settlements = delivery.settlements
                callback = settlements.callbacks.get(delivery.consumer_tag, settlements)
                message = settlements.make(delivery)
                if callback is settlements:
                    settlements.channel._reject_unclaimed(message)
                else:
                    callback(message)
                return True
            settlements = self.next_channel()
            if settlements is not None and not settlements.awaits():
                settlements = None
            payload = None
            with cython.critical_section(self):
                found = frames_span(self.read.data + self.read.begin, bytes_size(&self.read), 0x7FFFFFFF, &f)
                if found == FRAME_WHOLE:
                    confirm = settlements is not None and f.kind == FRAME_METHOD and confirm_find(
                        self.read.data + self.read.begin, bytes_size(&self.read), 0, settlements.number, &c
                    )
                    if not confirm:
                        payload = PyBytes_FromStringAndSize(<const char*> f.payload, f.size)
                    bytes_take(&self.read, f.whole)
            if found == FRAME_PART:
                return False
            if found != FRAME_WHOLE:
                connection._unended(f.payload[f.size] if found == FRAME_UNENDED else 0)
                return False
            if confirm:
                settlements.settle_confirm(&c)
                return True
            if connection.on_inbound_frame((f.kind, f.channel, payload)):
                return True

    cdef Delivery next_delivery(self):
        """Take the next delivery that is whole, in one frame, and of a channel that takes it; or None.

        From the search to its end no object is made that the collector counts: a destructor might read, too.
        """
        cdef Span d
        cdef Settlements settlements = self.next_channel()
        cdef Delivery delivery
        if settlements is None or not settlements.takes():
            return None
        delivery = self.spare
        self.spare = None
        if delivery is None:
            delivery = Delivery.__new__(Delivery)
        with cython.critical_section(self):
            if frames_find(
                self.read.data + self.read.begin, bytes_size(&self.read), 0, self.longest, &d
            ) == FOUND_WHOLE and d.channel == settlements.number and not settlements.closed:
                settlements.take(self.read.data + self.read.begin, &d, delivery)
                bytes_take(&self.read, d.end)
                return delivery
        self.spare = delivery
        return None

    cdef Settlements next_channel(self):
        """Return the channel of the next frame; None: it has none, or it is not known yet."""
        if bytes_size(&self.read) < 3:
            return None
        return self.channel_of(<uint32_t> frames_number(self.read.data + self.read.begin + 1, 2))

    cdef Settlements channel_of(self, uint32_t number):
        if self.last is None or self.last_number != number or self.last.closed:
            self.last = self.channels.get(number)
            self.last_number = number
        return self.last

    # Writing ----------------------------------------------------------------------------------------------------------

    @property
    def waits(self):
        """Whether there is a settlement that was not sent."""
        return self.has_waiting()

    cdef bint has_waiting(self):
        return len(self.waiting) > 0 or bytes_size(&self.out) > 0

    cdef bint may_wait(self):
        """Whether the timer can send what waits."""
        return self.fd >= 0

    cdef bint arm(self) except -1:
        with cython.critical_section(self):
            if self.armed:
                return True
            self.armed = True
        self.wake()
        return True

    cdef bint collect(self) except -1:
        """Append the settlements of all channels. The lock is held."""
        cdef Settlements settlements
        # Made before: making a list may have the collector run destructors, and these may settle and write.
        cdef list waiting, others = []
        with cython.critical_section(self):
            waiting, self.waiting = self.waiting, others
        for settlements in waiting:
            settlements.write(&self.out)
        return True

    cdef bint send(self, bint waiting) except -1:
        """Write what is in `out`; with `waiting`, all of it. The lock is held."""
        cdef int64_t size = bytes_size(&self.out)
        if size and self.is_usable():
            bytes_take(&self.out, sockets_send(self.fd, self.out.data + self.out.begin, bytes_size(&self.out)))
        size = bytes_size(&self.out)
        if size and waiting:
            data = PyBytes_FromStringAndSize(<const char*> self.out.data + self.out.begin, size)
            bytes_take(&self.out, size)
            self.transport.write(data)
        if self.out.room > KEPT_ROOM and bytes_size(&self.out) == 0:
            bytes_clear(&self.out)
        return True

    def flush(self):
        """flush($self)
        --

        Send all settlements that wait, or leave it to the thread that is writing.
        """
        if not self.has_waiting() or self.pid != current_pid():
            return
        if not self.lock.acquire(False):
            if self.may_wait():
                # That thread may wait for the broker for long, and this one has messages to read. It sends them when it
                # has written; the timer, what it has just missed.
                self.arm()
                return
            self.lock.acquire()
        try:
            self.send_all()
        finally:
            self.lock.release()

    cdef bint send_all(self) except -1:
        """Write what waits. The lock is held."""
        if self.writing:
            return True
        self.writing = True
        try:
            while self.has_waiting():
                self.collect()
                self.send(True)
        finally:
            self.writing = False
        return True

    def flush_soon(self):
        """flush_soon($self)
        --

        Send settlements as far as the socket takes them; return whether there were some.
        """
        with cython.critical_section(self):
            if not self.has_waiting() or self.pid != current_pid() or self.fd < 0:
                self.armed = False
                return False
        # A thread that writes may wait for the broker, and there are other links.
        if self.lock.acquire(False):
            try:
                if self.fd >= 0 and not self.writing:
                    self.collect()
                    self.send(False)
            finally:
                self.lock.release()
        return True

    def leave(self):
        """leave($self)
        --

        Send settlements as far as the socket takes them, and do not use the socket again.
        """
        # Another thread may have the lock and wait for the broker: the end of the socket ends that.
        cdef bint own = self.lock is not None and self.pid == current_pid()
        locked = own and self.lock.acquire(True, LEAVE_WITHIN)
        try:
            if locked and not self.writing:
                self.collect()
                self.send(False)
            self.fd = -1
        finally:
            if locked:
                self.lock.release()
        self.channels.clear()
        self.last = None

    def write(self, frame, *arguments):
        """write($self, frame, *arguments)
        --

        Send all settlements that wait, then call `frame`, which writes a frame.
        """
        if self.pid != current_pid():
            frame(*arguments)
            return
        with self.lock:
            self.later.append((frame, arguments))
            if self.writing:
                return
            while self.later:
                self.send_all()
                frame, arguments = self.later.pop(0)
                self.writing = True
                try:
                    frame(*arguments)
                except BaseException:
                    self.later.clear()
                    raise
                finally:
                    self.writing = False
            self.send_all()

    def publish(self, uint32_t channel, message, exchange, routing_key, mandatory, bint more=False):
        """publish($self, channel, message, exchange, routing_key, mandatory, more=False)
        --

        Publish a message; return False if py-amqp has to. With `more`, it may wait for others, until `flush`.
        """
        cdef Content c
        cdef Py_ssize_t size
        cdef int64_t whole
        cdef Bytes header
        cdef uint8_t* to
        if type(message) not in self.kinds or type(exchange) is not str or type(routing_key) is not str:
            return False
        if self.pid != current_pid():
            return False
        properties, body = message.properties, message.body
        if isinstance(body, str):
            body = body.encode(properties.setdefault("content_encoding", "utf-8"))
        if type(body) is not bytes or type(properties) is not dict:
            return False
        try:
            c.exchange = <const uint8_t*> PyUnicode_AsUTF8AndSize(exchange, &size)
            c.exchange_size = size
            c.key = <const uint8_t*> PyUnicode_AsUTF8AndSize(routing_key, &size)
            c.key_size = size
        except UnicodeEncodeError:
            return False
        if c.exchange_size > SHORT_MAX or c.key_size > SHORT_MAX:
            return False
        c.mandatory = bool(mandatory)
        c.body = <const uint8_t*> PyBytes_AS_STRING(body)
        c.body_size = PyBytes_GET_SIZE(body)
        bytes_init(&header)
        try:
            if not properties_write(&header, properties):
                return False
            c.properties = header.data + header.begin
            c.properties_size = bytes_size(&header)
            if CONTENT_HEAD + c.properties_size > self.longest:
                return False
            with self.lock:
                whole = publish_size(&c, self.longest)
                to = bytes_room(&self.out, whole)
                if to == NULL:
                    raise MemoryError()
                publish_encode(&c, channel, self.longest, to)
                bytes_add(&self.out, whole)
                if not more or bytes_size(&self.out) >= WRITE_AT_ONCE:
                    self.send_all()
        finally:
            bytes_clear(&header)
        return True
