"""Counts of each queue's consumers, asked for rarely, in the I/O thread, on a channel of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop
    from pika.channel import Channel
    from pika.frame import Method
    from pika.spec import Queue

    from fairsched.amqp.transport import Transport

_log = logging.getLogger(__name__)

#: Seconds between two looks, and before the first, when our own consumers are being registered.
PERIOD, FIRST = 2.0, 0.5


class ConsumerCounts:
    """Knows whether others consume our queues.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers are used.
    queues : iterable of str
        The queues that are asked about.
    own : callable
        ``own(queue)`` is the number of consumers that this connection has on it.

    Notes
    -----
    `alone` is safe from any thread, the rest is for the I/O thread. A passive declare of a queue that is missing
    closes its channel, so it is not done on one that consumes. Until the first answer, and while there is no
    connection, every queue counts as consumed by this alone.
    """

    def __init__(self, loop: IOLoop, queues: Iterable[str], own: Callable[[str], int]) -> None:
        self._loop = loop
        self._queues = tuple(queues)
        self._own = own
        self._others: dict[str, int] = {}
        self._connection: Transport | None = None
        self._channel: Channel | None = None
        self._due: object = None

    def alone(self, queue: str) -> bool:
        """Return whether this is the only known consumer of a queue."""
        return self._others.get(queue, 0) <= 0

    def connected(self, connection: Transport) -> None:
        """Use a new connection."""
        self._connection = connection
        if self._queues:
            self._again(FIRST)

    def take(self, queues: Iterable[str]) -> None:
        """Ask about other queues from now on."""
        self._queues = tuple(queues)
        self._others = {name: count for name, count in self._others.items() if name in self._queues}
        if self._queues and self._connection is not None and self._due is None and self._channel is None:
            self._again(FIRST)

    def disconnected(self) -> None:
        """Know nothing any more."""
        self._connection = self._channel = None
        self._others = {}
        if self._due is not None:
            self._loop.remove_timeout(self._due)
            self._due = None

    def _again(self, delay: float) -> None:
        self._due = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        self._due = None
        connection, channel = self._connection, self._channel
        if connection is None or not connection.is_open:
            return
        if channel is None:
            connection.channel(on_open_callback=self._opened)
            return
        if channel.is_open:
            for queue in self._queues:
                channel.queue_declare(queue, passive=True, callback=self._answered(queue))
        self._again(PERIOD)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._closed)
        self._look()

    def _answered(self, queue: str) -> Callable[[Method[Queue.DeclareOk]], None]:
        def note(frame: Method[Queue.DeclareOk]) -> None:
            if queue in self._queues:
                self._others[queue] = frame.method.consumer_count - self._own(queue)

        return note

    def _closed(self, channel: Channel, reason: Any) -> None:
        # Another is opened at the next look, which is on its way.
        if channel is self._channel:
            _log.debug("cannot ask for consumers, trying again: %s", reason)
            self._channel = None
            self._others = {}
