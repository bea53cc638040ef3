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
    NOT_HELD, Confirm, Window, confirm_find, publish_decode, publish_encode, publish_frame, publish_size, window_add,
    window_again, window_at, window_clear, window_confirmed, window_hold, window_init, window_is_under_way, window_kept,
    window_may_send, window_resume, window_settle,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE
from fairsched.scheduling._numbers cimport as_timeout

import _thread
import logging
from contextvars import copy_context

from fairsched.errors import PublishFailed

_log = logging.getLogger("fairsched.publisher")

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


cdef class _Outcome


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
    """Remove the messages that a confirm covers from a window, except those that are held."""
    cdef uint64_t position = 0, end = window_confirmed(w, c, &position)
    while position < end:
        if c.refused or not window_kept(w, position):
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


cdef inline bint has_head(bytes data, const uint8_t* head, int64_t size):
    """Whether an encoded message begins with a frame of `size` octets: has the same exchange, routing key and flag."""
    cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(data)
    return publish_frame(text) == size and memcmp(text, head, size) == 0


cdef int use_message(Content* c, exchange, routing_key, bytes properties, bint mandatory) except -1:
    """Set all of a message but its body, whose objects stay the caller's; raise for an invalid name."""
    use_text(exchange, "exchange", &c.exchange, &c.exchange_size)
    use_text(routing_key, "routing_key", &c.key, &c.key_size)
    c.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
    c.properties_size = PyBytes_GET_SIZE(properties)
    c.mandatory = mandatory
    return 0


cdef inline void use_body(Content* c, bytes body) noexcept:
    c.body = <const uint8_t*> PyBytes_AS_STRING(body)
    c.body_size = PyBytes_GET_SIZE(body)


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
    use_message(&c, exchange, routing_key, properties, mandatory)
    use_body(&c, body)
    return encoded_content(&c, channel, longest)


def are_confirmed(list confirmations not None):
    """are_confirmed(confirmations)
    --

    Return whether the broker has confirmed all messages.

    Parameters
    ----------
    confirmations : list of Confirmation or LoopConfirmation
        The messages.

    Notes
    -----
    Complexity O(messages). Thread safety: any thread.
    """
    cdef _Outcome one
    for one in confirmations:
        if one.state != CONFIRMED:
            return False
    return True


async def settled(_Outcome confirmation not None, seconds=None):
    """settled(confirmation, seconds=None)
    --

    Wait in a coroutine until a message is confirmed or has failed.

    Parameters
    ----------
    confirmation : Confirmation or LoopConfirmation
        The message's confirmation.
    seconds : float, optional
        Maximum wait; by default unlimited.

    Returns
    -------
    bool
        False after a timeout.
    """
    if confirmation.state != UNCONFIRMED:
        return True
    check_process(confirmation.shared)
    import asyncio

    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def tell(_confirmation):
        try:
            loop.call_soon_threadsafe(told.set)
        except RuntimeError:
            pass  # the loop is closed: no task waits

    if confirmation.add(tell):
        return True
    try:
        async with asyncio.timeout(seconds):
            await told.wait()
    except TimeoutError:
        pass
    finally:
        confirmation.remove(tell)
    return confirmation.state != UNCONFIRMED


async def awaited(_Outcome confirmation):
    """Return once a message is confirmed, raise PublishFailed if it fails; used by ``await``."""
    await settled(confirmation)
    confirmation.check()


@cython.final
cdef class _Shared:
    """State shared by a window and its confirmations, which therefore need no reference to the window (no cycle)."""

    cdef uint64_t unheard    # failures since the last flush that were not read
    cdef uint64_t flushes
    cdef str forked          # error message in a child process
    cdef object loop         # the event loop of an aio.Publisher, otherwise None
    cdef uint64_t calling    # the I/O thread while it calls done callbacks, otherwise 0


cdef int check_process(_Shared shared) except -1:
    """Raise if this is a child process, where no message will be confirmed."""
    if shared is None:
        raise TypeError("a Confirmation is created by publish() only")
    if shared.forked is not None:
        raise RuntimeError(shared.forked)
    return 0


cdef int check_may_wait(_Shared shared) except -1:
    """Raise in a done callback that runs in the I/O thread, which alone ends a wait."""
    if shared.calling and shared.calling == <uint64_t> _thread.get_ident():
        raise RuntimeError(
            "a done callback runs in the publisher's I/O thread and cannot wait for the broker, whose answer that "
            "thread reads; wait in another thread"
        )
    return 0


cdef call(callback, _Outcome confirmation):
    """Call a done callback; log what it raises, unless that ends its thread."""
    try:
        callback(confirmation)
    except Exception:
        _log.exception("the done callback %r raised; %r has its result all the same", callback, confirmation)


@cython.final
cdef class _Release:
    """A done callback that ends a thread's wait."""

    cdef object lock

    def __call__(self, _confirmation):
        self.lock.release()


@cython.final
cdef class _LoopCall:
    """A done callback that an event loop calls."""

    cdef object loop
    cdef object function
    cdef object context

    def schedule(self, confirmation):
        """Have the event loop call the function."""
        self.loop.call_soon_threadsafe(self.function, confirmation, context=self.context)

    def __call__(self, confirmation):
        try:
            self.schedule(confirmation)
        except RuntimeError:
            pass  # the loop is closed: it calls nothing any more


@cython.freelist(1024)
cdef class _Outcome:
    """The state of one published message: unconfirmed, confirmed or failed.

    Notes
    -----
    Base of `Confirmation`, for threads, and of `LoopConfirmation`, for an event loop. Safe from any thread.
    """

    cdef bytes data             # the encoded message, until it is done
    cdef object problem
    cdef object tenant          # of a message in a lane, otherwise None
    cdef list callbacks         # called when it is done
    cdef _Shared shared
    cdef ConfirmationState state
    cdef uint64_t unheard       # the number of flushes when it failed; 0 once the failure was read

    def __init__(self):
        raise TypeError("a Confirmation is created by publish() only")

    def done(self):
        """done($self)
        --

        Return whether the broker has confirmed the message, or it has failed.
        """
        return self.state != UNCONFIRMED

    def cancelled(self):
        """cancelled($self)
        --

        Return False: a published message cannot be cancelled.
        """
        return False

    def __await__(self):
        return awaited(self).__await__()

    def __repr__(self):
        state = ("unconfirmed", "confirmed", "failed")[<int> self.state]
        return f"<{type(self).__name__}: {state}>"

    cdef check(self):
        """Raise PublishFailed if the message has failed; do not wait."""
        if self.state == FAILED:
            self.heard()
            raise self.problem.with_traceback(None)

    cdef reason(self):
        """Return why the message failed, or None, and count the failure as read."""
        if self.state != FAILED:
            return None
        self.heard()
        return self.problem

    cdef bint add(self, callback):
        """Add a done callback; return True, without adding it, if the message is done already."""
        cdef list fresh = []
        with cython.critical_section(self):
            if self.state != UNCONFIRMED:
                return True
            if self.callbacks is None:
                self.callbacks = fresh
            self.callbacks.append(callback)
        return False

    cdef bint remove(self, callback):
        """Remove a done callback, found by identity: comparing others may run their code; return if it was there."""
        cdef Py_ssize_t i
        with cython.critical_section(self):
            if self.callbacks is not None:
                for i in range(len(self.callbacks)):
                    if self.callbacks[i] is callback:
                        del self.callbacks[i]
                        return True
        return False

    cdef void heard(self):
        """Mark the failure as read."""
        with cython.critical_section(self, self.shared):
            if self.unheard:
                self.shared.unheard -= self.unheard == self.shared.flushes
                self.unheard = 0

    cdef list finish(self, object problem):
        """Set the result; return the callbacks to call."""
        cdef list callbacks
        with cython.critical_section(self, self.shared):
            problem = problem if self.problem is None else self.problem
            self.problem = problem
            if problem is not None:
                self.unheard = self.shared.flushes
                self.shared.unheard += 1
            self.state = CONFIRMED if problem is None else FAILED
            callbacks, self.callbacks = self.callbacks, None
            self.data = None
        self.tenant = None
        return callbacks


@cython.final
cdef class Confirmation(_Outcome):
    """Confirmation()
    --

    The result of publishing one message, with the methods of `concurrent.futures.Future`.

    Notes
    -----
    Returned by a publisher's ``publish()``. The result of a confirmed message is None; the exception of a message that
    failed is a `PublishFailed`. Once `result` has raised it, or `exception` returned it, `flush` does not report it
    again.

    Every method is safe from any thread. In a coroutine, ``await`` the confirmation; ``asyncio.ensure_future`` makes a
    task of it, in place of ``asyncio.wrap_future``, which takes subclasses of `Future` only.

    This is no subclass of `Future`: each of these has a lock and two lists of its own, which costs more than publishing
    a message does. ``concurrent.futures.wait`` and ``as_completed`` use these private attributes, and therefore do not
    take confirmations. In place of the first, call `result` of one after another, or ``flush``. In place of the second,
    let the callbacks fill a queue::

        done = queue.SimpleQueue()
        for confirmation in confirmations:
            confirmation.add_done_callback(done.put)
        for _ in confirmations:
            first = done.get(timeout=30)
    """

    def running(self):
        """running($self)
        --

        Return whether the message is still unconfirmed.

        Notes
        -----
        It then may be at the broker already. So it is never pending in the sense of `Future`, which can be cancelled.
        """
        return self.state == UNCONFIRMED

    def cancel(self):
        """cancel($self)
        --

        Return False, and do nothing: a published message cannot be taken back.
        """
        return False

    def result(self, timeout=None):
        """result($self, timeout=None)
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
            In a child process that was forked after the message was published; and for a message that is not done, in
            a done callback that runs in the I/O thread.
        """
        self.wait_or_raise(timeout)
        self.check()

    def exception(self, timeout=None):
        """exception($self, timeout=None)
        --

        Wait as `result` does, and return why the message failed.

        Parameters
        ----------
        timeout : float, optional
            Maximum wait in seconds; by default unlimited.

        Returns
        -------
        PublishFailed or None
            None if the broker has confirmed the message.

        Raises
        ------
        TimeoutError, TypeError, ValueError, RuntimeError
            As for `result`.
        """
        self.wait_or_raise(timeout)
        return self.reason()

    def add_done_callback(self, fn):
        """add_done_callback($self, fn)
        --

        Have a function called with this confirmation once the message is confirmed or has failed.

        Parameters
        ----------
        fn : callable
            Takes the confirmation. If the message is done already, it is called at once, in this thread. Otherwise the
            publisher's I/O thread calls it, or the thread that closes the publisher. The functions of one message are
            called in the order in which they were added.

        Raises
        ------
        RuntimeError
            In a child process that was forked after the message was published, if it was not done then.

        Notes
        -----
        An `Exception` that the function raises is logged. Any other exception, such as SystemExit, ends the I/O thread,
        after all functions were called; then publishing cannot continue.

        The I/O thread reads no confirm and sends no heartbeat while it calls the function, which therefore should
        return soon. A call in it that has to wait for the broker raises RuntimeError: `result` of another message,
        ``flush``, ``close``, and ``publish`` if the window is full.
        """
        if self.state == UNCONFIRMED:
            check_process(self.shared)
        if self.add(fn):
            call(fn, self)

    cdef wait_or_raise(self, timeout):
        cdef double seconds = as_timeout(timeout, "timeout")
        if not self._wait(seconds):
            raise TimeoutError(f"the broker has not confirmed the message within {seconds:g} s")

    def _wait(self, double seconds=INFINITY):
        """Wait until the message is done; return False after a timeout."""
        cdef _Release release
        if self.state == UNCONFIRMED:
            check_process(self.shared)
            check_may_wait(self.shared)
            lock = _thread.allocate_lock()  # by its name: where threads are greenlets, that is their lock
            lock.acquire()
            release = _Release.__new__(_Release)
            release.lock = lock
            if not self.add(release):
                try:
                    lock.acquire(True, -1 if seconds > <double> _thread.TIMEOUT_MAX else seconds)
                finally:
                    self.remove(release)
        return self.state != UNCONFIRMED


@cython.final
cdef class LoopConfirmation(_Outcome):
    """LoopConfirmation()
    --

    The result of publishing one message with `fairsched.aio.Publisher`, with the methods of `asyncio.Future`.

    Notes
    -----
    ``await`` it: that returns None once the broker has confirmed the message, and raises `PublishFailed` if the message
    failed. Cancelling the wait does not cancel the message. Once the failure was raised, or returned by `exception`,
    `flush` does not report it again. ``asyncio.gather``, ``wait_for``, ``shield`` and ``as_completed`` take it as it
    is, ``asyncio.wait`` after ``asyncio.ensure_future``.

    This is no subclass of `Future`: the event loop would then be woken for every message, whether awaited or not.

    Unlike those of a `Future`, all methods are safe from any thread.
    """

    def cancel(self, msg=None):
        """cancel($self, msg=None)
        --

        Return False, and do nothing: a published message cannot be taken back.
        """
        return False

    def result(self):
        """result($self)
        --

        Return None if the broker has confirmed the message; do not wait.

        Raises
        ------
        PublishFailed
            If the message failed: it was returned or refused, or its publisher was closed.
        asyncio.InvalidStateError
            If it is still unconfirmed.
        """
        self.check_done()
        self.check()

    def exception(self):
        """exception($self)
        --

        Return why the message failed, or None if the broker has confirmed it; do not wait.

        Raises
        ------
        asyncio.InvalidStateError
            If it is still unconfirmed.
        """
        self.check_done()
        return self.reason()

    cdef check_done(self):
        if self.state == UNCONFIRMED:
            from asyncio import InvalidStateError

            raise InvalidStateError("the broker has not confirmed the message yet; await the confirmation")

    def add_done_callback(self, fn, *, context=None):
        """add_done_callback($self, fn, *, context=None)
        --

        Have the publisher's event loop call a function with this confirmation once the message is done.

        Parameters
        ----------
        fn : callable
            Takes the confirmation. If the message is done already, the event loop calls it soon.
        context : contextvars.Context, optional
            The context to call it in; by default a copy of the current one.

        Notes
        -----
        An exception that the function raises goes to the event loop's exception handler. After the event loop was
        closed, nothing is called.
        """
        cdef _LoopCall scheduled
        if self.state == UNCONFIRMED:
            check_process(self.shared)
        scheduled = _LoopCall.__new__(_LoopCall)
        scheduled.loop = self.shared.loop
        scheduled.function = fn
        scheduled.context = copy_context() if context is None else context
        if self.add(scheduled):
            scheduled.schedule(self)

    def remove_done_callback(self, fn):
        """remove_done_callback($self, fn)
        --

        Remove all callbacks that equal a function, and return their number.
        """
        cdef _LoopCall one
        cdef list callbacks = []
        with cython.critical_section(self):
            if self.callbacks is not None:
                callbacks += self.callbacks
        found = [one for one in callbacks if type(one) is _LoopCall and (<_LoopCall> one).function == fn]
        return sum([self.remove(one) for one in found])


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
    Thread safety: `put`, `put_many`, `outstanding`, `take_failures` and the attributes may be used from any thread.
    Each is atomic. The other methods are for the I/O thread, which alone settles. Complexity: O(1) per message.
    """

    cdef Window window
    cdef object wake
    cdef uint64_t messages
    cdef int64_t most
    cdef int64_t longest
    cdef bint requested
    # Calls of `wake` that are on their way; a signal may interrupt one before it has an effect.
    cdef int64_t waking
    cdef uint64_t last_returned
    cdef list remembered
    cdef _Shared shared
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
        self.shared = _Shared()
        self.shared.flushes = 1
        self.remembered = []

    def __dealloc__(self):
        cdef void* token
        while self.window.outstanding:
            token = window_settle(&self.window, self.window.base)
            Py_DECREF(<object> token)
        window_clear(&self.window)

    def belong_to(self, loop not None):
        """belong_to($self, loop)
        --

        Return a `LoopConfirmation` of this event loop for each message from now on.
        """
        self.shared.loop = loop

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
        """Number of messages for which the broker owes a confirm; O(window)."""
        cdef uint64_t position, count = 0
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.sent):
                count += window_is_under_way(&self.window, position)
        return count

    @property
    def held(self):
        """Number of messages that are held until `resume`."""
        return self.window.held

    def forked(self, str why not None):
        """forked($self, why)
        --

        Close this copy in a child process; its methods raise RuntimeError from now on.
        """
        self.shared.forked = why
        self.closed = True

    # From any thread --------------------------------------------------------------------------------------------------

    def put(
        self, exchange, routing_key, bytes properties not None, body, bint mandatory, tenant=None, bint in_turn=False,
    ):
        """put($self, exchange, routing_key, properties, body, mandatory, tenant=None, in_turn=False)
        --

        Add a message.

        Parameters
        ----------
        exchange, routing_key, properties, mandatory
            As for `encode_message`.
        body : bytes-like
            The body.
        tenant : object
            The tenant of a message in a lane, which `hold_returned` finds; otherwise None.
        in_turn : bool
            Whether the caller is the one that waits for room.

        Returns
        -------
        Confirmation, LoopConfirmation or None
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
        use_message(&c, exchange, routing_key, properties, mandatory)
        if PyBytes_CheckExact(body):
            use_body(&c, <bytes> body)
            return self.put_content(&c, tenant, in_turn)
        try:
            PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        except (TypeError, BufferError):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise TypeError(f"body must be bytes-like and contiguous, got {type(body).__name__}{hint}") from None
        try:
            c.body = <const uint8_t*> view.buf
            c.body_size = view.len
            return self.put_content(&c, tenant, in_turn)
        finally:
            PyBuffer_Release(&view)

    def put_many(
        self, list routing_keys not None, list properties not None, list bodies not None, list tenants not None,
        Py_ssize_t start=0,
    ):
        """put_many($self, routing_keys, properties, bodies, tenants, start=0)
        --

        Add messages in lanes: for the default exchange, and mandatory.

        Parameters
        ----------
        routing_keys : list of str
            The lane of each message.
        properties : list of bytes or None
            Its properties, as for `put`.
        bodies : list of bytes
            Its body.
        tenants : list of object
            As for `put`.
        start : int
            The first message to add, from 0.

        Returns
        -------
        list of Confirmation or LoopConfirmation
            Those of the messages from `start` on, up to the first one that is left to `put`: because there is no room
            for it, its properties are None or too long, or its body is not bytes.

        Raises
        ------
        TypeError, ValueError
            If a routing key is invalid, or the lists differ in length; then nothing is added.
        """
        cdef Py_ssize_t i
        cdef int64_t longest = self.longest, size = 0
        cdef _Outcome one
        cdef list made = []
        if not len(routing_keys) == len(properties) == len(bodies) == len(tenants):
            raise ValueError(
                "routing_keys, properties, bodies and tenants must have the same length, got "
                f"{len(routing_keys)}, {len(properties)}, {len(bodies)} and {len(tenants)}"
            )
        if start < 0:
            raise ValueError(f"start must be at least 0, got {start}")
        for i in range(start, len(routing_keys)):
            if not self.has_room(size, False, len(made)):
                break
            one = self.in_lane(routing_keys[i], properties[i], bodies[i], tenants[i], longest)
            if one is None:
                break
            size += PyBytes_GET_SIZE(one.data)
            made.append(one)
        return self.admit_many(made, longest)

    cdef _Outcome in_lane(self, routing_key, properties, body, tenant, int64_t longest):
        """Return an encoded message; None: it is left to `put`."""
        cdef _Outcome found
        cdef Content c
        if type(properties) is not bytes or type(body) is not bytes:
            return None
        use_message(&c, "", routing_key, <bytes> properties, True)
        use_body(&c, <bytes> body)
        if CONTENT_HEAD + c.properties_size > longest:
            return None
        found = self.new_outcome(tenant)
        found.data = encoded_content(&c, CHANNEL, longest)
        return found

    cdef list admit_many(self, list made, int64_t longest):
        """Add encoded messages as far as there is room, and return these; wake the I/O thread once."""
        cdef Admission admission = ADMITTED
        cdef Py_ssize_t count = 0, length = len(made)
        cdef bint wake
        with cython.critical_section(self):
            while count < length:
                admission = self.admit(<_Outcome> made[count], longest, False)
                if admission != ADMITTED:
                    break
                count += 1
            wake = count > 0 and self.wakes()
        if wake:
            self.wake_once()
        if admission == NO_MEMORY and count == 0:
            raise MemoryError()
        del made[count:]
        return made

    cdef bint has_room(self, int64_t size, bint in_turn, uint64_t before=0):
        """Whether there is room for a message, after so many others; `size` is the sum of their bytes."""
        if self.closed or self.blocked or (self.queueing and not in_turn):
            return False
        if self.window.outstanding + before == 0:
            return True
        return self.window.outstanding + before < self.messages and self.window.size + size <= self.most

    cdef _Outcome new_outcome(self, tenant):
        cdef _Outcome found
        if self.shared.loop is None:
            found = Confirmation.__new__(Confirmation)
        else:
            found = LoopConfirmation.__new__(LoopConfirmation)
        found.shared = self.shared
        found.tenant = tenant
        return found

    cdef bint wakes(self):
        """Whether the caller has to call `wake_once`, because it has added something; then no other caller has to."""
        if self.waking == 0 and self.requested:
            return False
        self.requested = True
        self.waking += 1
        return True

    cdef _Outcome put_content(self, const Content* c, tenant, bint in_turn):
        cdef _Outcome found = self.new_outcome(tenant)
        cdef Admission admission = OTHER_FRAMES
        cdef int64_t longest = 0
        cdef bint wake
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
                wake = admission == ADMITTED and self.wakes()
        if admission == NO_MEMORY:
            raise MemoryError()
        if wake:
            self.wake_once()
        return found if admission == ADMITTED else None

    def check_may_wait(self):
        """check_may_wait($self)
        --

        Raise RuntimeError in a done callback that the I/O thread calls.
        """
        check_may_wait(self.shared)

    def wake_again(self):
        """wake_again($self)
        --

        Have the I/O thread woken for a call of `put` that a signal has interrupted; to be called before a wait.
        """
        cdef bint wake
        with cython.critical_section(self):
            wake = self.waking > 0 or (not self.requested and window_may_send(&self.window))
        if wake:
            self.wake()

    cdef int wake_once(self) except -1:
        """Call `wake`; if a signal's exception keeps it from that, the next call of `put` or `wake_again` wakes."""
        try:
            self.wake()
        except BaseException:
            with cython.critical_section(self):
                self.waking -= 1
                self.requested = False
            raise
        with cython.critical_section(self):
            self.waking -= 1
        return 0

    cdef Admission admit(self, _Outcome found, int64_t longest, bint in_turn):
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
        cdef _Outcome one
        cdef list remembered, fresh = []
        cdef uint64_t count, flush
        with cython.critical_section(self, self.shared):
            count, self.shared.unheard = self.shared.unheard, 0
            remembered, self.remembered = self.remembered, fresh
            flush = self.shared.flushes
            self.shared.flushes += 1
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
        cdef _Outcome one
        cdef bytes data
        cdef char* to
        with cython.critical_section(self):
            self.requested = False
            first = position = self.window.sent
            while window_may_send(&self.window):
                one = <_Outcome> window_at(&self.window, position).token
                length = PyBytes_GET_SIZE(one.data)
                if size and size + length > most:
                    break
                size += length
                position += 1
                self.window.sent = position
            if position == first:
                return b""
            if position == first + 1:
                return (<_Outcome> window_at(&self.window, first).token).data
            data = PyBytes_FromStringAndSize(NULL, size)
            to = PyBytes_AS_STRING(data)
            while first < position:
                one = <_Outcome> window_at(&self.window, first).token
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
        cdef list callbacks, due = None
        cdef _Outcome one
        try:
            for i in range(settled.count):
                one = <_Outcome> settled.settled[i].token
                Py_DECREF(one)
                why = problem
                if settled.settled[i].refused:
                    why = PublishFailed("the broker refused the message (basic.nack)")
                callbacks = one.finish(why)
                if one.state == FAILED:
                    self.failed += 1
                    self.remember(one)
                else:
                    self.confirmed += 1
                if callbacks is not None:
                    if due is None:
                        due = []
                    due.append((one, callbacks))
        finally:
            free(settled.settled)
        if due is not None:
            self.call_all(due)

    cdef call_all(self, list due):
        """Call the done callbacks of messages; raise what ends this thread only after all were called."""
        cdef _Outcome one
        cdef list callbacks
        ending = None
        if not self.closed:  # otherwise no message is left to wait for, and this may be any thread
            self.shared.calling = _thread.get_ident()
        try:
            for one, callbacks in due:
                for callback in callbacks:
                    try:
                        call(callback, one)
                    except BaseException as error:
                        ending = error
        finally:
            self.shared.calling = 0
        if ending is not None:
            raise ending

    cdef remember(self, _Outcome failed):
        """Keep a failed message for the text of a later error, unless its failure is read before."""
        cdef _Outcome one
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
        cdef _Outcome one
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
        if smaller:  # close the gaps that failed messages left: delivery tags number those that are sent
            with cython.critical_section(self):
                window_again(&self.window)

    cdef reframe(self, _Outcome one):
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

    cdef fail(self, _Outcome one, object problem):
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
        cdef _Outcome one = self.only_under_way()
        if one is not None:
            self.fail(one, problem)
        elif self.in_flight:
            # Held messages come before the others, and are sent with them.
            self.window.singly = self.in_flight + self.window.held

    cdef _Outcome only_under_way(self):
        """Return the message for which the broker owes a confirm, if there is exactly one."""
        cdef uint64_t position
        cdef _Outcome found = None
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.sent):
                if window_is_under_way(&self.window, position):
                    if found is not None:
                        return None
                    found = <_Outcome> window_at(&self.window, position).token
        return found

    def hold_returned(self, bytes encoded not None):
        """hold_returned($self, encoded)
        --

        Hold the messages of a lane, one of which the broker returned, until `resume`.

        Parameters
        ----------
        encoded : bytes
            As for `returned`.

        Returns
        -------
        object
            The tenant of these messages; None if the message was not put with one.

        Notes
        -----
        A return does not identify the message. So all messages are held that were sent to this lane and are not
        confirmed: some that have arrived may arrive again, but none is lost. Their confirms are ignored. Nothing is
        sent while messages are held, so that they stay in order. O(window).
        """
        cdef _Outcome one
        cdef uint64_t position
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(encoded)
        cdef int64_t size = publish_frame(text)
        tenant = None
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.sent):
                if window_at(&self.window, position).token == NULL:
                    continue
                one = <_Outcome> window_at(&self.window, position).token
                if one.tenant is not None and has_head(one.data, text, size):
                    window_hold(&self.window, position)
                    tenant = one.tenant
        return tenant

    def resume(self):
        """resume($self)
        --

        Have held messages sent again, before all others and in their order.

        Returns
        -------
        bool
            False: the broker still owes confirms, so this has to be called again after them; or nothing is held.
        """
        cdef uint64_t position
        with cython.critical_section(self):
            if self.window.held == 0:
                return False
            for position in range(self.window.base, self.window.sent):
                if window_is_under_way(&self.window, position):
                    return False
            self.republished += self.window.held
            self.last_returned = 0
            window_resume(&self.window)
        return True

    def move_held(self, bytes head not None, str routing_key not None):
        """move_held($self, head, routing_key)
        --

        Give the held messages of a lane another routing key; to be called when the broker owes no confirm.

        Parameters
        ----------
        head : bytes
            Any message of that lane, encoded.
        routing_key : str
            The name of another queue.

        Notes
        -----
        O(bytes in the window).
        """
        cdef _Outcome one
        cdef uint64_t position
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(head)
        cdef int64_t size = publish_frame(text)
        cdef list found = []
        with cython.critical_section(self):
            for position in range(self.window.base, self.window.sent):
                if window_at(&self.window, position).token == NULL:
                    continue
                one = <_Outcome> window_at(&self.window, position).token
                if window_at(&self.window, position).holding != NOT_HELD and has_head(one.data, text, size):
                    found.append(one)
        # This thread alone sends and settles; a close by another one drops the data.
        for one in found:
            self.readdress(one, routing_key)

    def move_all(self, bucket_of not None):
        """move_all($self, bucket_of)
        --

        Give all unconfirmed messages in lanes another routing key; to be called while there is no channel.

        Parameters
        ----------
        bucket_of : callable
            Returns the name of a queue for the tenant that a message was put with.

        Notes
        -----
        O(bytes in the window).
        """
        cdef _Outcome one
        for one in self.outstanding():
            if one.tenant is not None:
                self.readdress(one, bucket_of(one.tenant))

    cdef readdress(self, _Outcome one, str routing_key):
        """Encode a message again with another routing key."""
        cdef Content c
        cdef bytes data = one.data, body
        if data is None:
            return
        body = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(data))
        if not publish_decode(
            <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &c, <uint8_t*> PyBytes_AS_STRING(body)
        ):
            raise RuntimeError("an entry of the window is not a message")
        use_text(routing_key, "routing_key", &c.key, &c.key_size)
        one.data = encoded_content(&c, CHANNEL, self.longest)

    def fail_held(self, bytes head not None, problem):
        """fail_held($self, head, problem)
        --

        Remove the held messages of a lane as failed.

        Parameters
        ----------
        head : bytes
            Any message of that lane, encoded.
        problem : PublishFailed
            The reason.

        Notes
        -----
        O(window).
        """
        cdef _Outcome one
        cdef uint64_t position
        cdef Settled settled
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(head)
        cdef int64_t size = publish_frame(text)
        cdef bint there
        settled_init(&settled)
        with cython.critical_section(self):
            there = settled_reserve(&settled, self.window.outstanding)
            if there:
                for position in range(self.window.base, self.window.sent):
                    if window_at(&self.window, position).token == NULL or not self.window.held:
                        continue
                    one = <_Outcome> window_at(&self.window, position).token
                    if window_at(&self.window, position).holding == NOT_HELD or one.tenant is None:
                        continue
                    if has_head(one.data, text, size):
                        settled_add(&settled, window_settle(&self.window, position), False)
        self.finish(&settled, problem)
        if not there:
            raise MemoryError()

    def returned(self, bytes encoded not None, problem, bint exactly=False):
        """returned($self, encoded, problem, exactly=False)
        --

        Handle a message returned by the broker; its confirm comes later.

        Parameters
        ----------
        encoded : bytes
            The message as it was sent, rebuilt from what the broker returned.
        problem : PublishFailed
            The reason.
        exactly : bool
            Whether only a message is meant that is equal to `encoded`.

        Returns
        -------
        bool
            Whether the message was found. Messages of lanes are not looked at; see `hold_returned`.

        Notes
        -----
        Returns come in the order of publishing, but do not identify the message. It is the oldest message after the
        last returned one that is equal to `encoded`, or, if the broker has changed something, that has the same
        exchange and routing key. O(window).
        """
        cdef _Outcome one, found = None
        cdef uint64_t position, at = 0
        cdef int64_t place
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(encoded)
        cdef const uint8_t* other
        cdef int equal
        old = None
        with cython.critical_section(self):
            place = publish_frame(text)
            for equal in (1, 0):
                if exactly and not equal:
                    break
                for position in range(max(self.window.base, self.last_returned + 1), self.window.sent):
                    if window_at(&self.window, position).token == NULL:
                        continue
                    one = <_Outcome> window_at(&self.window, position).token
                    other = <const uint8_t*> PyBytes_AS_STRING(one.data)
                    if one.tenant is not None or (equal and PyBytes_GET_SIZE(one.data) != PyBytes_GET_SIZE(encoded)):
                        continue
                    if memcmp(other, text, PyBytes_GET_SIZE(encoded) if equal else place) == 0:
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
