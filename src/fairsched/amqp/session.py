"""A connection that its caller drives, call by call, for programs that make a few requests and end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import pika
import pika.exceptions

from fairsched.amqp.errors import broker_text, describe, is_final, is_missing, is_refusal
from fairsched.amqp.polling.ioloop import Loop
from fairsched.amqp.transport import Transport
from fairsched.amqp.urls import endpoint, mask_url, parameters
from fairsched.errors import ConnectionFailed, FairschedError, QueueNotFound, RequestRefused

#: pika has its own timeouts for opening; they are this much longer, in seconds, so that the caller's timeout decides.
_GRACE = 2.0
#: Bytes per read of the socket: no other thread waits for the GIL, and the caller wants all messages.
_RECEIVE = 256 * 1024


class Session:
    """One connection, served in the caller's thread, and only while a call waits for its answer.

    Parameters
    ----------
    url : str
        URL of the broker.
    timeout : float
        Longest time for connecting, and for each answer, in seconds.
    heartbeat : int or None
        Seconds; 0 switches heartbeats off, None leaves them to the URL.

    Raises
    ------
    ConnectionFailed
        From any call, if the broker cannot be reached, refuses, disconnects, or does not answer in time. The message
        names host and port, never a password. `RequestRefused` if no retry will help, such as `QueueNotFound` if a
        queue does not exist.
    KeyboardInterrupt
        From the current call, or the next one, after `interrupt`.

    Notes
    -----
    Uses pika's `SelectConnection`, since `BlockingConnection` has no future in pika. Nothing is sent between calls, not
    even heartbeats. Not thread-safe, except for `interrupt` and `wake`.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, heartbeat: int | None = None) -> None:
        #: host:port
        self.address = endpoint(url)
        self.transport: Any = None
        #: Whether `interrupt` was called: calls raise KeyboardInterrupt.
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
            # pika reports some refusals by raising, and its text may quote a secret.
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
        """Whether the connection is open and no error is known."""
        return self._error is None and self.transport.is_open

    @property
    def error(self) -> BaseException | None:
        """The error that calls raise, as pika has it; None: none is known."""
        return self._error

    @property
    def server(self) -> str:
        """Product and version of the broker."""
        found = self.transport.server_properties or {}
        return " ".join(str(found[key]) for key in ("product", "version") if key in found) or "an AMQP broker"

    # Driving -----------------------------------------------------------------------------------------------------

    def run(self, done: Callable[[], object], timeout: float, what: str) -> None:
        """Serve the connection until `done()`; ConnectionFailed after `timeout` seconds, or when it is lost."""
        if not self._served(done, timeout):
            self._error = TimeoutError(f"no answer within {timeout:g} s" + (f" ({what})" if what else ""))
            raise self._failure(self._error)

    def serve_until(self, done: Callable[[], object], seconds: float) -> None:
        """Serve the connection until `done()`, for at most `seconds`; ConnectionFailed if it is lost."""
        self._served(done, seconds)

    def _served(self, done: Callable[[], object], seconds: float) -> bool:
        """Serve the connection; return whether `done()` became true in time."""
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
        """Raise the known error, or KeyboardInterrupt after `interrupt`."""
        if self._hurried or (self.interrupted and not self._leaving):
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._failure(self._error) from None

    def serve(self, seconds: float) -> None:
        """Serve the connection for `seconds`, or until `stop`."""
        timer = self._loop.call_later(seconds, self._loop.stop)
        self._loop.start()
        self._loop.remove_timeout(timer)

    def stop(self) -> None:
        """Make `run` check its condition."""
        self._loop.stop()

    def wake(self) -> None:
        """Make `run` and `serve_until` check their condition, from any thread; does nothing once it is over."""
        with contextlib.suppress(Exception):  # the loop may be closed by now
            self._loop.add_callback_threadsafe(self._loop.stop)

    def fail(self, error: BaseException) -> None:
        """Make the current call and every later one raise."""
        self._error = self._error or error
        self._loop.stop()

    def recover(self) -> None:
        """Continue after an error that cost only a channel or an answer."""
        if self.transport.is_open:
            self._error = None

    def interrupt(self, now: bool = False) -> None:
        """End the current call, from any thread; `now` also ends the closing handshake.

        An exception that a signal raises inside pika could lose an answer or cut a frame in two, so that the closing
        handshake would wait for the whole timeout.
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

    def close_channel(self, channel: pika.channel.Channel) -> None:
        """Close a channel, and wait for the answer."""
        self._check()
        channel.close()
        self.run(lambda: channel.is_closed, self._timeout, "channel.close")

    def _on_channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if isinstance(reason, pika.exceptions.ChannelClosedByClient):
            self._loop.stop()
        else:
            self.fail(reason)

    def call(
        self, requests: Iterable[Callable[..., Any]], what: str, *, patience: int = 1,
        unless: Callable[[], object] = lambda: False,
    ) -> list[Any]:  # fmt: skip
        """Make several requests, each of which takes a `callback` for its answer, and return all answers.

        Wait at most `patience` times the timeout of one answer. If `unless()` ends the wait, answers may be missing.
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
        """Close the connection with a handshake, unless an error is known: see `recover`."""
        self._leaving = True
        try:
            if self.is_open:
                self.transport.close()
                with contextlib.suppress(ConnectionFailed):
                    self.run(lambda: self.transport.is_closed, self._timeout, "connection.close")
        finally:
            self.drop()

    def drop(self) -> None:
        """End the connection without a handshake; the broker requeues unacknowledged messages."""
        reason = ConnectionFailed("the session is over")
        self._error = self._error or reason
        transport = self.transport
        terminate = getattr(transport, "_terminate_stream", None)
        if terminate is not None and not transport.is_closed:
            # pika offers only the handshake; without this, the socket would stay open until it is collected.
            with contextlib.suppress(Exception):
                terminate(reason)
                # The first turn may end at once because of a `stop` from outside the loop.
                for _ in range(3):
                    self.serve(0)
        self._loop.close()
