"""The depths of queues, asked no more often than needed, over a connection that may be gone each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed, QueueNotFound
from fairsched.spark.broker import Broker, Retries, close_channel, open_session


def message_counts(
    session: Session, channel: Any, queues: Iterable[str], *, patience: int = 1,
    unless: Callable[[], object] = lambda: False,
) -> dict[str, int]:  # fmt: skip
    """Messages that are ready, by queue, asked on a channel; see `Session.call` for `patience` and `unless`."""
    names = list(queues)
    requests = [partial(channel.queue_declare, name, passive=True) for name in names]
    answers = session.call(requests, "queue.declare", patience=patience, unless=unless)
    return {name: int(answer.method.message_count) for name, answer in zip(names, answers, strict=False)}


def depths(session: Session, queues: Iterable[str]) -> dict[str, int]:
    """Messages that are ready, by queue; QueueNotFound if there is no such queue."""
    channel = session.channel()
    found = message_counts(session, channel, queues)
    close_channel(session, channel)
    return found


class DepthProbe:
    """Asks for depths.

    Parameters
    ----------
    broker : Broker
        Where the queues are.
    queues : sequence of str
        Their names.
    interval : float
        Seconds between two looks. Spark asks every ten milliseconds while there is nothing to do.
    wait, clock : callable
        Time, for tests.

    Notes
    -----
    For one thread. The connection is not served between looks, so it has no heartbeat, and a lost one is replaced.
    """

    def __init__(
        self,
        broker: Broker,
        queues: Sequence[str],
        interval: float,
        *,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = Broker(broker.urls, 0, broker.timeout, broker.retries)
        self._queues = queues
        self._interval = interval
        self._wait = wait
        self._clock = clock
        self._asked: float | None = None
        self._session: Session | None = None

    def depths(self) -> dict[str, int]:
        """Return the messages that are ready, by queue; waits until the last look is `interval` seconds ago."""
        if self._asked is not None:
            self._wait(max(0.0, self._asked + self._interval - self._clock()))
        retries = Retries(self._broker, wait=self._wait)
        while True:
            session = self._connected()
            try:
                return depths(session, self._queues)
            except QueueNotFound as error:
                self.close()
                remedy = "the source creates no queues: declare it, or remove it from option queues"
                raise QueueNotFound(f"{error}; {remedy}") from None
            except ConnectionFailed as error:
                self.close()
                retries.failed(error)
            finally:
                self._asked = self._clock()

    def _connected(self) -> Session:
        if self._session is None or not self._session.is_open:
            self.close()
            self._session = open_session(self._broker, wait=self._wait)
        return self._session

    def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
