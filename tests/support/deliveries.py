"""A broker in memory, for the delivery path alone: it makes the frames that deliver, and reads those that settle."""

from __future__ import annotations

import gc
import struct
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from fairsched import FairQueue, ShutDown
from fairsched.amqp._ackledger import AckLedger
from fairsched.delivery._ackpolicy import AckPolicy
from fairsched.delivery._counters import Counters
from fairsched.delivery._delivery import (
    ChannelDeliveries,
    Intake,
    LentConnection,
    Message,
    Settlements,
    give_deliveries,
)
from fairsched.delivery._messagesource import MessageSource
from fairsched.delivery._settling import settle_failed

ACK, REQUEUE, REJECT = AckLedger.ACK, AckLedger.REQUEUE, AckLedger.REJECT
FRAME_MAX = 131072
_ACK, _NACK = 60 << 16 | 80, 60 << 16 | 120


def framed(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHL", kind, channel, len(payload)) + payload + b"\xce"


def delivery(channel: int, tag: int, body: bytes, redelivered: bool = False, properties: bytes = b"\0\0") -> bytes:
    """Return the frames that deliver a message: a method, a content header, and a body unless it is empty."""
    method = b"\0\x3c\0\x3c" + b"\x02ct" + struct.pack(">Q?", tag, redelivered) + b"\x02ex" + b"\x03key"
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    return framed(1, channel, method) + framed(2, channel, header) + (framed(3, channel, body) if body else b"")


def octets_kept(message: Message) -> int:
    """Return how long the frames are in which a message has its method and its content header in."""
    return max(len(found) for found in gc.get_referents(message) if type(found) is bytes)


class Channel(ChannelDeliveries):
    """The deliveries of one channel; `broker` and `number` say where its settlements go."""

    def __init__(self, queue: str, settlements: Settlements, broker: Broker, number: int) -> None:
        super().__init__(queue, settlements)
        self.broker, self.number = broker, number
        self.failures: list[BaseException] = []

    def failed(self, message: Message, error: Exception) -> None:
        self.failures.append(error)
        settle_failed(message, REQUEUE)

    def flush(self) -> None:
        if self.alive:
            self.expect(self.ledger.delivered + 1)
            self.broker.read(self.ledger.frames(self.number))


class Broker:
    """Delivers each message until it is acked or rejected; a settlement of what is not out is an error, as in RabbitMQ.

    Attributes
    ----------
    settled : dict of (int, int, int) to int
        Verdict by connection, channel and delivery tag.
    gone : Counter of bytes
        How often each body was acked or rejected.
    """

    def __init__(self, bodies: list[bytes]) -> None:
        self.ready = deque(bodies)
        self.out: dict[int, dict[int, bytes]] = {}
        self.tags: Counter[int] = Counter()
        self.connection = 0
        self.settled: dict[tuple[int, int, int], int] = {}
        self.gone: Counter[bytes] = Counter()

    def frames(self, channel: int, most: int) -> bytes:
        """Deliver on a channel, until that many are unsettled."""
        out, made = self.out.setdefault(channel, {}), []
        while self.ready and len(out) < most:
            self.tags[channel] += 1
            body = out[self.tags[channel]] = self.ready.popleft()
            made.append(delivery(channel, self.tags[channel], body))
        return b"".join(made)

    def read(self, frames: bytes) -> None:
        """Take the settlements of a write."""
        for at in range(0, len(frames), 21):
            kind, channel, size, method, tag, flags, end = struct.unpack_from(">BHLLQBB", frames, at)
            assert (kind, size, end) == (1, 13, 0xCE), frames[at : at + 21]
            assert method in (_ACK, _NACK)
            verdict = ACK if method == _ACK else REQUEUE if flags & 2 else REJECT
            out = self.out[channel]
            assert tag in out, f"PRECONDITION_FAILED - unknown delivery tag {tag}"
            for one in [one for one in out if one <= tag] if flags & 1 else [tag]:
                self.settled[self.connection, channel, one] = verdict
                if verdict == REQUEUE:
                    self.ready.append(out.pop(one))
                else:
                    self.gone[out.pop(one)] += 1

    def lose_connection(self) -> None:
        """Take back what is unsettled; tags begin anew."""
        for out in self.out.values():
            self.ready.extendleft(reversed(out.values()))
        self.out.clear()
        self.tags.clear()
        self.connection += 1


class _Price:
    varies = False


class _WorkerQueues:
    """One worker queue."""

    def __init__(self) -> None:
        self.worker_queue = FairQueue(default_quantum=1)

    def put_many(self, slots: list[Any], messages: list[Message], costs: list[int] | None) -> list[Message]:
        try:
            self.worker_queue.put_many(slots, messages, costs)
        except ShutDown:
            return messages
        return []


class Source(MessageSource):
    """A consumer's delivery path between a `Broker` and the threads that take messages; there is no I/O thread in it.

    The thread that calls `connect`, `deliver` and `send` does the work of a consumer's I/O thread. Tests replace
    `asked`, which is called when `send` is to be, in whatever thread.
    """

    def __init__(
        self, bodies: list[bytes], channels: int = 1, window: int = 100, key: Any = None, cost: Any = None
    ) -> None:
        self.broker = Broker(bodies)
        self.worker_queues = _WorkerQueues()
        self.worker_queue = self.worker_queues.worker_queue
        self.counters, self.policy = Counters(), AckPolicy(channels * window)
        self.window = window
        self.numbers = range(1, channels + 1)
        self.sinks: dict[int, Channel] = {}
        self.asked: Callable[[], object] = lambda: None
        self.charged: list[int] = []
        price = cost or _Price()
        self.intake = Intake(
            self.worker_queues, self.counters, self.policy, key=key, cost=price, defer=self.on_delivery
        )
        self.on_wake: Callable[[], object] = lambda: None
        self.lent = LentConnection(self.intake, self.worker_queue, lambda: self.on_wake())  # noqa: PLW0108  # tests replace it
        self.prepare(Settlements(self.counters, self.policy, self.lent, self.request_flush), False)
        self.time_messages()
        self.connect()

    def on_delivery(self) -> None:
        """Take note of the first delivery of a read."""

    # What `Client` has, and the I/O thread ------------------------------------------------------------------------

    def charge(self, worker_queue: FairQueue, message: Any, difference: int) -> None:
        self.charged.append(difference)

    def check_process(self) -> None:
        pass

    def give_way(self) -> None:
        pass

    def look_at_windows(self) -> None:
        pass

    def look_at_wait(self, message: Message) -> None:
        pass

    def request_flush(self) -> None:
        if self.settlements.waiting and not self.settlements.flush_requested:
            self.settlements.flush_requested = True
            self.asked()

    def connect(self) -> None:
        """Begin with channels on which nothing was delivered."""
        for channel in self.sinks.values():
            channel.alive = False
        for number in self.numbers:
            channel = Channel(f"q-{number}", self.settlements, self.broker, number)
            channel.set_window(self.window, self.window - 1)
            self.sinks[number] = channel

    def deliver(self) -> None:
        """Read what the broker may send."""
        for number in self.numbers:
            buffer = self.broker.frames(number, self.window)
            position, _, _ = give_deliveries(buffer, 0, FRAME_MAX - 8, self.sinks, {})
            assert position == len(buffer)
        self.intake.drain()

    def send(self) -> None:
        """Send what is settled."""
        self.settlements.flush_requested = False
        self.policy.sending()
        for channel in self.settlements.take_unsent():
            channel.flush()
