"""A consumer's delivery path: from the bytes of a connection to messages in the hands of workers, and back.

In this file, in this order:

    Settlements          what is settled and not sent, of all channels of a consumer
    ChannelDeliveries    what one channel has delivered, and how it is settled
    Message              one delivery, in the hands of a handler; a header of it as a key
    give_deliveries      from the bytes of a connection to messages
    Intake               from there into the worker queues
    LentConnection       the connection, for the thread that consumes while the I/O thread waits

Beside it: `_messagesource`, from the worker queues to the workers; `_settling`, many messages at once, and those whose
handlers raised; `_counters`; `_ackpolicy`, when settlements leave; `_columns` and `_collected`, messages as columns.

No Python function is called for a message on its way, but those that the user gave: a key, a price, a handler. A
message is made once, by the thread that reads it. It refers to the bytes read, in which its method and properties stay
undecoded, and its body uncopied, until they are used.

Exclusion. The thread that has the connection delivers and sends: the I/O thread, unless it lent it; any
thread may settle and take messages. What several threads change is changed with the GIL held, in one stretch without
Python code; on free-threaded builds inside a critical section of the object, or of the ledger, which decides which
thread settled a message.

Parts that are used without a look whether they are there are made when an object is allocated, and stay until it is
freed (`no_gc_clear`); lists are asked for their length by `len`, which looks. For another object may refer to it while
the collector takes apart what it belonged to.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject, _Py_REFCNT
from cpython.time cimport monotonic
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, WAIT_LOCK,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.amqp._ackledger cimport AckLedger
from fairsched.core.amqp.ackledger cimport (
    VERDICT_ACK as ACK, VERDICT_REJECT as REJECT, VERDICT_REQUEUE as REQUEUE, ackledger_deliver, ackledger_leave,
    ackledger_settle,
)
from fairsched.core.amqp.ackpolicy cimport (
    ACKS_AFTER_PAUSE, ACKS_DUE, ACKS_PERIOD, AcksDue, ackpolicy_due, ackpolicy_note_here, ackpolicy_rested,
    ackpolicy_sending,
)
from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find
from fairsched.core.amqp.frames cimport (
    FOUND_OTHER, FOUND_WHOLE, FRAME_HEAD, Delivery, Found, frames_find, frames_number,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE
from fairsched.core.amqp.sockets cimport (
    RECEIVED_NOTHING, SOCKETS_LEND, sockets_receive, sockets_send, sockets_wait, sockets_watch,
)
from fairsched.core.amqp.streamoffset cimport stream_offset
from fairsched.core.amqp.tables cimport FIELD_FOUND, FIELD_MISSING, FIELD_UNSURE, Field, FieldFound, tables_find
from fairsched.core.atomics cimport rarely
from fairsched.delivery._ackpolicy cimport AckPolicy
from fairsched.delivery._collected cimport CollectedDeliveries
from fairsched.delivery._counters cimport COUNT_ACKED, COUNT_RECEIVED, COUNT_STALE, Counters
from fairsched.scheduling._buffers cimport part
from fairsched.scheduling._fairqueue cimport FairQueue, Place

from pika import spec

from fairsched.amqp.properties import decode
from fairsched.delivery.handlers import check_result
from fairsched.errors import ConfigurationError, ShutDown

cdef double FAST = 0.001  # default of `LentConnection.fast`
cdef double SLEEPY = ACKS_PERIOD  # the I/O thread is woken by what comes again if none has looked for so long

cdef enum:
    # A thread that waits for messages keeps the GIL for so many microseconds at most, and for no longer than it worked
    # before: to have it back from a thread that computes takes five thousand.
    BRIEF = 100
    ROOM = 1 << 16     # octets that are read at once
    AROUND_MESSAGE = 64  # octets beside a message in a read that may be kept for it without being counted
    MOST_KEPT = 4 << 20  # octets of other reads that messages of a consumer keep
    MOST_READS = 1024  # and how many of these: a few small messages may keep each
    READS_LOOKED_AT = 32  # of these, each time that one comes, whether any message still refers to them
    READABLE = 1       # among the events of an epoll


# What is settled and not sent -----------------------------------------------------------------------------------------


@cython.final
cdef class Settlements:
    """Settlements(counters, policy, lent, request)
    --

    What is settled and not sent, of all channels of one consumer.

    Parameters
    ----------
    counters : Counters
        Count each settlement by its verdict.
    policy : AckPolicy
        Says when they are to be sent.
    lent : LentConnection
        Sends them at once, where it can; and its intake gets what the channels deliver.
    request : callable
        Called, in whatever thread, when the I/O thread is to send them.

    Attributes
    ----------
    flush_requested : bool
        Whether sending was asked for and is yet to be done.
    window : int
        Sum of the windows of all living channels.

    Notes
    -----
    `take_unsent`, `window` and `count_here` are for the thread that has the connection, `forked` for a child process;
    the rest is safe from any thread.
    """

    def __cinit__(self, *_args, **_options):
        self.counters = Counters()
        self.policy = AckPolicy(1)
        self.lent = LentConnection.__new__(LentConnection)
        self.unsent = []
        self.busy = []

    def __init__(self, Counters counters not None, AckPolicy policy not None, LentConnection lent not None, request):
        self.counters = counters
        self.policy = policy
        self.lent = lent
        self.request = request

    @property
    def waiting(self):
        """Whether anything is settled and not sent."""
        return bool(self.unsent)

    def send(self):
        """send($self)
        --

        Send what is settled, or have it sent soon; from any thread.
        """
        self.send_soon()

    cdef int send_soon(self) except -1:
        if len(self.unsent) and not self.lent.send(self):
            self.request()
        return 0

    def take_unsent(self):
        """take_unsent($self)
        --

        The channels that have something to send: a list of `ChannelDeliveries`, each once.
        """
        return self.taken_unsent()

    cdef list taken_unsent(self):
        cdef list found = []  # made first: that may run finalizers, which settle
        cdef Py_ssize_t i
        with cython.critical_section(self):
            found, self.unsent = self.unsent, found
            # Before their ledgers are flushed: a thread that settles after that adds the channel again.
            for i in range(len(found)):
                (<ChannelDeliveries> PyList_GET_ITEM(found, i)).unsent = False
        return found

    cdef int note_unsent(self, ChannelDeliveries channel) except -1:
        """Note that a channel has something to send."""
        with cython.critical_section(self):
            if not channel.unsent:
                self.unsent.append(channel)
                channel.unsent = True  # after that, which may be out of memory
        return 0

    def count_here(self):
        """count_here($self)
        --

        Messages that the broker has given out on living channels and not heard of. O(channels that have any).
        """
        cdef list found = [], before
        cdef ChannelDeliveries channel
        cdef int64_t here = 0, held
        cdef Py_ssize_t i
        before, self.busy = self.busy, found
        for i in range(len(before)):
            channel = <ChannelDeliveries> PyList_GET_ITEM(before, i)
            held = channel.held() if channel.alive else 0
            here += held
            if held:
                found.append(channel)
            else:
                channel.listed = False
        return here

    def forked(self, error):
        """forked($self, error)
        --

        Let no message of this copy in a child process be settled: that raises RuntimeError with this text.
        """
        self.forked_error = error
        self.lent.forget()
        self.take_unsent()
        self.flush_requested = False


# What a channel delivered ---------------------------------------------------------------------------------------------


@cython.no_gc_clear
cdef class ChannelDeliveries:
    """ChannelDeliveries(queue, settlements)
    --

    What one channel has delivered, and how it is settled; the base of `fairsched.consumer.channel.ConsumerChannel`.

    Parameters
    ----------
    queue : str
        The queue's name.
    settlements : Settlements
        Of the consumer; the intake of their connection gets the messages.

    Attributes
    ----------
    ledger : AckLedger
        Which of them are unsettled.
    alive : bool
        Cleared when the channel is gone: what it delivered belongs to the broker again.
    filled : bool
        Whether deliveries have filled the window since this was cleared, so that more presumably wait upstream.
    arrived : bool
        Whether anything was delivered since this was cleared.
    keeps_messages : bool
        Whether the queue is known as a stream, which keeps its messages whatever becomes of them: the broker knows
        acknowledgements alone, as a sign that there is room for more, and closes the connection at any other. It may
        have been replaced: a message without an offset is settled as is said.
    single_active : bool
        Whether the queue has a single active consumer. Its messages that no handler has had are left to the broker,
        which returns them, in their order, when the channel is closed; if they were requeued, this consumer would get
        them again.
    leaving : bool
        Whether no more of its messages are handed out, because the channel is to be closed.
    window : int
        Unsettled messages that the broker may send, in the end.
    number : int
        Of the channel; 0: only the I/O thread sends its settlements.
    room : int
        Unsettled messages that the broker may send now, where that is known; else 0.
    settlements_sent : int
        Frames that settled messages, so far.

    Notes
    -----
    `settle` is safe from any thread, the rest is for the thread that has the connection: the I/O thread, unless it lent
    it. O(1) a message.
    """

    def __cinit__(self, *_args, **_options):
        self.ledger = AckLedger()
        self.settlements = Settlements.__new__(Settlements)
        self.intake = Intake.__new__(Intake)

    def __init__(self, queue, Settlements settlements not None):
        self.queue = queue
        self.settlements = settlements
        self.intake = settlements.lent.intake
        self.alive = True

    def on_filled(self):
        """on_filled($self)
        --

        Called when deliveries have filled the window.
        """

    def on_refilled(self, seconds):
        """on_refilled($self, seconds)
        --

        Called when a delivery came, so long after the settlement was sent that made room for it.
        """

    def set_window(self, int64_t window, int64_t nearly_full):
        """set_window($self, window, nearly_full)
        --

        Set what the broker may send, and beyond how many unsettled messages it counts as full.
        """
        if self.alive:
            self.settlements.window += window - self.window
        self.window = window
        self.nearly_full = nearly_full

    def close_window(self):
        """close_window($self)
        --

        Count its window no longer among those of the consumer; for a channel that is about to be gone.
        """
        if self.alive:
            self.settlements.window -= self.window

    def expect(self, int64_t tag):
        """expect($self, tag)
        --

        Have the time measured until that delivery comes, unless one is awaited already: see `on_refilled`.

        The number may be less than 1: the caller reads several figures, which others change meanwhile.
        """
        if self.due < self.ledger.ledger.high:
            self.due = max(0, tag)
            self.sent = monotonic()

    cdef bytes taken_frames(self):
        """Take what must be sent, as frames."""
        cdef AckLedger ledger = self.ledger
        cdef bytes frames
        if not self.alive or not self.number:
            return b""
        if self.room:
            self.expect(<int64_t> ledger.ledger.high - 1 - <int64_t> ledger.ledger.outstanding + self.room)
        frames = ledger.frames(self.number)
        self.settlements_sent += len(frames) // SETTLEMENT_SIZE
        return frames

    def count_sent(self, bytes frames not None):
        """count_sent($self, frames)
        --

        Count settlements that are sent, as frames.
        """
        self.settlements_sent += len(frames) // SETTLEMENT_SIZE

    @property
    def full(self):
        """Whether the broker may send hardly anything before it hears from us."""
        return self.held() > self.nearly_full

    @property
    def unsettled(self):
        """Messages that the broker has given out and not heard of."""
        return self.held()

    cdef int64_t held(self) noexcept:
        """As `unsettled`, without an object for the number."""
        cdef AckLedger ledger = self.ledger
        return ledger.ledger.outstanding + ledger.ledger.acked_size + ledger.ledger.refused_size

    def deliver(self, uint64_t tag, redelivered, method, properties, bytes body not None):
        """deliver($self, tag, redelivered, method, properties, body)
        --

        Take a delivery that pika has decoded, or of which there are the payloads of method and content header.

        Raises
        ------
        ValueError
            The tag does not follow the last.
        """
        cdef Message message = Message(body, tag, redelivered, method, properties, self)
        self.book(tag, len(body))
        self.intake.append(message)
        self.look(tag)

    cdef int book(self, uint64_t tag, uint64_t size) except -1:
        """Note a delivery; its message has been made, and is handed on before any other Python code runs."""
        cdef uint64_t due
        cdef bint booked = True
        with cython.critical_section(self.ledger):
            due = self.ledger.ledger.high
            if tag == due:
                booked = ackledger_deliver(&self.ledger.ledger, size)
        if tag != due:
            raise ValueError(f"delivery tag must be {due}, the one after the last, got {tag}")
        if not booked:
            raise MemoryError()
        self.arrived = True
        if not self.listed:
            self.settlements.busy.append(self)
            self.listed = True  # after that, which may be out of memory
        return 0

    cdef int look(self, uint64_t tag) except -1:
        """Tell of a delivery just handed on that was awaited, or has filled the window."""
        cdef LentConnection lent = self.settlements.lent
        if tag == self.due:
            self.due = 0
            lent.tell((self.on_refilled, monotonic() - self.sent))
        if not self.filled and self.held() > self.nearly_full:
            self.filled = True
            if lent.tell((self.on_filled,)):
                lent.filled = True
        return 0

    def settle(self, uint64_t tag, int verdict):
        """settle($self, tag, verdict)
        --

        Note a settlement, and see to it that it is sent soon; False if it has no effect.

        Raises
        ------
        RuntimeError
            This is a copy in a child process.
        ValueError
            The verdict is none of the three.
        """
        if verdict not in (ACK, REQUEUE, REJECT):
            raise ValueError(f"verdict must be AckLedger.ACK, REQUEUE or REJECT, got {verdict}")
        return self.settle_one(tag, verdict, ACK if self.keeps_messages else verdict)

    cdef bint settle_one(self, uint64_t tag, int verdict, int sent) except -1:
        """As `settle`; `sent` is what the broker is told."""
        cdef bint is_due = False
        cdef bint done = self.note(tag, verdict, sent, &is_due)
        if is_due and not self.settlements.flush_requested:
            self.settlements.send_soon()
        return done

    cdef bint note(self, uint64_t tag, int verdict, int sent, bint* is_due) except -1:
        """Note a settlement, and whether it is time to send: no Python code runs in here."""
        cdef bint done
        if not self.stands():
            self.settlements.counters.count(COUNT_STALE, 1)
            return False
        done = self.note_tag(tag, sent)
        if done:
            is_due[0] = self.noted(1, verdict)
        return done

    cdef bint stands(self) except -1:
        """Whether settlements have an effect. Raises RuntimeError in a child process."""
        if self.settlements.forked_error is not None:
            raise RuntimeError(self.settlements.forked_error)
        return self.alive

    cdef bint note_tag(self, uint64_t tag, int sent) except -1:
        """Note one settlement in the ledger.

        What is requeued while the channel is being left is left to the broker: it returns to its place with the others,
        while a requeued message might be delivered here once more, or get behind its successors.
        """
        cdef int done
        cdef AckLedger ledger = self.ledger
        cdef bint left = sent == REQUEUE and self.leaving
        with cython.critical_section(ledger):
            done = ackledger_leave(&ledger.ledger, tag) if left else ackledger_settle(&ledger.ledger, tag, sent)
        if done < 0:
            raise MemoryError()
        return done

    cdef bint noted(self, int64_t count, int verdict) except -1:
        """Count settlements, and have them sent; say whether it is time to."""
        cdef Settlements settlements = self.settlements
        cdef AckLedger ledger = self.ledger
        settlements.counters.count(COUNT_ACKED + verdict, count)
        settlements.note_unsent(self)
        return is_due(settlements.policy, ackpolicy_due(
            &settlements.policy.state, count, ledger.ledger.acked_size + ledger.ledger.refused_size, self.window
        ))

    cdef bint leave_one(self, uint64_t tag) except -1:
        """Leave a message to the broker; return whether it was unsettled."""
        cdef AckLedger ledger = self.ledger
        cdef bint done
        if not self.stands():
            return False
        with cython.critical_section(ledger):
            done = ackledger_leave(&ledger.ledger, tag)
        if done and self.leaving:
            # The I/O thread closes the channel when nothing of it is in hand, and looks when it sends settlements.
            self.settlements.note_unsent(self)
            self.settlements.send_soon()
        return done


cdef inline bint is_due(AckPolicy policy, AcksDue due) noexcept:
    return due == ACKS_DUE or (due == ACKS_AFTER_PAUSE and ackpolicy_rested(&policy.state, monotonic()))


# Messages -------------------------------------------------------------------------------------------------------------


@cython.final
@cython.freelist(4096)
cdef class Message:
    """Message(body, delivery_tag, redelivered, delivery, properties, origin, arrived=0.0)
    --

    A delivered message, to be settled once with `ack`, `nack` or `reject`, from any thread.

    Attributes
    ----------
    body : bytes
        The content; created on first use.
    delivery_tag : int
        The broker's number of this delivery, counted per channel.
    redelivered : bool
        Whether the broker may have delivered it before.
    arrived : float
        Time of receipt, on the clock of ``time.monotonic``.
    slot : hashable
        What its cost is charged to: its queue, or its tenant if the consumer has a ``key``.
    subkey : hashable or None
        The subkey within the slot, if the consumer has a ``subkey``.
    cost : int
        The cost charged for it.
    settled : bool
        Whether it was settled, by the handler or by the consumer.
    deferred : bool
        Whether it stays unsettled when the handler returns; see `defer`.

    Notes
    -----
    Memory: messages received in one read of the connection share its bytes, which are freed with the last of these
    messages. The messages of one consumer keep at most 4 MiB of such bytes; beyond that, each new message gets its own
    copy.

    Settling twice is allowed: the first call decides, later calls do nothing and return False. Settling a message whose
    channel is closed does nothing either, since the broker redelivers the message; ``stats()`` counts such calls.

    As a context manager, the message is acked when the block ends, unless the block settled it. If the block raises an
    `Exception`, the message is settled as the consumer's ``on_error`` or ``retry`` says. Any other exception, such as
    KeyboardInterrupt or a task's CancelledError, is not a failure of the message, which is requeued. The exception
    propagates in both cases.

    The first failure decides, although it may take a while until the message is settled: a requeue may be delayed, and
    a retry waits for the broker to confirm the copy. From the failure on, `ack`, `nack` and `reject` do nothing and
    return False, and `defer`, a second failure and the return of the handler do nothing. A function ``on_error`` may
    settle or defer the message, as may any thread after the function deferred it.
    """

    def __init__(
        self, body, uint64_t delivery_tag, bint redelivered, delivery, properties, origin, double arrived=0.0
    ):
        self.content = body
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.method = delivery
        self.method_at, self.method_end = 0, len(delivery) if isinstance(delivery, bytes) else 0
        self.header = properties
        self.header_at, self.header_end = 0, len(properties) if isinstance(properties, bytes) else 0
        self.body_at = self.body_end = 0
        self.decoded = None
        self.origin = origin
        self.slot = origin.queue
        self.subkey = None
        self.cost = 1
        self.arrived = arrived
        self.settled = self.deferred = False
        self.failure = NOT_FAILED

    @property
    def body(self):
        """The content; created on first use."""
        with cython.critical_section(self):
            if self.content is None and self.body_at and isinstance(self.header, bytes):
                self.content = part(<const uint8_t*> PyBytes_AS_STRING(self.header), self.body_at, self.body_end)
            return self.content

    @body.setter
    def body(self, value):
        with cython.critical_section(self):
            self.content = value
            self.body_at = 0

    @property
    def delivery(self):
        """The method as pika's ``Basic.Deliver``; decoded on first use."""
        if isinstance(self.method, bytes):
            # Behind class and method number.
            self.method = spec.Basic.Deliver().decode(self.method, self.method_at + 4)
        return self.method

    @property
    def properties(self):
        """The publisher's properties as pika's ``BasicProperties``; decoded on first use.

        If only the headers cannot be decoded, reading ``properties.headers`` raises `DecodingError`; if no property can
        be decoded, this property raises it.
        """
        if self.decoded is None:
            self.decoded = decode(self.header_bytes()) if isinstance(self.header, bytes) else self.header
        return self.decoded

    @property
    def data(self):
        """The body, decoded by the consumer's ``decode`` on first use.

        Raises `UndecodableBody` if it cannot be decoded, and RuntimeError if the consumer has no ``decode``.
        """
        found = self.value
        if found is None:
            decoder = getattr(self.origin, "decode", None)
            if decoder is None:
                raise RuntimeError('message.data needs a consumer with decode=, such as decode="json"')
            found = self.value = (decoder(self),)
        return found[0]

    @property
    def raw_properties(self):
        """The encoded properties: equal for all deliveries of one message."""
        return self.header_bytes() if isinstance(self.header, bytes) else b"".join(self.header.encode())

    cdef bytes header_bytes(self):
        cdef bytes found = self.header
        return found[self.header_at:self.header_end]

    @property
    def queue(self):
        """The queue that the message was consumed from."""
        return self.origin.queue

    @property
    def headers(self):
        """The publisher's headers; empty if there are none. Raises `DecodingError` if they cannot be decoded."""
        return self.properties.headers or {}

    @property
    def exchange(self):
        """The exchange it was published to; empty for the default exchange. Invalid UTF-8 is replaced."""
        return self.name_in_method(0)

    @property
    def routing_key(self):
        """The routing key it was published with. Invalid UTF-8 is replaced."""
        return self.name_in_method(1)

    cdef object name_in_method(self, int number):
        """The exchange (0) or the routing key (1)."""
        cdef const uint8_t* at
        cdef int64_t begin = 4, end
        if isinstance(self.method, bytes):
            at = <const uint8_t*> PyBytes_AS_STRING(self.method) + self.method_at
            end = self.method_end - self.method_at
            begin += 1 + (at[begin] if begin < end else end) + 9  # consumer tag, delivery tag, redelivered
            if number:
                begin += 1 + (at[begin] if begin < end else end)
            if begin < end and begin + 1 + at[begin] <= end:
                return PyUnicode_DecodeUTF8(<const char*> at + begin + 1, at[begin], "replace")
        found = self.delivery.routing_key if number else self.delivery.exchange
        # pika has bytes for what is no UTF-8.
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)

    @property
    def alive(self):
        """Whether its channel is still open, so that settling the message has an effect."""
        return self.origin.alive

    @property
    def in_stream(self):
        """Whether it comes from a stream, which keeps it: any settlement is then sent as an acknowledgement."""
        return (
            isinstance(self.origin, ChannelDeliveries) and (<ChannelDeliveries> self.origin).keeps_messages
            and self.has_offset()
        )

    cdef bint has_offset(self) noexcept:
        """Whether its headers say where it is in a stream, or cannot be decoded.

        A queue that was a stream may be another by now, in which what is acknowledged is gone.
        """
        cdef int64_t size = 0
        cdef const uint8_t* at = header_octets(self, &size)
        if at != NULL:
            return stream_offset(at, size) >= 0
        try:
            return "x-stream-offset" in self.headers
        except Exception:
            return True

    cdef int sent_as(self, ChannelDeliveries channel, int verdict) noexcept:
        """Return the verdict that the broker is told when this is settled so."""
        return ACK if verdict != ACK and channel.keeps_messages and self.has_offset() else verdict

    def ack(self):
        """ack($self)
        --

        Acknowledge the message: it was processed, and the broker removes it.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        O(1) amortised; never waits for the network. Safe from any thread.
        """
        return self.settle(ACK)

    def nack(self, requeue=True):
        """nack($self, requeue=True)
        --

        Return the message to its queue, or drop or dead-letter it.

        Parameters
        ----------
        requeue : bool
            True: the message is requeued. False: it is dead-lettered if its queue has a dead-letter exchange, otherwise
            dropped.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        As for `ack`. It is sent as ``basic.nack``: RabbitMQ counts ``basic.reject`` towards the delivery limit of a
        quorum queue.
        """
        return self.settle(REQUEUE if requeue else REJECT)

    def reject(self, requeue=False):
        """reject($self, requeue=False)
        --

        Reject the message: it is dead-lettered if its queue has a dead-letter exchange, otherwise dropped.

        Parameters
        ----------
        requeue : bool
            True: the message is requeued instead.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        As for `nack`; only the default of `requeue` differs.
        """
        return self.settle(REQUEUE if requeue else REJECT)

    def defer(self):
        """defer($self)
        --

        Keep the message unsettled when the handler returns, to be settled later from any thread.

        Notes
        -----
        O(1). Until it is settled, the message occupies one place in its queue's prefetch window. After a failure of the
        message, this does nothing.
        """
        with cython.critical_section(self):
            if self.failure != DECIDED:
                self.deferred = True

    def reply(self, body, **values):
        """reply($self, body, **values)
        --

        Reply to the message with the publisher of its `App`: see `Publisher.reply`.

        Parameters
        ----------
        body : bytes-like
            The content of the reply.
        **values
            `mandatory` and properties, as for `Publisher.publish`.

        Returns
        -------
        Confirmation
            Wait for it before you acknowledge the message, unless the reply may be lost if this process ends.

        Raises
        ------
        ValueError
            The message has no `reply_to`.
        RuntimeError
            The message's consumer was not made by an `App`, so there is no publisher.
        Exception
            As for `App.publisher` and `Publisher.publish`.

        Notes
        -----
        O(length of the reply). Safe from any thread.
        """
        publisher = getattr(self.origin, "publisher", None)
        if publisher is None:
            raise RuntimeError(
                "there is no publisher for the answer: consume with an App, whose handlers have one, or give the "
                "message to one of your own: publisher.reply(message, body)"
            )
        return publisher().reply(self, body, **values)

    def finish(self, result=None):
        """finish($self, result=None)
        --

        Ack the message unless it was settled or deferred, or failed: the effect of returning from a handler.

        Parameters
        ----------
        result : object
            What the handler returned.

        Raises
        ------
        ConfigurationError
            If `result` is a coroutine or a generator, whose code has not run. The message is requeued.
        """
        self.finish_with(result)

    cdef int finish_with(self, object result) except -1:
        if result is not None:
            try:
                check_result(result, "handler")
            except ConfigurationError:
                self.settle(REQUEUE)
                raise
        if not self.deferred and self.failure == NOT_FAILED:
            self.settle(ACK)
        return 0

    def fail(self, error):
        """fail($self, error)
        --

        Settle the message as the consumer's ``on_error`` or ``retry`` says: the effect of an exception in the handler.

        Ctrl-C, a cancelled task or a closed generator are not failures of the message, which is requeued. After a
        failure, neither a second one nor such an exception has an effect.

        Raises
        ------
        TypeError
            If `error` is no exception; nothing is settled.
        """
        if not issubclass(type(error), BaseException):
            raise TypeError(f"error must be an exception, got {error!r}")
        if not issubclass(type(error), Exception):  # `isinstance` asks the object, which may raise
            if self.failure == NOT_FAILED:
                self.settle(REQUEUE)
            return
        if not self.note_failure():
            return
        try:
            self.origin.failed(self, error)
        except BaseException:  # whatever it was about to do, the message must not stay here
            self.carry_out(REQUEUE)
            raise

    cdef bint note_failure(self) noexcept:
        """Note that the handler raised; return whether that is the first time."""
        cdef bint first
        with cython.critical_section(self):
            first = self.failure == NOT_FAILED
            if first:
                self.failure = DECIDED
        return first

    cdef bint take(self, bint decided) noexcept:
        """Return whether the caller is to settle the message; `decided`: the caller carries out what was decided."""
        cdef bint left
        with cython.critical_section(self):
            left = not self.settled and (decided or self.failure != DECIDED)
            if left:
                self.settled = True
        return left

    cdef bint settle(self, int verdict) except -1:
        return self.take(False) and self.send_verdict(verdict)

    cdef bint carry_out(self, int verdict) except -1:
        """Settle a message whose handler raised, as was decided."""
        return self.take(True) and self.send_verdict(verdict)

    cdef bint send_verdict(self, int verdict) except -1:
        """Settle a message that was taken."""
        cdef bint done
        cdef ChannelDeliveries channel
        if isinstance(self.origin, ChannelDeliveries):
            channel = <ChannelDeliveries> self.origin
            done = channel.settle_one(self.delivery_tag, verdict, self.sent_as(channel, verdict))
        else:
            done = self.origin.settle(self.delivery_tag, verdict)
        if self.place is not None:
            self.leave_place()
        return done

    def put_back(self):
        """put_back($self)
        --

        Return the message to its queue, because no handler will have it.

        Returns
        -------
        bool
            Whether it was unsettled.

        Notes
        -----
        A message of a queue with a single active consumer is left to the broker, which takes it back when its channel
        is closed; see `ChannelDeliveries`. Any other is requeued. O(1). Safe from any thread.
        """
        return self.return_unhandled()

    cdef bint return_unhandled(self) except -1:
        cdef bint done
        if not isinstance(self.origin, ChannelDeliveries) or not (<ChannelDeliveries> self.origin).single_active:
            return self.settle(REQUEUE)
        done = self.take(False) and (<ChannelDeliveries> self.origin).leave_one(self.delivery_tag)
        if self.place is not None:
            self.leave_place()
        return done

    cdef int leave_place(self) except -1:
        """Give back what a limit counts this as."""
        cdef Place place = self.place
        if place is not None:
            self.place = None
            place.give_back(False)
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self.finish()
        else:
            self.fail(error)

    def __repr__(self):
        # Bodies may be large or secret: never shown.
        state = "settled" if self.settled else "being settled" if self.failure == DECIDED else "unsettled"
        return f"<Message {self.delivery_tag} of queue {self.queue!r}, {len(self.body)} bytes, {state}>"


@cython.final
cdef class HeaderKey:
    """HeaderKey(name, otherwise)
    --

    A key function that returns the value of one header of a message.

    Parameters
    ----------
    name : str
        The header's name.
    otherwise : callable
        Called with a message whose header is not text, or cannot be read without decoding all headers.

    Notes
    -----
    A message without such a header has the key ``""``. O(headers), without decoding them.
    """

    def __cinit__(self, *_args, **_options):
        self.name = b""

    def __init__(self, str name not None, otherwise):
        self.name = name.encode()
        self.otherwise = otherwise

    def __call__(self, Message message not None):
        found = self.shown(message)
        return self.otherwise(message) if found is None else found

    cdef object shown(self, Message message):
        """The header if it shows as text, or "" if there is none; None: it takes Python code to tell."""
        cdef int64_t size = 0
        cdef const uint8_t* at = header_octets(message, &size)
        cdef Properties properties
        cdef Field field
        cdef FieldFound found = FIELD_UNSURE
        if at != NULL:
            if contents_find(at, size, &properties):
                if properties.begin[PROPERTY_HEADERS] < 0:
                    return ""
                found = tables_find(
                    at, properties.begin[PROPERTY_HEADERS], size, <const uint8_t*> PyBytes_AS_STRING(self.name),
                    PyBytes_GET_SIZE(self.name), &field,
                )
        if found == FIELD_MISSING:
            return ""
        if found == FIELD_FOUND and field.kind == b'S':
            try:
                return PyUnicode_DecodeUTF8(<const char*> field.value.data, field.value.length, NULL)
            except UnicodeDecodeError:
                pass
        return None


# From the bytes of a connection to messages ---------------------------------------------------------------------------


cdef int give_message(ChannelDeliveries channel, bytes octets, const Delivery* d) except -1:
    """Make a message of a delivery. All that may run the collector comes before the delivery is booked."""
    cdef Message message = Message.__new__(Message)
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(octets)
    cdef int64_t begin = 0
    # What came together stays together: it costs a message neither memory of its own nor a copy.
    if rarely(not channel.intake.shares(octets, d.body_end - d.method)):
        begin = d.method
        octets = part(at, begin, d.body_end)
    message.method = message.header = octets
    message.method_at, message.method_end = d.method - begin, d.method_end - begin
    message.header_at, message.header_end = d.header - begin, d.header_end - begin
    message.body_at, message.body_end = d.body - begin, d.body_end - begin
    message.delivery_tag = frames_number(at + d.tag, 8)
    message.redelivered = at[d.tag + 8] & 1
    message.origin = channel
    message.slot = channel.queue
    message.cost = 1
    channel.book(message.delivery_tag, d.body_end - d.body)
    channel.intake.append(message)
    channel.look(message.delivery_tag)
    return 0


def give_deliveries(
    bytes buffer not None, int64_t start, int64_t longest, dict sinks not None, dict unfinished not None
):
    """give_deliveries(buffer, start, longest, sinks, unfinished)
    --

    Give the deliveries in a buffer to the sinks of their channels.

    Parameters
    ----------
    buffer : bytes
        What a connection has received.
    start : int
        Where to begin, 0 to ``len(buffer)``.
    longest : int
        Bytes of the longest body that comes in one frame.
    sinks : dict of int to ChannelDeliveries, CollectedDeliveries or callable
        By channel. A callable is called with delivery tag, redelivered (0 or 1), method, content header (both
        undecoded) and body. May change meanwhile.
    unfinished : dict of int to object
        Channels that have a content which is being put together elsewhere: its rest comes first.

    Returns
    -------
    position : int
        Where the deliveries end.
    other : bool
        Whether what follows is, or may be, something else than the beginning of a delivery for a sink.
    frames : int
        Frames that the deliveries were made of.

    Raises
    ------
    Exception
        Whatever a sink raises; the deliveries from that one on are then lost to the caller.

    Notes
    -----
    Complexity O(deliveries). Thread safety: that of the sinks.

    Source: AMQP 0-9-1, sections 4.2.3, 4.2.6 and 1.8.3.13.
    """
    cdef int64_t position = start, frames = 0
    cdef Found what = give(
        buffer, PyBytes_GET_SIZE(buffer), &position, &frames, longest, sinks, unfinished, False,
    )
    return position, what == FOUND_OTHER, frames


cdef Found give(
    bytes octets, int64_t size, int64_t* position, int64_t* frames, int64_t longest, dict sinks, dict unfinished,
    bint only_channels,
) except *:
    """Give the deliveries at a position to the sinks of their channels, move it, and say what follows.

    `only_channels` is for a thread that has borrowed the connection: meanwhile no other adds a channel or takes one
    away. Where it raises, it is the delivery at `position` that failed.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(octets)
    cdef Delivery d
    cdef Found what
    cdef object sink = None
    cdef int64_t known = -1  # the channel whose sink that is, where no other thread changes it meanwhile
    while True:
        what = frames_find(at, size, position[0], longest, &d)
        if what == FOUND_OTHER or (unfinished and d.channel in unfinished):
            return FOUND_OTHER
        if d.channel != known:
            sink = sinks.get(d.channel)
            if sink is None or (only_channels and not isinstance(sink, ChannelDeliveries)):
                return FOUND_OTHER
            known = d.channel if only_channels else -1
        if what != FOUND_WHOLE:
            return what
        if only_channels or isinstance(sink, ChannelDeliveries):
            give_message(<ChannelDeliveries> sink, octets, &d)
        elif isinstance(sink, CollectedDeliveries):
            (<CollectedDeliveries> sink).take(at, &d)
        else:
            sink(
                frames_number(at + d.tag, 8), at[d.tag + 8] & 1, part(at, d.method, d.method_end),
                part(at, d.header, d.header_end), part(at, d.body, d.body_end),
            )
        frames[0] += 3 if d.body != d.body_end else 2
        position[0] = d.end


# Into the worker queues --------------------------------------------------------------------------------------------


@cython.final
cdef class Intake:
    """Intake(worker_queues, counters, policy, *, key, cost, defer, subkey=None)
    --

    Collects the deliveries of one read of the I/O thread and queues them together.

    Parameters
    ----------
    worker_queues : WorkerQueues
        Where they go.
    counters : Counters
        Count what was received.
    policy : AckPolicy
        Told how many deliveries are about to be queued.
    key : callable or None
        Names a message's tenant.
    cost : ConstantCost
        Prices a message.
    defer : callable
        Called with the first delivery of a read, so that `drain` is called after it.
    subkey : callable, optional
        Names whose message it is among those of a slot.

    Notes
    -----
    For the I/O thread alone. One put per read instead of one per message: a put that finds a worker waiting hands
    it the GIL, and a worker that is handed one message at a time would serve them in the order of arrival.
    """

    def __cinit__(self, *_args, **_options):
        self.counters = Counters()
        self.policy = AckPolicy(1)
        self.messages = []
        self.kept = []

    def __init__(
        self, worker_queues, Counters counters not None, AckPolicy policy not None, *, key, cost, defer, subkey=None
    ):
        self.worker_queues = worker_queues
        self.counters = counters
        self.policy = policy
        self.key = key
        self.subkey = subkey
        self.cost = cost
        self.defer = defer
        self.priced = cost.varies

    cdef bint shares(self, bytes octets, int64_t own) except -1:
        """Whether a message with `own` octets of a read is to refer to all of these, instead of a copy of its own."""
        if PyBytes_GET_SIZE(octets) - own <= AROUND_MESSAGE:
            return True
        if <PyObject*> octets != self.octets:
            self.octets = <PyObject*> octets
            self.sharing = self.keep(octets)
        return self.sharing

    cdef bint keep(self, bytes octets) except -1:
        """Note that messages refer to a read, if what others refer to leaves room for it."""
        cdef list kept = self.kept
        cdef Py_ssize_t count = PyList_GET_SIZE(kept)
        cdef int64_t size = PyBytes_GET_SIZE(octets)
        # Some of it may have been queued in the midst of it. Noted twice, it would never be without references.
        if count and <PyObject*> PyList_GET_ITEM(kept, count - 1) == <PyObject*> octets:
            return True
        self.forget_unused()
        if self.kept_size + size > MOST_KEPT or PyList_GET_SIZE(kept) >= MOST_READS:
            return False
        kept.append(octets)
        self.kept_size += size
        return True

    cdef int forget_unused(self) except -1:
        """Let go of reads to which no message refers any more, among the next few."""
        cdef list kept = self.kept
        cdef Py_ssize_t i = self.looked_at
        cdef int _n
        for _n in range(min(PyList_GET_SIZE(kept), <Py_ssize_t> READS_LOOKED_AT)):
            i = (i if 0 < i <= PyList_GET_SIZE(kept) else PyList_GET_SIZE(kept)) - 1
            # One reference is the list's.
            if _Py_REFCNT(PyList_GET_ITEM(kept, i)) == 1:
                self.kept_size -= PyBytes_GET_SIZE(<object> PyList_GET_ITEM(kept, i))
                last = kept.pop()
                if i < PyList_GET_SIZE(kept):
                    kept[i] = last
        self.looked_at = i
        return 0

    cdef int append(self, Message message) except -1:
        """Take a message: the first thing that happens after it was booked."""
        cdef bint first = len(self.messages) == 0
        if first:
            # One reading of the clock for all that one read brings.
            self.now = monotonic()
        message.arrived = self.now
        self.messages.append(message)
        if first and not self.borrowed:
            self.defer()
        return 0

    def drain(self):
        """drain($self)
        --

        Queue what was taken since the last call.
        """
        cdef list messages, costs
        cdef Message message
        self.octets = NULL  # another read may come to be where this one was
        if len(self.messages) == 0:
            return
        messages = []  # made first: that may run finalizers, and other threads
        messages, self.messages = self.messages, messages
        if self.key is not None:
            for message in messages:
                message.slot = self.key(message)
        if self.subkey is not None:
            for message in messages:
                message.subkey = self.subkey(message)
        costs = self.prices(messages) if self.priced else None
        self.counters.count(COUNT_RECEIVED, len(messages))
        ackpolicy_note_here(&self.policy.state, self.policy.state.here + len(messages))
        slots = [(<Message> one).slot for one in messages]
        if self.subkey is None:
            refused = self.worker_queues.put_many(slots, messages, costs)
        else:
            refused = self.worker_queues.put_many(slots, messages, costs, [(<Message> one).subkey for one in messages])
        for message in refused:
            (<Message> message).return_unhandled()

    cdef bint queue_all(self, FairQueue worker_queue) except -1:
        """Queue what was taken, where nothing has a price of its own; False, and nothing is: it takes Python code."""
        cdef list messages = []
        cdef Message message
        if self.key is not None:
            for message in self.messages:
                slot = (<HeaderKey> self.key).shown(message)
                if slot is None:
                    return False
                message.slot = slot
        if self.subkey is not None:
            for message in self.messages:
                subkey = (<HeaderKey> self.subkey).shown(message)
                if subkey is None:
                    return False
                message.subkey = subkey
        messages, self.messages = self.messages, messages
        self.octets = NULL  # another read may come to be where this one was
        if len(messages) == 0:
            return True
        self.counters.count(COUNT_RECEIVED, len(messages))
        ackpolicy_note_here(&self.policy.state, self.policy.state.here + len(messages))
        try:
            if self.subkey is None:
                worker_queue.put_many(slots_of(messages), messages)
            else:
                subkeys = [(<Message> one).subkey for one in messages]
                worker_queue.put_many(slots_of(messages), messages, subkeys=subkeys)
        except ShutDown:
            for message in messages:
                message.return_unhandled()
        return True

    cdef list prices(self, list messages):
        cdef list costs = []
        cdef Message message
        for message in messages:
            message.cost = self.cost.estimate(message)
            costs.append(message.cost)
        return costs


cdef object slots_of(list messages):
    """The slot of each of some messages, as `FairQueue.put_many` takes them: a list, or the one text that all have."""
    cdef object first = (<Message> <object> PyList_GET_ITEM(messages, 0)).slot
    cdef Message message
    if type(first) is str:
        for message in messages:
            if message.slot is not first:
                break
        else:
            return first
    return [(<Message> one).slot for one in messages]


# Read and written by threads that consume -----------------------------------------------------------------------------


@cython.final
@cython.no_gc_clear
cdef class LentConnection:
    """LentConnection(intake, worker_queue, wake)
    --

    A connection that its I/O thread lends, while it waits, to the threads that consume.

    A fast handler has its settlements sent, and reads what they make room for, without another thread: to wake one,
    and to be woken by it, costs as much as to handle dozens of messages.

    Parameters
    ----------
    intake : Intake
        Gets what is read.
    worker_queue : FairQueue or None
        Where `intake` queues everything, by no keys or by `HeaderKey`. None: the I/O thread alone reads.
    wake : callable
        Wakes the I/O thread, in whatever thread it is called.

    Attributes
    ----------
    fd : int
        The socket; -1: there is none that could be lent.
    transport : Transport or None
        The connection.
    fast : float
        A thread that asks for messages again within so many seconds reads the socket itself, and waits at most that
        long for data. A thread that takes messages only now and then, many at a time, sets it to more than its pause.

    Notes
    -----
    One thread has the connection: the I/O thread, whenever it does not wait in its poll; meanwhile `lend` lets others
    borrow it, one at a time, for one write or one read. A borrower runs no Python code, so nothing interrupts it
    between what it reads from the socket and its queues. It leaves to the I/O thread, and wakes it: all frames but
    deliveries, from the first on; what the socket does not take; a key that takes Python code; a window that is full,
    whose slot may have to be held; errors. Until that is done no thread borrows it.

    A thread that reads has the I/O thread not woken by what comes (`unwatch`), and undoes that when it is slow or waits
    for messages (`watch`). The I/O thread undoes it if no thread looked for as long as a settlement waits: a timer
    wakes it.

    `lend`, `take_back` and the methods with a descriptor are for the I/O thread, the rest is safe from any thread.
    O(1), and O(messages) for those read. A thread that ends the intake calls `withdraw` first: a fast handler would
    have one window after the other, and settle it, before the I/O thread has the GIL to cancel its consumers.

    Source: Schmidt, O'Ryan, Pyarali, Kircher and Buschmann, "Leader/Followers: A Design Pattern for Efficient
    Multi-threaded Event Demultiplexing and Dispatching".
    """

    def __cinit__(self, *_args, **_options):
        self.fd = self.epoll = -1
        self.fast = FAST
        self.unsent = b""
        self.later = []
        self.intake = Intake.__new__(Intake)
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError()
        PyThread_acquire_lock(self.lock, WAIT_LOCK)  # for the I/O thread

    def __init__(self, Intake intake not None, FairQueue worker_queue, wake):
        self.intake = intake
        self.worker_queue = worker_queue
        self.wake = wake

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    # The I/O thread ------------------------------------------------------------------------------------------------

    def connect(self, transport, int fd, int epoll, uint32_t events, int64_t longest):
        """connect($self, transport, fd, epoll, events, longest)
        --

        Note the socket of a connection, by which epoll, for which events of it, the I/O thread is woken, and how long a
        body is at most that comes in one frame.
        """
        if SOCKETS_LEND:
            self.transport = transport
            self.longest = longest
            with cython.critical_section(self):
                self.fd, self.epoll, self.events, self.unwatched = fd, epoll, events, False

    def wait_for(self, uint32_t events):
        """wait_for($self, events)
        --

        Note the events that the I/O thread now wants to be woken for.

        Raises
        ------
        OSError
            The socket has none.
        """
        cdef int error
        with cython.critical_section(self):
            self.events = events
            error = sockets_watch(self.epoll, self.fd, events & ~READABLE if self.unwatched else events)
        if error:
            raise OSError(error, "epoll_ctl failed")

    def forget(self):
        """forget($self)
        --

        Note that the socket is about to be closed.
        """
        with cython.critical_section(self):
            self.fd = self.epoll = -1
            self.unwatched = False
        self.usable = self.readable = False

    def lend(self, bint usable, bint readable):
        """lend($self, usable, readable)
        --

        Let others send on the connection, and read from it, if that is possible now, until `take_back`.
        """
        self.usable = usable and self.fd >= 0
        self.readable = self.usable and readable and self.worker_queue is not None
        if not self.readable:
            self.watch()
        PyThread_release_lock(self.lock)

    def take_back(self):
        """take_back($self)
        --

        Have the connection again, and do what was left to the I/O thread.
        """
        cdef list later = []
        self.usable = self.readable = False  # from now on no other thread borrows it
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)
        if self.unwatched and monotonic() - self.looked > max(SLEEPY, self.fast):
            self.watch()
        if self.received_size or self.sent_size:
            self.transport.count(
                self.received_size, self.received_frames, self.sent_size, self.sent_size // SETTLEMENT_SIZE
            )
            self.received_size = self.received_frames = self.sent_size = 0
        later, self.later = self.later, later
        for call in later:
            call[0](*call[1:])
        if self.left:
            self.left = False
            unsent, self.unsent = self.unsent, b""
            error, self.error = self.error, None
            if error is not None:
                raise error
            self.transport.go_on(unsent)

    # From any thread -----------------------------------------------------------------------------------------------

    def withdraw(self):
        """withdraw($self)
        --

        Lend it never again. What a thread that borrows it has begun, it ends; the I/O thread has to be woken.
        """
        self.withdrawn = True

    cdef bint borrow(self) noexcept:
        if not self.usable or self.withdrawn or not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return False
        if self.usable and not self.withdrawn:
            self.borrowed = True
            return True
        PyThread_release_lock(self.lock)
        return False

    cdef bint tell(self, tuple call) except -1:
        """Call a function with arguments; while this is borrowed, have the I/O thread call it, and return True."""
        if self.borrowed:
            self.later.append(call)
            return True
        call[0](*call[1:])
        return False

    cdef int give_back(self) except -1:
        cdef bint left = self.left
        if left:
            self.usable = self.readable = False
        self.borrowed = False
        PyThread_release_lock(self.lock)
        return self.wake_up() if left else 0

    cdef int wake_up(self) except -1:
        """Wake the I/O thread, also if that is interrupted."""
        interrupted = None
        while True:
            try:
                self.wake()
                break
            except Exception:
                raise
            except BaseException as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted
        return 0

    cdef bint send(self, Settlements settlements) except -1:
        """Send what is settled; False if that is for the I/O thread."""
        cdef bint all_sent = True
        # Its timer rests while nothing is settled, and has to be woken.
        if settlements.policy.state.period > ACKS_PERIOD or not self.borrow():
            return False
        try:
            ackpolicy_sending(&settlements.policy.state, monotonic())
            all_sent = self.send_all(settlements, settlements.taken_unsent())
        except BaseException as error:  # what was taken and not sent would be lost: the connection must end
            self.left, self.error = True, error
        finally:
            self.give_back()
        return all_sent

    cdef bint send_all(self, Settlements settlements, list channels) except -1:
        """Send what is settled on this connection; False if there is more, on others."""
        cdef bytes frames
        cdef int64_t sent
        cdef bint others = False
        if len(channels) == 1:
            frames = (<ChannelDeliveries> channels[0]).taken_frames()
        else:
            frames = b"".join([(<ChannelDeliveries> channel).taken_frames() for channel in channels])
        for channel in channels:
            if (<ChannelDeliveries> channel).alive and not (<ChannelDeliveries> channel).number:
                settlements.note_unsent(<ChannelDeliveries> channel)
                others = True
        if frames:
            sent = sockets_send(self.fd, PyBytes_AS_STRING(frames), PyBytes_GET_SIZE(frames))
            self.sent_size += PyBytes_GET_SIZE(frames)
            if sent < PyBytes_GET_SIZE(frames):
                self.left = True
                self.unsent = frames[sent:]
        return not others

    cdef bint fetch(self, bint wait) except -1:
        """Read what has come, or comes soon; True if that were messages."""
        cdef double now = monotonic()
        cdef bint fast = now - self.looked < self.fast
        cdef int found
        self.looked = now
        if not (fast and self.readable) or self.sleepers:
            if self.unwatched:
                self.watch()
            return False
        found = self.read()
        if found == 0 and wait:
            found = self.wait(<int64_t> min(<double> BRIEF, 1e6 * (now - self.waited)))
        return found > 0

    cdef bint has(self, int64_t count) except -1:
        """Whether so many messages of the only queue are here, and what else comes can be left in the socket for now.

        What is read long before it is handed out has left the processor's cache by then.
        """
        cdef double now
        if (
            self.worker_queue is None or self.worker_queue.table.queued < count or not self.unwatched
            or self.intake.key is not None
        ):
            return False
        now = monotonic()
        if now - self.emptied > max(SLEEPY, self.fast) or now - self.looked > self.fast:
            return False
        if len(self.transport.sinks) != 1:
            return False
        self.looked = now
        return True

    cdef int wait(self, int64_t brief) except -2:
        """Wait for something to read, so many microseconds of it with the GIL; as `read`."""
        cdef int found = 0, fd
        if sockets_wait(self.fd, brief):
            found = self.read()
        if found == 0:
            fd = self.fd  # with the exclusion: the I/O thread may change it
            with nogil:
                sockets_wait(fd, <int64_t> (1e6 * self.fast))
            found = self.read()
        self.waited = monotonic()
        return found

    cdef int read(self) except -2:
        """Read once. 1: there were messages, 0: nothing is there, -1: it is for the I/O thread to read."""
        if not self.readable or not self.borrow():
            return -1
        try:
            self.intake.borrowed = True
            return self.read_borrowed()
        finally:
            self.intake.borrowed = False
            self.give_back()

    cdef int read_borrowed(self) except -2:
        cdef bytes rest = self.transport.incomplete
        cdef int64_t size = PyBytes_GET_SIZE(rest), received
        cdef char* at
        if not self.readable or len(self.intake.messages) or 2 * size > ROOM:
            return -1
        if not self.unwatched:
            self.unwatch()
        if self.block is None:
            self.intake.forget_unused()  # whose memory this may be, still in the cache
            self.block = PyBytes_FromStringAndSize(NULL, ROOM)
        at = PyBytes_AS_STRING(self.block)
        memcpy(at, PyBytes_AS_STRING(rest), size)
        self.emptied = self.looked
        received = sockets_receive(self.fd, at + size, ROOM - size)
        if received == RECEIVED_NOTHING:
            return 0
        if received <= 0:  # which the I/O thread finds too
            self.readable = False
            self.watch()
            return -1
        return self.take(size + received)

    cdef bytes read_octets(self, int64_t size):
        """Return the octets read, for messages to keep: the block if they are the larger part of it, or else a copy."""
        cdef bytes block = self.block
        if 2 * size < ROOM:
            return part(<const uint8_t*> PyBytes_AS_STRING(block), 0, size)
        self.block = None
        return block

    cdef int take(self, int64_t size) except -1:
        """Queue the deliveries at the beginning of what was read, and keep the rest; 1 if there were any."""
        cdef bytes octets
        cdef int64_t position = 0
        cdef Found what = FOUND_OTHER
        try:
            octets = self.read_octets(size)
            try:
                what = give(
                    octets, size, &position, &self.received_frames, self.longest, self.transport.sinks,
                    self.transport.unfinished, True,
                )
            except Exception:
                self.left = True  # there it fails again
            self.received_size += position
            self.keep(octets, position, size, what)
            # That a window is full is known before its last message is handed out: its slot may have to be held.
            if self.filled or not self.intake.queue_all(self.worker_queue):
                self.left = True
            self.filled = False
        except BaseException as error:
            self.left, self.error = True, error
        return position > 0

    cdef int keep(self, bytes octets, int64_t position, int64_t size, Found what) except -1:
        """Keep what is no whole delivery for the next read; a whole frame that is none is for the I/O thread."""
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(octets)
        cdef int64_t left = size - position
        self.transport.incomplete = part(at, position, size)
        if what == FOUND_OTHER and left >= FRAME_HEAD:
            if FRAME_HEAD + <int64_t> frames_number(at + position + 3, 4) < left:
                self.left = True
        if 2 * left > ROOM:
            self.readable = False
            self.watch()
        return 0

    def __enter__(self):
        self.rest()

    def __exit__(self, _kind, _error, _traceback):
        self.rise()

    cdef int rest(self) except -1:
        """Have the I/O thread read, while this one waits for messages."""
        with cython.critical_section(self):
            self.sleepers += 1
        return self.watch()

    cdef int rise(self) except -1:
        with cython.critical_section(self):
            self.sleepers -= 1
        return 0

    cdef int watch(self) except -1:
        """Have the I/O thread woken by what comes."""
        with cython.critical_section(self):
            if self.unwatched:
                self.unwatched = False
                sockets_watch(self.epoll, self.fd, self.events)
        return 0

    cdef int unwatch(self) except -1:
        with cython.critical_section(self):
            if not self.sleepers and sockets_watch(self.epoll, self.fd, self.events & ~READABLE) == 0:
                self.unwatched = True
        return 0
