"""What was consumed on one channel, undecoded and unacknowledged: the seam for a compiled delivery path."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from pika.compat import as_bytes

from fairsched._amqp import AckLedger
from fairsched.spark.source.rows import Delivery

if TYPE_CHECKING:
    from fairsched.spark.amqp.session import Session

#: Most unsettled messages that basic.qos can express.
LARGEST_WINDOW = 65_535
#: More than there ever is.
ENDLESS = 2**62
_DELIVER, _TAG, _HEADER = Struct(">HHB"), Struct(">QB"), Struct(">HHQ")


def close_channel(channel: Any, callback: Callable[[Any], None]) -> None:
    """Close a channel and call back with the broker's answer."""
    channel.add_on_close_callback(lambda _channel, _reason: callback(None))
    channel.close()


class Collected:
    """Collected(session, wanted, most_bytes)
    --

    Deliveries of one channel, unacknowledged, in the order of arrival.

    Attributes
    ----------
    deliveries : list of Delivery
        Delivery tags are 1, 2, 3, …
    queues : dict of bytes to str
        Queue by consumer tag.
    """

    def __init__(self, session: Session, wanted: int, most_bytes: int | None) -> None:
        self.deliveries: list[Delivery] = []
        self.queues: dict[bytes, str] = {}
        self.full = wanted == 0
        #: Messages, and bytes of bodies, that are still wanted.
        self.room, self.space = wanted, ENDLESS if most_bytes is None else most_bytes
        self._session = session
        self._channel = session.channel()
        self.number: int = self._channel.channel_number

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
            count = window if window <= LARGEST_WINDOW else 0
            if count != before:
                requests.append(partial(channel.basic_qos, prefetch_count=count))
                before = count
            requests.append(
                partial(
                    channel.basic_consume, name, self._take_decoded, consumer_tag=tag, arguments=arguments.get(name)
                )
            )
        self._session.call(requests, "basic.consume")

    def took(self, room: int, space: int) -> None:
        """Note what is still wanted."""
        self.room, self.space = room, space
        if room <= 0 or space <= 0:
            self.full = True
            self._session.stop()

    def _take(self, _tag: int, _redelivered: int, method: bytes, header: bytes, body: bytes) -> None:
        self.take(method, header, body)

    def take(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a delivery that came among other frames, or in more than three."""
        if self.full:
            return  # Nobody asked for it: the broker takes it back with the channel.
        self.deliveries.append((method, header, body, time.time_ns()))
        self.took(self.room - 1, self.space - len(body))

    def _take_decoded(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Take a delivery that took pika's way, where there is no short cut."""
        tag, exchange, key = map(as_bytes, (method.consumer_tag, method.exchange, method.routing_key))
        raw = b"".join(
            [
                _DELIVER.pack(60, 60, len(tag)), tag, _TAG.pack(method.delivery_tag, method.redelivered),
                bytes([len(exchange)]), exchange, bytes([len(key)]), key,
            ]
        )  # fmt: skip
        header = b"".join([_HEADER.pack(60, 0, len(body)), *properties.encode()])
        self.take(raw, header, body)

    def counts(self, queues: Iterable[str]) -> dict[str, int]:
        """Messages that are ready, by queue, asked on the channel of the deliveries; stops asking when it is full."""
        return self._session.counts(self._channel, queues, lambda: self.full)

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
        channel = self._channel
        if channel.is_open:
            self._session.call([partial(close_channel, channel)], "channel.close", patience=patience)
        self._session.transport.sinks.pop(self.number, None)
        self._session.transport.target = None
