"""A connection that its caller drives, call by call: for programs that do a few things at a broker and leave."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import pika
import pika.exceptions

from fairsched.amqp.errors import broker_text, describe, is_final, is_missing, is_refusal
from fairsched.amqp.ioloop import Loop
from fairsched.amqp.transport import Transport
from fairsched.amqp.urls import endpoint, mask_url, parameters
from fairsched.errors import ConnectionFailed, FairschedError, QueueNotFound, RequestRefused

#: pika gives up a connection that takes too long, too; it is told to wait this much longer, in seconds, so that the
#: deadline that the caller gave is the one that counts.
_GRACE = 2.0
#: Bytes asked of the socket at once: no other thread waits for the GIL, and a caller wants everything there is.
_RECEIVE = 256 * 1024


class Session:
    """One connection, served in the caller's thread, and only while a call waits for its answer.

    Parameters
    ----------
    url : str
        Of the broker.
    timeout : float
        Seconds that connecting may take, and each answer.
    heartbeat : int or None
        Seconds; 0 switches heartbeats off, None leaves them to the URL.

    Raises
    ------
    ConnectionFailed
        By any call, if the broker cannot be reached, refuses, goes away, or does not answer in time. The message
        names host and port, never a password. It is `RequestRefused` if no retry will help, such as
        `QueueNotFound` if a queue does not exist.
    KeyboardInterrupt
        By the call under way, or the next one, after `interrupt`.

    Notes
    -----
    pika's `SelectConnection`, since `BlockingConnection` has no future in pika. Between calls nothing is sent, no
    heartbeat either. For one thread, except `interrupt`.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, heartbeat: int | None = None) -> None:
        #: host:port
        self.address = endpoint(url)
        self.transport: Any = None
        #: Whether an end was asked for, so that calls raise KeyboardInterrupt.
        self.interrupted = False
        self._parameters = parameters(url)
        self._parameters.connection_attempts = 1
        self._parameters.socket_timeout = self._parameters.stack_timeout = timeout + _GRACE
        if heartbeat is not None:
            self._parameters.heartbeat = heartbeat
        self._timeout = timeout
        self._loop = Loop()
        self._error: BaseException | None = None
        self._open = self._leaving = self._hurried = False

    def open(self) -> None:
        """Connect."""
        try:
            self.transport = Transport(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_lost,
                on_close_callback=self._on_lost,
                custom_ioloop=self._loop,
            )
            self.run(lambda: self._open, self._timeout, "")
        except (ConnectionFailed, KeyboardInterrupt):
            self.drop()
            raise
        except Exception as error:
            # pika reports some refusals by raising, and its text may quote what must not be shown.
            self.drop()
            raise self._failure(error) from None

    def _on_open(self, connection: Transport) -> None:
        connection.receive = _RECEIVE
        connection.open_shortcut()
        self._open = True
        self._loop.stop()

    def _on_lost(self, _connection: Any, error: BaseException) -> None:
        self.fail(error)

    @property
    def is_open(self) -> bool:
        """Whether nothing is known to be wrong."""
        return self._error is None and self.transport.is_open

    @property
    def server(self) -> str:
        """Product and version, as the broker introduced itself."""
        found = self.transport.server_properties or {}
        return " ".join(str(found[key]) for key in ("product", "version") if key in found) or "an AMQP broker"

    # Driving -----------------------------------------------------------------------------------------------------

    def run(self, done: Callable[[], object], timeout: float, what: str) -> None:
        """Serve the connection until `done()`; ConnectionFailed after `timeout` seconds, or when it is lost."""
        if not self._served(done, timeout):
            self._error = TimeoutError(f"no answer within {timeout:g} s" + (f" ({what})" if what else ""))
            raise self._failure(self._error)

    def serve_until(self, done: Callable[[], object], seconds: float) -> None:
        """Serve the connection until `done()`, but no longer than so many seconds; ConnectionFailed if it is lost."""
        self._served(done, seconds)

    def _served(self, done: Callable[[], object], seconds: float) -> bool:
        """Serve the connection; say whether `done()` came to be true in time."""
        deadline = time.monotonic() + seconds
        while True:
            self._check()
            if done():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.serve(left)

    def _check(self) -> None:
        """Raise what is known to be wrong, or KeyboardInterrupt after `interrupt`."""
        if self._hurried or (self.interrupted and not self._leaving):
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._failure(self._error) from None

    def serve(self, seconds: float) -> None:
        """Serve the connection for so long, or until `stop`."""
        timer = self._loop.call_later(seconds, self._loop.stop)
        self._loop.start()
        self._loop.remove_timeout(timer)

    def stop(self) -> None:
        """Have `run` look at its condition."""
        self._loop.stop()

    def fail(self, error: BaseException) -> None:
        """Have the call that is under way, and every later one, raise."""
        self._error = self._error or error
        self._loop.stop()

    def recover(self) -> None:
        """Go on after an error that cost no more than a channel, or an answer."""
        if self.transport.is_open:
            self._error = None

    def interrupt(self, now: bool = False) -> None:
        """End the call under way, from any thread; `now`: the good-bye too.

        Unlike an exception that a signal raises in the midst of pika, which would lose the answer that was being read,
        or cut a frame in two, so that the good-bye would wait in vain for the whole timeout.
        """
        self.interrupted = True
        self._hurried |= now
        self._loop.add_callback_threadsafe(self._loop.stop)

    def _failure(self, error: BaseException) -> Exception:
        if isinstance(error, FairschedError):
            return error
        if is_missing(error):
            return QueueNotFound(f"{self.address}: {broker_text(error.reply_text)}")  # type: ignore[attr-defined]
        kind = RequestRefused if is_final(error) or (not self._open and is_refusal(error)) else ConnectionFailed
        return kind(f"{self.address}: {mask_url(describe(error))}")

    # Asking ------------------------------------------------------------------------------------------------------

    def channel(self) -> pika.channel.Channel:
        """Open a channel; if the broker closes it, the session fails."""
        opened: list[Any] = []

        def on_open(channel: Any) -> None:
            channel.add_on_close_callback(self._on_channel_closed)
            opened.append(channel)
            self._loop.stop()

        self._check()
        self.transport.channel(on_open_callback=on_open)
        self.run(lambda: opened, self._timeout, "channel")
        return opened[0]

    def _on_channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if not isinstance(reason, pika.exceptions.ChannelClosedByClient):
            self.fail(reason)

    def call(
        self, requests: Iterable[Callable[..., Any]], what: str, *, patience: int = 1,
        unless: Callable[[], object] = lambda: False,
    ) -> list[Any]:  # fmt: skip
        """Make several requests, each of which takes a `callback` for its answer, and return all answers.

        It may take `patience` times the time of one answer, and ends with `unless()`: then some may be missing.
        """
        answers: list[Any] = []

        def on_answer(frame: Any = None) -> None:
            answers.append(frame)
            self._loop.stop()

        self._check()
        count = 0
        with self.transport:
            for request in requests:
                request(callback=on_answer)
                count += 1
        self.run(lambda: len(answers) == count or unless(), self._timeout * patience, what)
        return answers

    # Leaving -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say good-bye, not waiting long for the answer, unless something is known to be wrong: see `recover`."""
        self._leaving = True
        try:
            if self.is_open:
                self.transport.close()
                with contextlib.suppress(ConnectionFailed):
                    self.run(lambda: self.transport.is_closed, self._timeout, "connection.close")
        finally:
            self.drop()

    def drop(self) -> None:
        """End the connection without a word; the broker takes back what is unacknowledged."""
        reason = ConnectionFailed("the session is over")
        self._error = self._error or reason
        transport = self.transport
        terminate = getattr(transport, "_terminate_stream", None)
        if terminate is not None and not transport.is_closed:
            # pika offers a good-bye only; without this, the socket would stay until it is collected.
            with contextlib.suppress(Exception):
                terminate(reason)
                # The first turn may end before it began, by a `stop` from outside the loop.
                for _ in range(3):
                    self.serve(0)
        self._loop.close()
