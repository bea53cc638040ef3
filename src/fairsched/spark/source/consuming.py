"""What was consumed on one channel, undecoded and unacknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import spec

from fairsched._amqp import AckLedger
from fairsched._delivery import CollectedDeliveries
from fairsched.amqp.properties import ReceivedProperties
from fairsched.amqp.session import Session
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.spark.broker import close_channel
from fairsched.spark.source.depths import message_counts

if TYPE_CHECKING:
    from pika.spec import Basic, BasicProperties

#: More than there ever is.
ENDLESS = 2**62

#: A read costs as much as fifty messages. After one of fewer bytes the broker is given so many seconds to send more.
_SMALL, _PAUSE = 131_072, 0.005

_DELIVER = spec.Basic.Deliver.INDEX.to_bytes(4, "big")
#: Stands for what comes before the properties in a content header: class, weight, size of the body.
_BEFORE = bytes(12)


class ConsumingChannel:
    """A channel with consumers, and its deliveries, unacknowledged and undecoded, in the order of arrival.

    Parameters
    ----------
    session : Session
        An open connection.
    wanted : int
        Messages.
    most_bytes : int or None
        Bytes of bodies; the message that reaches them is the last one.
    surplus : bool
        Whether what comes when all that is wanted is here is kept, not dropped: nobody asked for it, and the broker
        takes it back with the channel.

    Attributes
    ----------
    deliveries : CollectedDeliveries
        Delivery tags are 1, 2, 3, …
    queues : dict of bytes to str
        Queue by consumer tag.
    """

    def __init__(self, session: Session, wanted: int, most_bytes: int | None, *, surplus: bool = False) -> None:
        self._session = session
        self._channel = session.channel()
        self.number: int = self._channel.channel_number
        self.deliveries = CollectedDeliveries(surplus)
        self.deliveries.want(wanted, ENDLESS if most_bytes is None else most_bytes)
        self.queues: dict[bytes, str] = {}
        #: What had come when it was looked last, and bytes that the connection had received.
        self._seen = self._received = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is wanted."""
        return self.deliveries.full

    def consume(self, windows: Mapping[str, int], arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """Open a consumer for each queue; deliveries may come before this returns."""
        channel, transport = self._channel, self._session.transport
        transport.sinks[self.number] = self.deliveries
        transport.after_read = self._after_read
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
                partial(channel.basic_consume, name, self._on_message, consumer_tag=tag, arguments=arguments.get(name))
            )
        self._session.call(requests, "basic.consume")

    def _after_read(self) -> None:
        """Look at what a read has brought."""
        received = self._session.transport.bytes_received
        came, small = self.deliveries.came != self._seen, received - self._received < _SMALL
        self._seen, self._received = self.deliveries.came, received
        if came:
            self.took()
            if small and not self.full:
                time.sleep(_PAUSE)

    def took(self) -> None:
        """Have whoever waits look at what came."""
        if self.full:
            self._session.stop()

    def _on_message(self, _channel: Any, delivery: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        """Take a delivery that came in more frames than three, or for which there is no short cut."""
        if isinstance(properties, ReceivedProperties):
            header = properties.header
        else:
            header = _BEFORE + b"".join(properties.encode())
        self.deliveries.deliver(_DELIVER + b"".join(delivery.encode()), header, body)
        if not self._session.transport.reading:
            self.took()

    def counts(self, queues: Iterable[str]) -> dict[str, int]:
        """Messages that are ready, by queue, asked on the channel of the deliveries; stops asking when it is full."""
        return message_counts(self._session, self._channel, queues, unless=lambda: self.full)

    def fill(self, idle: float) -> None:
        """Serve the connection until this is full, or there is nothing more for it: see `is_silent`.

        That is asked whenever `idle` seconds brought nothing. They prove nothing themselves: the broker may be slow, or
        stopped for a while.
        """
        while not self.full:
            before = self.deliveries.came
            self._session.serve_until(lambda: self.full, idle)
            if self.deliveries.came == before and not self.full and self.is_silent():
                return

    def is_silent(self) -> bool:
        """Ask the queues, and return whether they had nothing more for these consumers when they were asked.

        Answers and deliveries come one after the other, on the same channel. Each queue is asked twice: its first
        answer may overtake what it had sent to the channel before.
        """
        before = self.deliveries.came
        for _ in range(2):
            self.counts(self.queues.values())
        return self.deliveries.came == before and not self.full

    def cancel(self) -> None:
        """Stop all consumers; what still comes goes back with the channel."""
        self.deliveries.close()
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
        self._session.transport.after_read = lambda: None


def collect(
    session: Session,
    windows: Mapping[str, int],
    *,
    arguments: Mapping[str, Any],
    idle: float,
    most_bytes: int | None,
) -> ConsumingChannel:
    """Consume up to `windows` messages of each queue, with these `arguments` of consumers, acknowledging none.

    Ends when all windows are full, when `most_bytes` of bodies are here, or as `ConsumingChannel.fill` says.
    Consumers are cancelled before it returns: an acknowledgement must not make the broker send more.
    """
    found = ConsumingChannel(session, sum(windows.values()), most_bytes)
    found.consume(windows, dict.fromkeys(windows, arguments))
    found.fill(idle)
    found.cancel()
    return found
