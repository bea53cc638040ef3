"""Published messages: encoded as frames, and kept in a window until the broker has confirmed them."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fairsched.amqp._properties cimport short_text
from fairsched.core.amqp.contents cimport CONTENT_HEAD, Content
from fairsched.core.amqp.publish cimport (
    Confirm, Window, confirm_find, publish_decode, publish_encode, publish_frame, publish_size, window_add,
    window_again, window_at, window_clear, window_confirmed, window_init, window_may_send, window_settle,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE
from fairsched.scheduling._numbers cimport as_timeout

import _thread

from fairsched.errors import PublishFailed

cdef enum:
    #: A body that is at least this long is copied without the GIL.
    LARGE_BODY = 1 << 16
    #: Failed messages that are remembered for the text of an error.
    REMEMBERED = 8

    #: There is but one channel on a publisher's connection.
    CHANNEL = 1

cdef enum Admission:
    ADMITTED
    NO_ROOM
    OTHER_FRAMES     # the connection has another frame size meanwhile
    NO_MEMORY

cdef enum ConfirmationState:
    UNCONFIRMED
    CONFIRMED
    FAILED


cdef class Confirmation


cdef struct SettledOne:
    void* token      # a reference that the window held
    bint refused

cdef struct Settled:  # confirmations that were removed from the window, and are not yet notified
    SettledOne* settled
    uint64_t count

cdef inline void settled_init(Settled* s) noexcept nogil:
    s.settled = NULL
    s.count = 0

cdef inline bint settled_reserve(Settled* s, uint64_t most) noexcept nogil:
    s.settled = <SettledOne*> malloc((most + 1) * sizeof(SettledOne))
    return s.settled != NULL

cdef inline void settled_add(Settled* s, void* token, bint refused) noexcept nogil:
    if token != NULL:
        s.settled[s.count] = SettledOne(token, refused)
        s.count += 1

cdef inline void settled_take(Settled* s, Window* w, const Confirm* c) noexcept nogil:
    """Remove the messages that a confirm covers from a window."""
    cdef uint64_t position = 0, end = window_confirmed(w, c, &position)
    while position < end:
        settled_add(s, window_settle(w, position), c.refused)
        position += 1


cdef inline void use_text(object text, str name, const uint8_t** found, int64_t* size) except *:
    cdef Py_ssize_t length
    found[0] = <const uint8_t*> short_text(text, name, &length)
    size[0] = length


cdef bytes encoded_content(const Content* c, uint32_t channel, int64_t longest):
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, publish_size(c, longest))
    cdef uint8_t* to = <uint8_t*> PyBytes_AS_STRING(encoded)
    if c.body_size < LARGE_BODY:
        publish_encode(c, channel, longest, to)
    else:
        with nogil:
            publish_encode(c, channel, longest, to)
    return encoded


def encode_message(
    str exchange not None, str routing_key not None, bytes properties not None, bytes body not None, bint mandatory,
    int channel, int64_t longest,
):
    """encode_message(exchange, routing_key, properties, body, mandatory, channel, longest)
    --

    Encode a message as frames.

    Parameters
    ----------
    exchange, routing_key : str
        The exchange to publish to, and the routing key.
    properties : bytes
        The properties, encoded by `encode_properties`.
    body : bytes
        The body.
    mandatory : bool
        Whether the broker returns the message if it cannot be routed to a queue.
    channel : int
        The channel number.
    longest : int
        Maximum payload size of a frame in bytes; positive.

    Returns
    -------
    bytes
        basic.publish, content header and body frames.

    Raises
    ------
    ValueError
        If a name is too long, or cannot be encoded as UTF-8.

    Notes
    -----
    Complexity O(length). Thread safety: a pure function.

    Source: AMQP 0-9-1, sections 4.2.3, 4.2.6 and 1.8.3.10.
    """
    cdef Content c
    if longest <= 0:
        raise ValueError(f"longest must be positive, got {longest}")
    use_text(exchange, "exchange", &c.exchange, &c.exchange_size)
    use_text(routing_key, "routing_key", &c.key, &c.key_size)
    c.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
    c.properties_size = PyBytes_GET_SIZE(properties)
    c.body = <const uint8_t*> PyBytes_AS_STRING(body)
    c.body_size = PyBytes_GET_SIZE(body)
    c.mandatory = mandatory
    return encoded_content(&c, channel, longest)


async def settled(Confirmation confirmation not None, seconds=None):
    """settled(confirmation, seconds=None)
    --

    Wait in a coroutine until a message is confirmed or has failed.

    Parameters
    ----------
    confirmation : Confirmation
        The message's confirmation.
    seconds : float, optional
        Maximum wait; by default unlimited.

    Returns
    -------
    bool
        False after a timeout.
    """
    if confirmation.done:
        return True
    check_process(confirmation.failures)
    import asyncio

    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def tell():
        try:
            loop.call_soon_threadsafe(told.set)
        except RuntimeError:
            pass  # the loop is closed: no task waits

    confirmation._call_when_done(tell)
    try:
        async with asyncio.timeout(seconds):
            await told.wait()
    except TimeoutError:
        pass
    finally:
        confirmation._forget(tell)
    return confirmation.done


async def awaited(Confirmation confirmation):
    """Return once a message is confirmed, raise PublishFailed if it fails; used by ``await``."""
    await settled(confirmation)
    confirmation.check()


@cython.final
cdef class _Failures:
    """State shared by a window and its confirmations, which therefore need no reference to the window (no cycle)."""

    cdef uint64_t unheard    # failures since the last flush that were not read
    cdef uint64_t flushes
    cdef str forked          # error message in a child process


cdef int check_process(_Failures failures) except -1:
    """Raise if this is a child process, where no message will be confirmed."""
    if failures is None:
        raise TypeError("a Confirmation is created by publish() only")
    if failures.forked is not None:
        raise RuntimeError(failures.forked)
    return 0


@cython.final
@cython.freelist(1024)
cdef class Confirmation:
    """Confirmation()
    --

    The result of publishing one message: the broker confirms it, or it fails.

    Attributes
    ----------
    done : bool
        Whether the broker has confirmed the message, or it has failed.
    error : PublishFailed or None
        Why the message failed; None if it has not, or not yet. After it was read, or raised by `wait`, `flush` does not
        report the failure again.

    Notes
    -----
    Returned by a publisher's ``publish()``. Every method is safe from any thread. In a coroutine, ``await`` the
    confirmation instead of calling `wait`.
    """

    cdef bytes data             # the encoded message, until it is done
    cdef object problem
    cdef list waiting           # called when it is done
    cdef _Failures failures
    cdef ConfirmationState state
    cdef uint64_t unheard       # the number of flushes when it failed; 0 once the failure was read

    def __init__(self):
        raise TypeError("a Confirmation is created by publish() only")

    @property
    def done(self):
        """Whether the broker has confirmed the message, or it has failed."""
        return self.state != UNCONFIRMED

    @property
    def error(self):
        """Why the message failed; None if it has not, or not yet."""
        if self.state != FAILED:
            return None
        self.heard()
        return self.problem

    def wait(self, timeout=None):
        """wait($self, timeout=None)
        --

        Wait until the broker has confirmed the message.

        Parameters
        ----------
        timeout : float, optional
            Maximum wait in seconds; by default unlimited.

        Raises
        ------
        PublishFailed
            If the message failed: it was returned or refused, or its publisher was closed.
        TimeoutError
            If the message was neither confirmed nor failed in time; it may still be confirmed.
        TypeError, ValueError
            If the timeout is not a number, or is negative or NaN.
        RuntimeError
            In a child process that was forked after the message was published.

        Notes
        -----
        Safe from any thread.
        """
        cdef double seconds = as_timeout(timeout, "timeout")
        if not self._wait(seconds):
            raise TimeoutError(f"the broker has not confirmed the message within {seconds:g} s")
        self.check()

    def _wait(self, double seconds=INFINITY):
        """Wait until the confirmation is done; return False after a timeout."""
        if self.state == UNCONFIRMED:
            check_process(self.failures)
            lock = _thread.allocate_lock()  # by its name: where threads are greenlets, that is their lock
            lock.acquire()
            self._call_when_done(lock.release)
            if not lock.acquire(True, -1 if seconds > <double> _thread.TIMEOUT_MAX else seconds):
                self._forget(lock.release)
        return self.state != UNCONFIRMED

    def check(self):
        """check($self)
        --

        Raise PublishFailed if the message has failed; do not wait.
        """
        if self.state == FAILED:
            self.heard()
            raise self.problem.with_traceback(None)

    def __await__(self):
        return awaited(self).__await__()

    def _call_when_done(self, function):
        """Call a function once the confirmation is done, from any thread; at once if it is done already."""
        cdef list waiting
        fresh = []
        with cython.critical_section(self):
            waiting = self.waiting
            if waiting is None:
                waiting = self.waiting = fresh
            if self.state == UNCONFIRMED:
                waiting.append(function)
                return
        function()

    def _forget(self, function):
        """Cancel the call of a function that was passed to `_call_when_done`."""
        cdef list waiting = self.waiting
        if waiting is not None and function in waiting:
            waiting.remove(function)

    cdef void heard(self):
        """Mark the failure as read."""
        with cython.critical_section(self, self.failures):
            if self.unheard:
                self.failures.unheard -= self.unheard == self.failures.flushes
                self.unheard = 0

    cdef list finish(self, object problem):
        """Set the result; return the functions to call."""
        cdef list waiting
        with cython.critical_section(self, self.failures):
            problem = problem if self.problem is None else self.problem
            self.problem = problem
            if problem is not None:
                self.unheard = self.failures.flushes
                self.failures.unheard += 1
            self.state = CONFIRMED if problem is None else FAILED
            waiting, self.waiting = self.waiting, None
            self.data = None
        return waiting

    def __repr__(self):
        state = ("unconfirmed", "confirmed", "failed")[<int> self.state]
        return f"<Confirmation: {state}>"


@cython.final
cdef class PublishWindow:
    """PublishWindow(messages, size, wake)
    --

    The unconfirmed messages of a publisher, sent or not.

    Parameters
    ----------
    messages, size : int
        Maximum number of messages, and of their bytes as frames; a single message may be larger.
    wake : callable
        Called when there is something to send; not again until `output` is called.

    Attributes
    ----------
    queueing : bool
        Whether a caller waits for room; later callers then queue up behind it.
    blocked : bool
        Whether the broker has blocked the connection; then there is no room.

    Notes
    -----
    Thread safety: `put`, `outstanding`, `take_failures` and the attributes may be used from any thread, and each is
    atomic. The other methods are for the I/O thread, which alone settles. Complexity: O(1) per message.
    """

    cdef Window window
    cdef object wake
    cdef uint64_t messages
    cdef int64_t most
    cdef int64_t longest
    cdef bint requested
    # Whether a call of `wake` is on its way; a signal may interrupt it before it has an effect.
    cdef bint waking
    cdef uint64_t last_returned
    cdef list remembered
    cdef _Failures failures
    cdef public bint queueing
    cdef public bint blocked
    cdef readonly bint closed
    cdef readonly uint64_t published
    cdef readonly uint64_t republished
    cdef readonly uint64_t confirmed
    cdef readonly uint64_t failed

    def __cinit__(self, uint64_t messages, int64_t size, wake):
        window_init(&self.window)
        self.messages = messages
        self.most = size
        self.wake = wake
        self.longest = 4096 - 8  # what every connection allows
        self.failures = _Failures()
        self.failures.flushes = 1
        self.remembered = []

    def __dealloc__(self):
        cdef void* token
        while self.window.outstanding:
            token = window_settle(&self.window, self.window.base)
            Py_DECREF(<object> token)
        window_clear(&self.window)

    @property
    def unconfirmed(self):
        """Number of messages that are neither confirmed nor failed."""
        return self.window.outstanding

    @property
    def singly(self):
        """Number of messages that are still to be sent one at a time."""
        return self.window.singly

    @property
    def in_flight(self):
        """Number of messages sent and not settled; O(window)."""
        cdef uint64_t position, count = 0
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.sent):
                count += window_at(&self.window, position).token != NULL
        return count

    def forked(self, str why not None):
        """forked($self, why)
        --

        Close this copy in a child process; its methods raise RuntimeError from now on.
        """
        self.failures.forked = why
        self.closed = True

    # From any thread --------------------------------------------------------------------------------------------------

    def put(self, exchange, routing_key, bytes properties not None, body, bint mandatory, bint in_turn=False):
        """put($self, exchange, routing_key, properties, body, mandatory, in_turn=False)
        --

        Add a message.

        Parameters
        ----------
        exchange, routing_key, properties, mandatory
            As for `encode_message`.
        body : bytes-like
            The body.
        in_turn : bool
            Whether the caller is the one that waits for room.

        Returns
        -------
        Confirmation or None
            None: there is no room, another caller waits for room, or the window is closed.

        Raises
        ------
        TypeError, ValueError
            If a value is invalid; the message names it.
        """
        cdef Content c
        cdef Py_buffer view
        if not self.has_room(0, in_turn):
            return None
        use_text(exchange, "exchange", &c.exchange, &c.exchange_size)
        use_text(routing_key, "routing_key", &c.key, &c.key_size)
        c.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
        c.properties_size = PyBytes_GET_SIZE(properties)
        c.mandatory = mandatory
        if PyBytes_CheckExact(body):
            c.body = <const uint8_t*> PyBytes_AS_STRING(<bytes> body)
            c.body_size = PyBytes_GET_SIZE(<bytes> body)
            return self.put_content(&c, in_turn)
        try:
            PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        except (TypeError, BufferError):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise TypeError(f"body must be bytes-like and contiguous, got {type(body).__name__}{hint}") from None
        try:
            c.body = <const uint8_t*> view.buf
            c.body_size = view.len
            return self.put_content(&c, in_turn)
        finally:
            PyBuffer_Release(&view)

    cdef bint has_room(self, int64_t size, bint in_turn):
        """Whether there is room for a message of `size` bytes."""
        if self.closed or self.blocked or (self.queueing and not in_turn):
            return False
        if self.window.outstanding == 0:
            return True
        return self.window.outstanding < self.messages and self.window.size + size <= self.most

    cdef Confirmation put_content(self, const Content* c, bint in_turn):
        cdef Confirmation found = Confirmation.__new__(Confirmation)
        cdef Admission admission = OTHER_FRAMES
        cdef int64_t longest = 0
        cdef bint wake
        found.failures = self.failures
        while admission == OTHER_FRAMES:
            longest = self.longest
            if CONTENT_HEAD + c.properties_size > longest:
                raise ValueError(
                    f"the properties, including headers, must be at most {longest - CONTENT_HEAD} bytes long to fit in "
                    f"one frame, got {c.properties_size}"
                )
            found.data = encoded_content(c, CHANNEL, longest)
            # From here on, nothing can run Python until the message has been added.
            with cython.critical_section(self):
                admission = self.admit(found, longest, in_turn)
                wake = admission == ADMITTED and (self.waking or not self.requested)
                if wake:
                    self.requested = self.waking = True
        if admission == NO_MEMORY:
            raise MemoryError()
        if wake:
            self.wake()
            self.waking = False
        return found if admission == ADMITTED else None

    def wake_again(self):
        """wake_again($self)
        --

        Have the I/O thread woken for a call of `put` that a signal has interrupted; to be called before a wait.
        """
        if self.waking:
            self.wake()

    cdef Admission admit(self, Confirmation found, int64_t longest, bint in_turn):
        cdef int64_t size = PyBytes_GET_SIZE(found.data)
        if self.longest != longest:
            return OTHER_FRAMES
        if not self.has_room(size, in_turn):
            return NO_ROOM
        if not window_add(&self.window, <void*> found, size):
            return NO_MEMORY
        Py_INCREF(found)
        self.published += 1
        return ADMITTED

    def outstanding(self):
        """outstanding($self)
        --

        Return the confirmations of all unconfirmed messages, in the order of publishing. O(window).
        """
        cdef uint64_t position
        cdef PyObject* token
        cdef list found = []  # creating it may run Python, appending does not
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.high):
                token = <PyObject*> window_at(&self.window, position).token
                if token != NULL:
                    found.append(<object> token)
        return found

    def take_failures(self):
        """take_failures($self)
        --

        Return the number of failures that were not read, and the reason of one; then all count as read.

        Returns
        -------
        count : int
        problem : PublishFailed or None
        """
        cdef Confirmation one
        cdef list remembered, fresh = []
        cdef uint64_t count, flush
        with cython.critical_section(self, self.failures):
            count, self.failures.unheard = self.failures.unheard, 0
            remembered, self.remembered = self.remembered, fresh
            flush = self.failures.flushes
            self.failures.flushes += 1
        for one in remembered:
            if one.unheard == flush:
                return count, one.problem
        return count, None

    # The I/O thread ---------------------------------------------------------------------------------------------------

    def output(self, int64_t most):
        """output($self, most)
        --

        Return messages to send, which then count as sent.

        Parameters
        ----------
        most : int
            Maximum number of bytes; a single message may be larger.

        Returns
        -------
        bytes
            The frames of the messages; empty if there is nothing to send.
        """
        cdef uint64_t first, position
        cdef int64_t size = 0, length
        cdef Confirmation one
        cdef bytes data
        cdef char* to
        with cython.critical_section(self):
            self.requested = False
            first = position = self.window.sent
            while window_may_send(&self.window):
                one = <Confirmation> window_at(&self.window, position).token
                length = PyBytes_GET_SIZE(one.data)
                if size and size + length > most:
                    break
                size += length
                position += 1
                self.window.sent = position
            if position == first:
                return b""
            if position == first + 1:
                return (<Confirmation> window_at(&self.window, first).token).data
            data = PyBytes_FromStringAndSize(NULL, size)
            to = PyBytes_AS_STRING(data)
            while first < position:
                one = <Confirmation> window_at(&self.window, first).token
                length = PyBytes_GET_SIZE(one.data)
                memcpy(to, PyBytes_AS_STRING(one.data), length)
                to += length
                first += 1
            return data

    def take_confirms(self, bytes buffer not None, int64_t start):
        """take_confirms($self, buffer, start)
        --

        Process a run of confirm frames in a receive buffer.

        Parameters
        ----------
        buffer : bytes
            Bytes received from the connection.
        start : int
            Offset of the first frame, 0 to ``len(buffer)``.

        Returns
        -------
        position : int
            Offset of the end of the confirms.
        frames : int
            Number of confirms.
        """
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(buffer)
        cdef int64_t size = PyBytes_GET_SIZE(buffer), frames = 0
        cdef Confirm c
        cdef Settled settled
        if not confirm_find(at, size, start, CHANNEL, &c):
            return start, 0
        settled_init(&settled)
        with cython.critical_section(self):
            if settled_reserve(&settled, self.window.outstanding):
                while confirm_find(at, size, start, CHANNEL, &c):
                    settled_take(&settled, &self.window, &c)
                    start += SETTLEMENT_SIZE
                    frames += 1
        self.finish(&settled)
        if frames == 0:
            raise MemoryError()
        return start, frames

    def confirm(self, uint64_t tag, bint multiple, bint refused):
        """confirm($self, tag, multiple, refused)
        --

        Process one confirm.
        """
        cdef Confirm c = Confirm(tag, multiple, refused)
        cdef Settled settled
        cdef bint there
        settled_init(&settled)
        with cython.critical_section(self):
            there = settled_reserve(&settled, self.window.outstanding)
            if there:
                settled_take(&settled, &self.window, &c)
        self.finish(&settled)
        if not there:
            raise MemoryError()

    cdef finish(self, Settled* settled, object problem=None):
        """Notify the confirmations, which were removed from the window."""
        cdef uint64_t i
        cdef list waiting, called = []
        cdef Confirmation one
        try:
            for i in range(settled.count):
                one = <Confirmation> settled.settled[i].token
                Py_DECREF(one)
                why = problem
                if settled.settled[i].refused:
                    why = PublishFailed("the broker refused the message (basic.nack)")
                waiting = one.finish(why)
                if one.state == FAILED:
                    self.failed += 1
                    self.remember(one)
                else:
                    self.confirmed += 1
                if waiting is not None:
                    called += waiting
        finally:
            free(settled.settled)
        for function in called:
            function()

    cdef remember(self, Confirmation failed):
        """Keep a failed message for the text of a later error, unless its failure is read before."""
        cdef Confirmation one
        if len(self.remembered) >= REMEMBERED:
            self.remembered = [one for one in self.remembered if one.unheard]
        if len(self.remembered) < REMEMBERED:
            self.remembered.append(failed)
        else:
            self.remembered[REMEMBERED - 1] = failed

    def again(self, int64_t longest):
        """again($self, longest)
        --

        Start over on a new channel: unconfirmed messages are sent again, first and in their order.

        Parameters
        ----------
        longest : int
            Maximum payload size of a frame in bytes.

        Notes
        -----
        A message whose properties do not fit in one frame of the new connection fails.
        """
        cdef Confirmation one
        cdef list all_, problems = []
        cdef bint smaller
        cdef uint64_t in_flight = self.in_flight
        with cython.critical_section(self):
            self.republished += in_flight
            self.requested = True  # the caller calls `output` next
            smaller = longest < self.longest
            self.longest = longest
            self.last_returned = 0
            window_again(&self.window)
        # Messages put from here on have frames of the new size, and nothing is sent before this returns.
        all_ = self.outstanding()
        for one in all_:
            if one.problem is not None:  # it was returned; the next time it may be routed to a queue
                problems.append(one.problem)
                one.problem = None
            if smaller:
                self.reframe(one)

    cdef reframe(self, Confirmation one):
        """Encode a message again as frames of the current size."""
        cdef Content c
        cdef bytes data = one.data, body
        if data is None:
            return  # the publisher was closed in the meantime
        body = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(data))
        if not publish_decode(
            <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &c, <uint8_t*> PyBytes_AS_STRING(body)
        ):
            raise RuntimeError("an entry of the window is not a message")
        if CONTENT_HEAD + c.properties_size <= self.longest:
            one.data = encoded_content(&c, CHANNEL, self.longest)
        else:
            why = (
                f"its properties take {c.properties_size} bytes, "
                f"but a frame of the new connection holds at most {self.longest}"
            )
            self.fail(one, PublishFailed(f"the message cannot be published again: {why}"))

    cdef fail(self, Confirmation one, object problem):
        """Remove a message from the window as failed. O(window)."""
        cdef uint64_t position
        cdef Settled settled
        settled_init(&settled)
        if not settled_reserve(&settled, 1):
            raise MemoryError()
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.high):
                if window_at(&self.window, position).token == <void*> one:
                    settled_add(&settled, window_settle(&self.window, position), False)
                    break
        self.finish(&settled, problem)

    def suspect(self, problem):
        """suspect($self, problem)
        --

        Handle a channel closed by the broker because of a message that was sent and is not settled.

        If there is only one such message, it fails. Otherwise they are sent again one at a time, which identifies the
        message the next time.
        """
        cdef list all_ = self.outstanding()
        cdef uint64_t in_flight = self.in_flight
        if in_flight == 1:
            self.fail(all_[0], problem)
        elif in_flight:
            self.window.singly = in_flight

    def returned(self, bytes encoded not None, problem):
        """returned($self, encoded, problem)
        --

        Handle a message returned by the broker; its confirm comes later.

        Parameters
        ----------
        encoded : bytes
            The message as it was sent, rebuilt from what the broker returned.
        problem : PublishFailed
            The reason.

        Returns
        -------
        bool
            Whether the message was found.

        Notes
        -----
        Returns come in the order of publishing, but do not identify the message. It is the oldest message after the
        last returned one that is equal to `encoded`, or, if the broker has changed something, that has the same
        exchange and routing key. O(window).
        """
        cdef Confirmation one, found = None
        cdef uint64_t position, at = 0
        cdef int64_t place
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(encoded)
        cdef const uint8_t* other
        cdef int exactly
        old = None
        with cython.critical_section(self):
            place = publish_frame(text)
            for exactly in (1, 0):
                for position in range(max(self.window.base, self.last_returned + 1), self.window.sent):
                    if window_at(&self.window, position).token == NULL:
                        continue
                    one = <Confirmation> window_at(&self.window, position).token
                    other = <const uint8_t*> PyBytes_AS_STRING(one.data)
                    if exactly and PyBytes_GET_SIZE(one.data) != PyBytes_GET_SIZE(encoded):
                        continue
                    if memcmp(other, text, PyBytes_GET_SIZE(encoded) if exactly else place) == 0:
                        found = one
                        at = position
                        break
                if found is not None:
                    break
            if found is not None:
                self.last_returned = at
                old, found.problem = found.problem, problem
        return found is not None

    def close(self, problem):
        """close($self, problem)
        --

        Accept no more messages; unconfirmed messages fail.

        Parameters
        ----------
        problem : PublishFailed
            The reason.

        Returns
        -------
        int
            Number of messages that failed.
        """
        cdef Settled settled
        cdef bint there
        settled_init(&settled)
        with cython.critical_section(self):
            self.closed = True
            there = settled_reserve(&settled, self.window.outstanding)
            while there and self.window.outstanding:
                settled_add(&settled, window_settle(&self.window, self.window.base), False)
        count = settled.count
        self.finish(&settled, problem)
        if not there:
            raise MemoryError()
        return count
