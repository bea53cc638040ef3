"""What the command line does to a broker besides consuming: look at queues, declare, fill and delete them."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, NamedTuple, Self

import pika
import pika.exceptions
from pika.adapters.select_connection import IOLoop

from fairsched.amqp.errors import describe
from fairsched.amqp.urls import endpoint, mask_url, parameters
from fairsched.consumer.signals import graceful
from fairsched.errors import ConnectionFailed, QueueNotFound

#: Messages published before their confirmations are waited for.
_BATCH = 1000

#: pika keeps the same limits and closes its socket when they pass, so it goes first, by so many seconds.
_GRACE = 2.0


class QueueFound(NamedTuple):
    """An existing queue: messages ready in it, and consumers."""

    messages: int
    consumers: int


class Session:
    """A connection with one channel, used step by step.

    Parameters
    ----------
    url : str
        The broker.
    timeout : float
        Seconds that each step may take.

    Raises
    ------
    ConnectionFailed
        By any step, if the broker cannot be reached, refuses, goes away, or does not answer in time. The message
        names host and port, never a password.
    KeyboardInterrupt
        By the step under way, or the next one, if SIGINT comes and would raise this.

    Notes
    -----
    pika's `SelectConnection` with its loop run, in the caller's thread, until the step under way has its answer;
    `BlockingConnection` has no future in pika. Between steps nothing is sent, no heartbeat either, so a session is
    for doing a few things and closing. Belongs to one thread.

    Within the ``with`` block an interrupt ends a step; it does not raise in the midst of pika. There it would lose the
    answer that was being read, or cut a frame in two, and the good-bye would wait in vain for the whole timeout. The
    first one leaves the good-bye its time, the second does not.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self._url = url
        self._timeout = timeout
        self._address = endpoint(url)
        self._loop = IOLoop()
        self._connection: Any = None
        self._channel: Any = None
        self._answer: Any = None
        self._failure: BaseException | None = None
        self._waiting = self._leaving = self._closed = self._interrupted = False
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        found = parameters(self._url)
        found.connection_attempts = 1
        found.socket_timeout = found.stack_timeout = found.blocked_connection_timeout = self._timeout
        with ExitStack() as ending:
            ending.callback(self._loop.close)
            ending.enter_context(_heeding(self._interrupt))
            self._connection = self._step(lambda: self._connect(found))
            ending.callback(self._hang_up)
            self._ending = ending.pop_all()
        self._connection.add_on_close_callback(self._on_connection_closed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving = True
        with self._ending:
            try:
                if not self._closed:
                    # A connection that broke in the last step still has its socket to close.
                    self._step(self._connection.close if self._connection.is_open else lambda: None)
            except ConnectionFailed:
                pass  # it did not even answer the good-bye
        if self._interrupted and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    def _hang_up(self) -> None:
        """Close the socket of a connection that did not answer the good-bye; pika has no public call for it."""
        terminate = getattr(self._connection, "_terminate_stream", None)
        if not self._closed and terminate is not None:
            self._step(lambda: terminate(None))

    @property
    def server(self) -> str:
        """Product and version, as the broker introduced itself."""
        found = self._connection.server_properties or {}
        return " ".join(str(found[key]) for key in ("product", "version") if key in found) or "an AMQP broker"

    def find(self, queue: str) -> QueueFound:
        """Look at a queue.

        Parameters
        ----------
        queue : str
            Its name.

        Returns
        -------
        QueueFound
            What is in it and who consumes it.

        Raises
        ------
        QueueNotFound
            If it does not exist.
        ConnectionFailed
            If the broker refuses to tell.
        """
        answer = self._on_channel(lambda done: self._channel.queue_declare(queue, passive=True, callback=done))
        return QueueFound(answer.method.message_count, answer.method.consumer_count)

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Create a durable queue with these arguments."""
        self._on_channel(
            lambda done: self._channel.queue_declare(queue, durable=True, arguments=dict(arguments), callback=done)
        )

    def delete(self, *queues: str) -> None:
        """Delete queues and what is in them, in one step; those that do not exist are no error."""

        def begin(done: Callable[[Any], None]) -> None:
            # A channel is served in order: the answer to the last request says that all are done.
            for queue in queues[:-1]:
                self._channel.queue_delete(queue)
            self._channel.queue_delete(queues[-1], callback=done)

        if queues:
            self._on_channel(begin)

    def publish(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Put transient messages into a queue; returns when the broker has confirmed them all."""
        everything = iter(bodies)
        if self._channel is None or not self._channel.is_open:
            self._step(self._open_channel)
        while batch := list(itertools.islice(everything, _BATCH)):
            self._publish_batch(queue, batch)

    def _publish_batch(self, queue: str, batch: list[bytes]) -> None:
        """Publish, then ask something that the broker answers only after it has read everything."""
        for body in batch:
            self._channel.basic_publish("", queue, body)
        self.find(queue)

    # One step: start it, run the loop until there is an answer ---------------------------------------------------

    def _step(self, begin: Callable[[], object]) -> Any:
        if self._interrupted and not self._leaving:
            raise KeyboardInterrupt
        self._answer = self._failure = None
        self._waiting = True
        deadline = self._loop.call_later(self._timeout + _GRACE, self._on_timeout)
        begin()
        if self._waiting:
            self._loop.start()
        self._loop.remove_timeout(deadline)
        if isinstance(self._failure, KeyboardInterrupt):
            raise self._failure
        if self._failure is not None:
            raise self._explained(self._failure) from None
        return self._answer

    def _done(self, answer: Any = None) -> None:
        self._answer, self._waiting = answer, False
        self._loop.stop()

    def _fail(self, error: BaseException) -> None:
        if self._waiting:
            self._failure, self._waiting = error, False
            self._loop.stop()

    def _interrupt(self, now: bool) -> None:
        """Note an interrupt, in the thread that hears of signals; `now`: not the first."""
        self._interrupted = True
        self._loop.add_callback_threadsafe(lambda: self._on_interrupt(now))

    def _on_interrupt(self, now: bool) -> None:
        if now or not self._leaving:
            self._fail(KeyboardInterrupt())

    def _on_timeout(self) -> None:
        self._fail(TimeoutError(f"no answer within {self._timeout:g} s"))

    def _explained(self, error: BaseException) -> ConnectionFailed:
        if isinstance(error, pika.exceptions.ChannelClosedByBroker) and error.reply_code == 404:
            return QueueNotFound(f"{self._address}: {error.reply_text}")
        reason = mask_url(describe(error))
        if reason.startswith("AMQPConnectorStackTimeout"):  # pika's text is about its own layers
            reason = f"no answer within {self._timeout:g} s"
        return ConnectionFailed(f"{self._address}: {reason}")

    def _connect(self, found: pika.URLParameters) -> None:
        # The workflow, unlike the constructor, gives up a handshake that takes too long, and closes its socket.
        pika.SelectConnection.create_connection([found], self._on_connected, custom_ioloop=self._loop)

    def _on_connected(self, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self._fail(outcome)
        else:
            self._done(outcome)

    def _on_connection_closed(self, _connection: Any, error: BaseException) -> None:
        self._closed = True
        if self._leaving:
            self._done()
        else:
            self._fail(error)

    def _on_channel(self, begin: Callable[[Callable[[Any], None]], object]) -> Any:
        if self._channel is None or not self._channel.is_open:
            self._step(self._open_channel)
        return self._step(lambda: begin(self._done))

    def _open_channel(self) -> None:
        self._channel = self._connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        self._done(channel)

    def _on_channel_closed(self, _channel: Any, error: BaseException) -> None:
        if not self._leaving:
            self._fail(error)


def _heeding(interrupt: Callable[[bool], object]) -> AbstractContextManager[None]:
    """Have SIGINT reported instead of raised, where it would raise: in the main thread, unless somebody handles it."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return graceful(interrupt, (signal.SIGINT,))
    return nullcontext()
