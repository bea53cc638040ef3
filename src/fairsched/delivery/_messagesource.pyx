"""Out of the worker queues, to the workers: taking messages, calling handlers, and counting how long that took."""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.time cimport monotonic, perf_counter
from cpython.time cimport time as wall_clock
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.ackledger cimport VERDICT_REQUEUE as REQUEUE
from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, PROPERTY_TIMESTAMP, Properties, contents_find, contents_number,
)
from fairsched.core.delay.buckets cimport buckets_add
from fairsched.delivery._counters cimport AGE_TICKS, Durations
from fairsched.delivery._delivery cimport ChannelDeliveries, LentConnection, Message, Settlements, header_octets
from fairsched.delivery._settling cimport BY_USER, settle_some
from fairsched.scheduling._fairqueue cimport FairQueue, Place
from fairsched.scheduling._numbers cimport as_priority

from queue import Empty
from time import get_clock_info

from fairsched.errors import ShutDown

#: Whether `perf_counter` and `monotonic` read one clock; not so on Windows before Python 3.13.
cdef bint ONE_CLOCK = get_clock_info("perf_counter").implementation == get_clock_info("monotonic").implementation

cdef double SOON = 0.0001  # a thread that takes messages looks about so often whether more have come, in seconds

cdef enum:
    LONG = 2_000_000   # a handler that ran longer, in nanoseconds, has its settlement sent at once
    LOOK_AFTER = 1000  # handled messages after which measured round trip and handler time are held against the windows
    SLOW = 5_000_000   # of slower handlers, in nanoseconds, it is looked how long their messages wait here
    OFTEN = 32         # messages taken after which it is looked, at the latest, whether more have come
    HAS_TIMESTAMP = 0x8000 >> PROPERTY_TIMESTAMP  # in the second octet of the flags of properties
    NOT_NOW = -1       # no time at which a message was handed out


def call(handler, Message message not None):
    """call(handler, message)
    --

    Call a plain handler and settle the message by the outcome; an `Exception` of the handler does not propagate.

    Raises
    ------
    ConfigurationError
        If the handler returns a coroutine or a generator.
    BaseException
        An exception of the handler that is not an `Exception`.
    """
    call_handler(handler, message)


cdef int call_handler(object handler, Message message) except -1:
    try:
        result = handler(message)
    except Exception as error:
        message.fail(error)
    except BaseException as error:
        message.fail(error)
        raise
    else:
        message.finish_with(result)
    return 0


@cython.no_gc_clear
cdef class MessageSource:
    """MessageSource()
    --

    Where workers get their messages from; the base of `fairsched.consumer.client.Client`, which has the methods that
    raise NotImplementedError here.

    Attributes
    ----------
    returning : bool
        Whether what is buffered goes back to its queues, and nothing more is handed out.
    stopped : bool
        Whether it is about to end.
    shedding : Shedding or None
        Asked about each message that is taken.
    on_redelivered : callable or None
        Called with each message taken that was delivered before; returns True if it was settled, and is not to be
        handled.
    service_ns : float
        Nanoseconds for which handlers ran, in the mean of the last hundred.
    handled_count : int
        Messages that were handled.
    deferring : bool
        Whether a handler deferred its message.

    Notes
    -----
    Safe from any thread, once `prepare` was called. O(1) a message.
    """

    def __cinit__(self, *_args, **_options):
        self.settlements = Settlements.__new__(Settlements)

    def check_process(self):
        """Raise RuntimeError in a child of the process that started the consumer."""
        raise NotImplementedError()

    def give_way(self):
        """Let the I/O thread send what it was asked to."""
        raise NotImplementedError()

    def charge(self, worker_queue, message, difference):
        """Correct what a slot of a worker queue was charged for a message."""
        raise NotImplementedError()

    def account(self, worker_queue, message, elapsed):
        """Charge and measure the nanoseconds that a message's handler took."""
        raise NotImplementedError()

    def look_at_windows(self):
        """Hold the windows against what was measured."""
        raise NotImplementedError()

    def look_at_wait(self, message):
        """Look how long messages wait here, because one was handled slowly."""
        raise NotImplementedError()

    def prepare(self, Settlements settlements not None, bint measures):
        """prepare($self, settlements, measures)
        --

        Say which object is told of settlements, and whether `account` is to be called for each message that was
        handled.
        """
        self.settlements = settlements
        self.measures = measures

    def time_messages(self):
        """time_messages($self)
        --

        Count from now on how long messages take, in `Counters.durations`; to be called again now and then, since that
        is when the clocks are compared.
        """
        self.wall = wall_clock() - monotonic()
        self.timing = True

    def try_get(self, worker_queue, priority=0):
        """try_get($self, worker_queue, priority=0)
        --

        The next message of a worker queue that came on a living channel, or None if there is none for us now.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        cdef Message message = self.taken(worker_queue, priority)
        if self.timing and message is not None:
            note_durations(self, message, monotonic(), -1)
        return message

    cdef Message taken(self, object worker_queue, object priority):
        cdef FairQueue fair = <FairQueue?> worker_queue
        cdef int rank = as_priority(priority)
        cdef Message message
        cdef Place place = None
        self.turns += 1
        if self.turns >= self.next_look:  # before a message is taken: this may raise
            self.look_for_more()
        while True:
            if self.returning:
                self.check_process()
                raise ShutDown("the consumer was stopped")
            if fair.limits.on:
                place = Place.__new__(Place)
            message = fair.take(rank, None, place)
            if message is None or self.is_usable(worker_queue, message):
                if place is not None and message is not None:
                    message.place = place
                return message
            if place is not None:
                place.give_back(True)

    def get(self, worker_queue, timeout=None, priority=0):
        """get($self, worker_queue, timeout=None, priority=0)
        --

        The next message of a worker queue, waiting for it; None if the time is over.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        cdef FairQueue fair = <FairQueue?> worker_queue
        cdef int rank = as_priority(priority)
        cdef Settlements settlements = self.settlements
        cdef Message message
        cdef Place place
        while True:
            message = self.taken(worker_queue, priority)
            if message is not None:
                return message
            # About to wait: the broker may be waiting too, for what is settled but not sent.
            settlements.send_soon()
            if settlements.lent.fetch(True):
                continue
            place = Place.__new__(Place)  # also without a limit: one may be set while this thread waits
            settlements.lent.rest()
            try:
                message = fair.take_in_time(timeout, rank, place)
            except Empty:
                return None
            finally:
                settlements.lent.rise()
            if self.returning:
                message.return_unhandled()
            elif self.is_usable(worker_queue, message):
                if place.queue is not None:
                    message.place = place
                return message
            place.give_back(True)

    def try_get_many(self, worker_queue, Py_ssize_t limit):
        """try_get_many($self, worker_queue, limit)
        --

        The next messages of a worker queue, as `try_get` finds them: a list of `limit` at most, empty if there are none
        now.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        return self.take_more(worker_queue, [], limit)

    def get_many(self, worker_queue, Py_ssize_t limit, timeout):
        """get_many($self, worker_queue, limit, timeout)
        --

        The next messages of a worker queue, waiting for the first as `get` does: an empty list if the time is over.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        cdef list found = self.take_more(worker_queue, [], limit)
        if not found:
            message = self.get(worker_queue, timeout)
            if message is not None:
                found = self.take_more(worker_queue, [message], limit)
        return found

    cdef int look_for_more(self) except -1:
        """Read what has come; and again after so many messages that about 0.1 ms passes, or `OFTEN` at most."""
        cdef LentConnection lent = self.settlements.lent
        cdef double last = lent.looked
        lent.fetch(False)
        self.turns = 0
        self.next_look = min(OFTEN, 2 * self.next_look + 1) if lent.looked - last < SOON else self.next_look // 4
        return 0

    cdef list take_more(self, object worker_queue, list found, Py_ssize_t limit):
        """Add messages of a worker queue; raise ShutDown only if there are none."""
        cdef Message message
        try:
            if self.shedding is None:
                self.take_all(<FairQueue?> worker_queue, found, limit)
            while PyList_GET_SIZE(found) < limit:
                message = self.taken(worker_queue, 0)
                if message is None:
                    break
                found.append(message)
        except BaseException as error:
            if not found or not isinstance(error, ShutDown) or self.returning:
                settle_some(found, REQUEUE, BY_USER)
                raise
        if self.timing:
            self.note_begins(found)
        return found

    cdef int take_all(self, FairQueue worker_queue, list found, Py_ssize_t limit) except -1:
        """Add messages of a worker queue without limits, looking at channels only; read as long as that brings more."""
        cdef Py_ssize_t before = -1
        while before < PyList_GET_SIZE(found) < limit:
            before = PyList_GET_SIZE(found)
            if not self.settlements.lent.has(limit - before):
                self.look_for_more()
            # Asked here, and each time: what was read, or whether a channel lives, may have run code that set one.
            if self.returning or worker_queue.limits.on:
                return 0
            worker_queue.take_more(found, limit)
            self.leave_usable(worker_queue, found, before)
        return 0

    cdef int leave_usable(self, FairQueue worker_queue, list found, Py_ssize_t begin) except -1:
        """Leave out of a list, from there on, what `is_usable` says is not to be handled; where nothing is shed."""
        cdef Message message
        cdef bint asks
        cdef ChannelDeliveries living = None  # no Python code has run since it was seen to be
        while begin < PyList_GET_SIZE(found):
            message = <Message?> <object> PyList_GET_ITEM(found, begin)
            asks = self.on_redelivered is not None and message.redelivered
            if living is not None and message.origin is living and not asks:
                begin += 1
            elif self.is_usable(worker_queue, message):
                living = None
                if not asks and isinstance(message.origin, ChannelDeliveries):
                    living = <ChannelDeliveries> message.origin
                begin += 1
            else:
                living = None
                found.pop(begin)
        return 0

    def living(self, worker_queue, list messages not None):
        """living($self, worker_queue, messages)
        --

        Those messages of a worker queue that came on a living channel: a list. For the others no slot is charged.
        """
        cdef Message message
        cdef list found = [], gone = []
        for message in messages:
            (found if message.origin.alive else gone).append(message)
        for message in gone:
            self.charge(worker_queue, message, -message.cost)
        return found

    cdef bint is_usable(self, object worker_queue, Message message) except -1:
        """Whether a message just taken is one to handle; if not, its slot was charged for nothing."""
        cdef object origin = message.origin
        # Its channel may be gone, and the broker delivers it again, or about to be closed; or it has had all its
        # attempts; or it waited too long, and was sent back.
        if (<ChannelDeliveries> origin).alive if isinstance(origin, ChannelDeliveries) else origin.alive:
            if isinstance(origin, ChannelDeliveries) and (<ChannelDeliveries> origin).leaving:
                message.return_unhandled()
            elif self.on_redelivered is not None and message.redelivered and self.is_settled_again(message):
                pass
            elif self.shedding is None or not self.is_returned(worker_queue, message):
                return True
        self.charge(worker_queue, message, -(<object> message.cost))
        return False

    cdef bint is_returned(self, object worker_queue, Message message) except -1:
        """Whether a message waited too long; one that this fails with is requeued: no other code has it."""
        try:
            return self.shedding.returns(worker_queue, message.slot, message)
        except BaseException:
            message.settle(REQUEUE)
            raise

    cdef bint is_settled_again(self, Message message) except -1:
        """Whether a redelivered message is settled instead of handled; one that this fails with is requeued."""
        try:
            return self.on_redelivered(message)
        except BaseException:
            message.carry_out(REQUEUE)  # also if it was about to be settled as one that failed
            raise

    def messages(self, worker_queue, slice, over):
        """messages($self, worker_queue, slice, over)
        --

        Yield the messages of a worker queue until there will be none, or `over()`, which is asked every `slice`
        seconds.
        """
        cdef Settlements settlements = self.settlements
        cdef Message message
        try:
            while not over():
                message = self.get(worker_queue, slice)
                while message is not None:
                    if self.timing:
                        note_durations(self, message, monotonic(), -1)
                    yield message
                    if settlements.flush_requested:
                        self.give_way()
                    if self.stopped and over():
                        return
                    message = self.taken(worker_queue, 0)
        except ShutDown:
            return
        finally:
            settlements.lent.watch()

    def serve(self, worker_queue, handler, priority):
        """serve($self, worker_queue, handler, priority)
        --

        Give the messages of a worker queue to a plain handler, and settle each, until there will be none.
        """
        cdef Settlements settlements = self.settlements
        cdef Message message
        cdef double begin
        cdef int64_t elapsed
        while True:
            try:
                message = self.taken(worker_queue, priority)
                if message is None:
                    message = self.get(worker_queue, None, priority)
            except ShutDown:
                return
            if message is None:
                continue
            begin = perf_counter()
            call_handler(handler, message)
            elapsed = <int64_t> ((perf_counter() - begin) * 1e9)
            self.note_handled(worker_queue, message, elapsed)
            if self.timing:
                note_durations(self, message, begin if ONE_CLOCK else monotonic() - 1e-9 * elapsed, elapsed)
            if settlements.flush_requested:
                self.give_way()

    def handled(self, worker_queue, Message message not None, int64_t elapsed):
        """handled($self, worker_queue, message, elapsed)
        --

        Note that the handler of a worker queue's message took `elapsed` nanoseconds.
        """
        self.note_handled(worker_queue, message, elapsed)
        if self.timing:
            note_durations(self, message, NOT_NOW, elapsed)

    def handled_many(self, worker_queue, list messages not None, int64_t elapsed):
        """handled_many($self, worker_queue, messages, elapsed)
        --

        Note that a worker queue's messages took `elapsed` nanoseconds together: an equal part each.
        """
        cdef Message message
        cdef int64_t each
        messages = messages[:]
        if messages:
            each = self.note_time(elapsed, len(messages))
            for message in messages:
                self.note_one(worker_queue, message, each)
                if self.timing:
                    note_durations(self, message, NOT_NOW, each)

    cdef int note_handled(self, object worker_queue, Message message, int64_t elapsed) except -1:
        self.note_one(worker_queue, message, self.note_time(elapsed, 1))
        return 0

    cdef int64_t note_time(self, int64_t elapsed, int64_t count) except? -1:
        """Count messages that took so long together; return how long each took."""
        cdef int64_t each = elapsed // count, before = self.handled_count
        # Several workers may lose an update here; the mean and the moment of the look need not be exact.
        self.handled_count = before + count
        self.service_ns += (each - self.service_ns) * min(1.0, <double> count / min(100, self.handled_count))
        if before < LOOK_AFTER <= self.handled_count:
            self.look_at_windows()
        if elapsed > LONG:
            self.settlements.send_soon()
        return each

    cdef int note_one(self, object worker_queue, Message message, int64_t elapsed) except -1:
        if self.measures:
            self.account(worker_queue, message, elapsed)
        if message.deferred:
            self.deferring = True
        elif elapsed > SLOW:
            self.look_at_wait(message)
        return 0

    cdef int note_begins(self, list messages) except -1:
        """Count messages that are handed out together, now."""
        cdef double now = monotonic()
        for message in messages[:]:
            note_durations(self, <Message?> message, now, -1)
        return 0


# How long messages take -----------------------------------------------------------------------------------------------


cdef inline int note_durations(MessageSource source, Message message, double begin, int64_t elapsed) except -1:
    """Count a message that was handed out at a time, unless that is NOT_NOW, and handled for so long, unless negative.

    What came by no channel of ours counts nowhere.
    """
    cdef ChannelDeliveries channel
    cdef Durations durations
    cdef uint64_t born
    if not isinstance(message.origin, ChannelDeliveries):
        return 0
    channel = <ChannelDeliveries> message.origin
    if channel.durations is None:
        channel.durations = source.settlements.counters.durations_of(channel.queue)
    durations = channel.durations
    born = timestamp_of(message) if begin != NOT_NOW else 0
    with cython.critical_section(durations):
        if begin != NOT_NOW:
            buckets_add(&durations.sojourn, <int64_t> ((begin - message.arrived) * 1e9))
        if elapsed >= 0:
            buckets_add(&durations.service, elapsed)
        if born:
            buckets_add(&durations.age, <int64_t> (min(source.wall + begin - <double> born, 4e9) * AGE_TICKS))
    return 0


cdef inline uint64_t timestamp_of(Message message) except? 0:
    """The time at which the publisher says that it made the message, in seconds since 1970; 0: it does not say."""
    cdef int64_t size = 0
    cdef const uint8_t* at = header_octets(message, &size)
    if at == NULL:
        found = getattr(message.header, "timestamp", None)
        return found if isinstance(found, int) and 0 <= found < 1 << 63 else 0
    # Most have none, and a look at the flags says so.
    return timestamp_in(at, size) if size > CONTENT_HEAD + 1 and at[CONTENT_HEAD + 1] & HAS_TIMESTAMP else 0


cdef uint64_t timestamp_in(const uint8_t* header, int64_t size) noexcept:
    cdef Properties properties
    if not contents_find(header, size, &properties):
        return 0
    return contents_number(header, &properties, PROPERTY_TIMESTAMP, 0)
