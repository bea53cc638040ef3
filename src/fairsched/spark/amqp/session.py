"""A connection to the broker that its caller drives, call by call: tasks have no thread to spare for one.

`Session.collect` hands out deliveries undecoded, cut apart in compiled code; `source.rows` decodes them. An object is
for one thread; between calls the connection is not served.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import pika
from pika.adapters.select_connection import IOLoop

from fairsched.amqp.backoff import Backoff
from fairsched.amqp.errors import describe, is_missing
from fairsched.amqp.urls import endpoint, mask_url, parameters
from fairsched.errors import ConnectionFailed, FairschedError, QueueNotFound
from fairsched.spark.amqp.collected import Collected, close_channel
from fairsched.spark.amqp.transport import ScanningTransport
from fairsched.spark.broker import Broker

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Retries:
    """Retries(broker, wait=time.sleep)
    --

    Counts the failures in a row of what is done over a connection, and says when there were too many.

    Parameters
    ----------
    broker : Broker
        ``retries`` are allowed.
    wait : callable
        Lets so many seconds pass.
    """

    def __init__(self, broker: Broker, *, wait: Callable[[float], None] = time.sleep) -> None:
        self._most = self._left = broker.retries
        self._backoff = Backoff(0.5, 10.0)
        self._wait = wait

    def failed(self, error: ConnectionFailed) -> None:
        """Wait, and return if it is to be tried again; else raise the error."""
        if self._left == 0 or isinstance(error, QueueNotFound):
            raise error
        self._left -= 1
        _log.warning("trying again: %s", error)
        self._wait(self._backoff.failed())

    def succeeded(self) -> None:
        """Note that something was done, so that as many failures are allowed as in the beginning."""
        if self._left < self._most:
            self._left = self._most
            self._backoff.succeeded()


def over_session(broker: Broker, work: Callable[[Session], T], end: Callable[[Session], None]) -> T:
    """over_session(broker, work, end)
    --

    Do something that can be done again over a connection, and over new ones when it is lost.

    Parameters
    ----------
    broker : Broker
        Where, and how patiently.
    work : callable
        Called with an open session.
    end : callable
        Ends it: `Session.close`, or `Session.drop`.

    Returns
    -------
    object
        What `work` returned.

    Raises
    ------
    ConnectionFailed
        The connection was lost ``1 + broker.retries`` times, or none was had.
    """
    retries = Retries(broker)
    while True:
        session = open_session(broker)
        try:
            return work(session)
        except ConnectionFailed as error:
            retries.failed(error)
        finally:
            end(session)


def open_session(broker: Broker, *, wait: Callable[[float], None] = time.sleep) -> Session:
    """open_session(broker, wait=time.sleep)
    --

    Connect to the first URL that answers.

    Parameters
    ----------
    broker : Broker
        Where, and how patiently.
    wait : callable
        Lets so many seconds pass.

    Returns
    -------
    Session
        Open.

    Raises
    ------
    ConnectionFailed
        None answered in ``1 + broker.retries`` rounds; the message names hosts and ports only.
    """
    backoff = Backoff(0.5, 10.0)
    problems: dict[str, str] = {}
    for attempt in range(1 + broker.retries):
        for url in broker.urls:
            try:
                return Session(url, broker)
            except ConnectionFailed as error:
                problems[endpoint(url)] = str(error)
        if attempt < broker.retries:
            wait(backoff.failed())
    raise ConnectionFailed("; ".join(problems.values()))


class Session:
    """Session(url, broker)
    --

    One open connection.

    Parameters
    ----------
    url : str
        Of the broker.
    broker : Broker
        Heartbeat and time allowed for an answer.

    Raises
    ------
    ConnectionFailed
        The broker was not reached or refused.
    """

    def __init__(self, url: str, broker: Broker) -> None:
        self._loop = IOLoop()
        self._timeout = broker.timeout
        self._error: BaseException | None = None
        self._open = False
        #: host:port
        self.address = endpoint(url)
        settings = parameters(url)
        settings.heartbeat = broker.heartbeat
        settings.socket_timeout = settings.stack_timeout = broker.timeout
        settings.connection_attempts = 1
        try:
            self.transport = ScanningTransport(
                settings,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_lost,
                on_close_callback=self._on_lost,
                custom_ioloop=self._loop,
            )
            self.run(lambda: self._open, broker.timeout, "connection")
        except ConnectionFailed:
            self.drop()
            raise
        except Exception as error:
            # pika reports some refusals by raising, and its text may quote what must not be shown.
            raise ConnectionFailed(f"{self.address}: {mask_url(describe(error))}") from None

    def _on_open(self, connection: ScanningTransport) -> None:
        connection.open_shortcut()
        self._open = True
        self._loop.stop()

    def _on_lost(self, _connection: Any, error: BaseException) -> None:
        self.fail(error)

    # Driving -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether nothing is known to be wrong."""
        return self._error is None and self.transport.is_open

    def fail(self, error: BaseException) -> None:
        """Have the call that is under way, and every later one, raise."""
        self._error = self._error or error
        self._loop.stop()

    def stop(self) -> None:
        """Have `run` look at its condition."""
        self._loop.stop()

    def run(self, done: Callable[[], object], timeout: float, what: str) -> None:
        """Serve the connection until `done()`; ConnectionFailed after `timeout` seconds, or when it is lost."""
        deadline = time.monotonic() + timeout
        while True:
            if self._error is not None:
                raise self._failure(self._error)
            if done():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                self._error = TimeoutError(f"no answer within {timeout:g} s ({what})")
                continue
            self.serve(left)

    def serve(self, seconds: float) -> None:
        """Serve the connection for so long, or until `stop`."""
        timer = self._loop.call_later(seconds, self._loop.stop)
        self._loop.start()
        self._loop.remove_timeout(timer)

    def _failure(self, error: BaseException) -> Exception:
        if isinstance(error, FairschedError):
            return error
        text = f"{self.address}: {mask_url(describe(error))}"
        return QueueNotFound(text) if is_missing(error) else ConnectionFailed(text)

    def channel(self) -> pika.channel.Channel:
        """Open a channel; if the broker closes it, the session fails."""
        opened: list[Any] = []

        def on_open(channel: Any) -> None:
            channel.add_on_close_callback(self._on_channel_closed)
            opened.append(channel)
            self._loop.stop()

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

        count = 0
        with self.transport:
            for request in requests:
                request(callback=on_answer)
                count += 1
        self.run(lambda: len(answers) == count or unless(), self._timeout * patience, what)
        return answers

    # What is done with it ----------------------------------------------------------------------------------------

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """Messages that are ready, by queue; QueueNotFound if there is no such queue."""
        channel = self.channel()
        found = self.counts(channel, queues)
        self.call([partial(close_channel, channel)], "channel.close")
        return found

    def counts(
        self, channel: Any, queues: Iterable[str], unless: Callable[[], object] = lambda: False
    ) -> dict[str, int]:
        """Messages that are ready, by queue, asked on a channel; see `call` for `unless`."""
        names = list(queues)
        requests = [partial(channel.queue_declare, name, passive=True) for name in names]
        answers = self.call(requests, "queue.declare", unless=unless)
        return {name: int(answer.method.message_count) for name, answer in zip(names, answers, strict=False)}

    def collect(self, windows: Mapping[str, int], *, idle: float, most_bytes: int | None = None) -> Collected:
        """Consume up to `windows` messages of each queue, acknowledging none; see `Collected`.

        Ends when all windows are full, when `most_bytes` of bodies are here, or as `fill` says.
        Consumers are cancelled before it returns: an acknowledgement must not make the broker send more.
        """
        found = Collected(self, sum(windows.values()), most_bytes)
        found.consume(windows, {})
        self.fill(found, idle)
        found.cancel()
        return found

    def fill(self, found: Collected, idle: float) -> None:
        """Serve the connection until `found` is full, or there is nothing more for it: see `Collected.is_silent`.

        That is asked whenever `idle` seconds brought nothing. They prove nothing themselves: the broker may be slow, or
        stopped for a while.
        """
        while not found.full:
            before = len(found.deliveries)
            self.serve_until(lambda: found.full, idle)
            if len(found.deliveries) == before and not found.full and found.is_silent():
                return

    def serve_until(self, done: Callable[[], object], seconds: float) -> None:
        """Serve the connection until `done()`, but no longer than so many seconds; ConnectionFailed if it is lost."""
        deadline = time.monotonic() + seconds
        while True:
            if self._error is not None:
                raise self._failure(self._error)
            left = deadline - time.monotonic()
            if done() or left <= 0:
                return
            self.serve(left)

    def close(self) -> None:
        """Say goodbye, not waiting long for the answer; the broker takes back what is unacknowledged."""
        if self.is_open:
            self.transport.close()
            with contextlib.suppress(ConnectionFailed):
                self.run(lambda: self.transport.is_closed, self._timeout, "connection.close")
        self.drop()

    def drop(self) -> None:
        """End the connection without a word; a stream's consumer must not be cancelled."""
        reason = ConnectionFailed("the session is over")
        self._error = self._error or reason
        terminate = getattr(getattr(self, "transport", None), "_terminate_stream", None)
        if terminate is not None and not self.transport.is_closed:
            # pika offers a goodbye only; without this, the socket would stay until it is collected.
            with contextlib.suppress(Exception):
                terminate(reason)
                # The first turn may end before it began, by a `stop` from outside the loop.
                for _ in range(3):
                    self.serve(0)
        self._loop.close()
