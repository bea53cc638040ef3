"""What was consumed on one channel, undecoded and unacknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pika

from fairsched._amqp import AckLedger
from fairsched.amqp.session import Session
from fairsched.errors import FairschedError
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.spark.broker import close_channel
from fairsched.spark.source.depths import message_counts
from fairsched.spark.transport import DeliveryBuffer


class ConsumingChannel(DeliveryBuffer):
    """A channel with consumers, and its deliveries, unacknowledged and undecoded, in the order of arrival.

    Parameters
    ----------
    session : Session
        An open connection, with a `BulkTransport`.
    wanted, most_bytes
        As `DeliveryBuffer` has them.

    Attributes
    ----------
    deliveries : list of Delivery
        Delivery tags are 1, 2, 3, …
    queues : dict of bytes to str
        Queue by consumer tag.
    """

    def __init__(self, session: Session, wanted: int, most_bytes: int | None) -> None:
        self._session = session
        self._channel = session.channel()
        super().__init__(self._channel.channel_number, wanted, most_bytes)
        self.queues: dict[bytes, str] = {}

    def consume(self, windows: Mapping[str, int], arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """Open a consumer for each queue; deliveries may come before this returns."""
        channel = self._channel
        self._session.transport.sinks[self.number] = self._take
        self._session.transport.target = self
        requests: list[Callable[..., Any]] = []
        before = -1
        for number, (name, window) in enumerate(windows.items()):
            tag = f"fairsched-{number}"
            self.queues[tag.encode()] = name
            count = window if window <= LARGEST_PREFETCH else 0
            if count != before:
                requests.append(partial(channel.basic_qos, prefetch_count=count))
                before = count
            requests.append(
                partial(channel.basic_consume, name, self._refuse, consumer_tag=tag, arguments=arguments.get(name))
            )
        self._session.call(requests, "basic.consume")

    def took(self, room: int, space: int) -> None:
        """Note what is still wanted, and have whoever waits look at it."""
        super().took(room, space)
        if self.full:
            self._session.stop()

    def _take(self, _tag: int, _redelivered: int, method: bytes, header: bytes, body: bytes) -> None:
        self.take(method, header, body)

    def _refuse(self, *_decoded: Any) -> None:
        """Refuse what pika has decoded: `BulkTransport` leaves it no delivery, unless it does not know this pika."""
        text = f"pika {pika.__version__} keeps its input in a way that is not known here; the source needs 1.4"
        self._session.fail(FairschedError(text))

    def counts(self, queues: Iterable[str]) -> dict[str, int]:
        """Messages that are ready, by queue, asked on the channel of the deliveries; stops asking when it is full."""
        return message_counts(self._session, self._channel, queues, unless=lambda: self.full)

    def fill(self, idle: float) -> None:
        """Serve the connection until this is full, or there is nothing more for it: see `is_silent`.

        That is asked whenever `idle` seconds brought nothing. They prove nothing themselves: the broker may be slow, or
        stopped for a while.
        """
        while not self.full:
            before = len(self.deliveries)
            self._session.serve_until(lambda: self.full, idle)
            if len(self.deliveries) == before and not self.full and self.is_silent():
                return

    def is_silent(self) -> bool:
        """Ask the queues, and return whether they had nothing more for these consumers when they were asked.

        Answers and deliveries come one after the other, on the same channel. Each queue is asked twice: its first
        answer may overtake what it had sent to the channel before.
        """
        before = len(self.deliveries)
        for _ in range(2):
            self.counts(self.queues.values())
        return len(self.deliveries) == before and not self.full

    def cancel(self) -> None:
        """Stop all consumers; what still comes goes back with the channel."""
        self.full = True
        with self._session.transport:
            for tag in self.queues:
                # Without a callback nobody waits for the answer: the broker reads this before any acknowledgement.
                self._channel.basic_cancel(tag.decode())

    def acknowledge(self, count: int) -> None:
        """Acknowledge the first `count` deliveries."""
        if count:
            self._channel.basic_ack(count, multiple=True)

    def settle(self, verdicts: Iterable[tuple[int, int, bool]]) -> None:
        """Settle deliveries as `AckLedger.flush` says; by basic.nack, which no queue counts as a failure."""
        with self._session.transport:
            for verdict, tag, multiple in verdicts:
                if verdict == AckLedger.ACK:
                    self._channel.basic_ack(tag, multiple)
                else:
                    self._channel.basic_nack(tag, multiple, requeue=verdict == AckLedger.REQUEUE)

    def close(self, patience: int = 1) -> None:
        """Close the channel and return when the broker has handled all that was sent on it; see `Session.call`."""
        if self._channel.is_open:
            close_channel(self._session, self._channel, patience)
        self._session.transport.sinks.pop(self.number, None)
        self._session.transport.target = None


def collect(session: Session, windows: Mapping[str, int], *, idle: float, most_bytes: int | None) -> ConsumingChannel:
    """Consume up to `windows` messages of each queue, acknowledging none.

    Ends when all windows are full, when `most_bytes` of bodies are here, or as `ConsumingChannel.fill` says.
    Consumers are cancelled before it returns: an acknowledgement must not make the broker send more.
    """
    found = ConsumingChannel(session, sum(windows.values()), most_bytes)
    found.consume(windows, {})
    found.fill(idle)
    found.cancel()
    return found
