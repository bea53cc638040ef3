"""The deliveries of one channel, undecoded and unacknowledged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pika import spec

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.properties import ReceivedProperties
from fairsched.amqp.session import Session
from fairsched.delivery._collected import CollectedDeliveries
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.spark.broker import close_channel
from fairsched.spark.source.columns import headers_of
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

#: Header of what came back to a quorum queue.
_COUNT = "x-delivery-count"
#: Commands to a quorum queue that may be under way; RabbitMQ keeps back what is more than 32.
UNDER_WAY = 24
#: Seconds after which messages that went back are elsewhere, though the queue does not have them.
_LONGEST_SETTLING = 1.0


class ConsumingChannel:
    """A channel with consumers, and its deliveries, unacknowledged and undecoded, in the order of arrival.

    Parameters
    ----------
    session : Session
        An open connection.
    wanted : int
        Messages.
    most_bytes : int or None
        Bytes of messages, headers included; the message that reaches them is the last one.
    surplus : bool
        Whether what comes when all that is wanted is here is kept, not dropped: it was not asked for, and the broker
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
        #: Deliveries, and bytes received by the connection, at the last check.
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
        for number, (name, window) in enumerate(windows.items(), len(self.queues)):
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
        """Have the waiting thread look at what came."""
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

    def acknowledge(self, count: int) -> None:
        """Acknowledge the first `count` deliveries."""
        if count:
            self._channel.basic_ack(count, multiple=True)

    def close(self, patience: int = 1) -> None:
        """Close the channel and return when the broker has handled all that was sent on it; see `Session.call`."""
        if self._channel.is_open:
            close_channel(self._session, self._channel, patience)
        self._session.transport.sinks.pop(self.number, None)
        self._session.transport.after_read = lambda: None


class QueuesChannel(ConsumingChannel):
    """Messages of queues, asked for in windows, settled together.

    A quorum queue counts each message that comes back, and drops it at its delivery limit; before RabbitMQ 4.3 it
    counts basic.nack, too. So nothing goes back by accident: all that was asked for is taken, in as
    many parts as fit into memory. What does not fit waits at the broker and in the socket.

    Nothing is settled before all that was asked for is here: a settlement would make the broker send more, and a queue
    takes back what is on its way to a consumer that is cancelled.

    Attributes
    ----------
    exhausted : set of str
        Queues that had less than was asked for.
    withheld : dict of str to int
        Messages that are ready in queues that have not delivered a single one: another consumer is their single active
        one.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session, 0, 0, surplus=True)
        self.exhausted: set[str] = set()
        self.withheld: dict[str, int] = {}
        #: Messages that were ready when the queues were asked last, by queue.
        self._ready: dict[str, int] = {}
        #: Messages of each queue that were asked for and are of no earlier part.
        self._due: Counter[str] = Counter()
        #: Since the channel was opened: messages that were asked for, and deliveries of the parts before this one.
        self._asked = self._before = 0
        #: Deliveries of this part, also when its rows are fewer (see `CollectedDeliveries.arrange`).
        self.part = 0
        self._consuming: dict[str, str] = {}
        #: Windows of this part.
        self.windows = 0
        #: Of all deliveries: the verdicts on those that are not settled yet (None: acknowledge), and how many are.
        self._verdicts: list[tuple[int, Sequence[int] | None]] = []
        self._judged = self._settled = 0

    @property
    def full(self) -> bool:
        """Whether all that was asked for is here, or as much as fits."""
        return self.deliveries.full or self.deliveries.came >= self._asked

    @property
    def remaining(self) -> int:
        """Messages that were asked for and are of no part yet."""
        return self._asked - self._before - self.part

    def begin(self, most: int, most_bytes: int) -> None:
        """Begin the next part, of at most so many messages and bytes."""
        self._before, self.part, self.windows = self._judged, 0, 0
        self.deliveries.want(most, most_bytes)

    def ask(self, windows: Mapping[str, int], arguments: Mapping[str, Any], idle: float) -> None:
        """Ask for so many messages of each queue, and take what comes; returns as `take` does."""
        first = len(self.queues)
        self.windows += 1
        self._asked += sum(windows.values())
        self._due.update(windows)
        self.consume(windows, dict.fromkeys(windows, arguments))
        self._consuming |= {tag.decode(): name for tag, name in [*self.queues.items()][first:]}
        self.take(idle)

    def take(self, idle: float) -> None:
        """Take what was asked for until the part is full, all is here, or the queues have no more (`exhausted`)."""
        self.fill(idle)
        if self.deliveries.came >= self._asked:
            # Without a callback the answer is not waited for: the broker reads this before any settlement.
            with self._session.transport:
                for tag in self._consuming:
                    self._channel.basic_cancel(tag)
            self._consuming = {}
        elif not self.deliveries.full:
            requests = [partial(self._channel.basic_cancel, tag) for tag in self._consuming]
            self._session.call(requests, "basic.cancel")
            # Deliveries that came before the answer are taken too.
            self._consuming, self._asked = {}, self.deliveries.came
            counts, _, _ = self.sizes()
            self.exhausted |= {name for name, due in self._due.items() if counts.get(name, 0) < due}
            # Deliveries at the time of the question do not count: none of these queues has delivered anything.
            silent = {name for name in self._ready if not counts.get(name) and not self._judged}
            self.withheld = {name: self._ready[name] for name in silent if self._ready[name]}
        self.part = self.deliveries.count
        self._counts = Counter(self.sizes()[0])

    def is_silent(self) -> bool:
        """Ask the queues whose messages are still to come; see `ConsumingChannel.is_silent`."""
        before = self.deliveries.came
        for _ in range(2):
            self._ready = self.counts(dict.fromkeys(self._consuming.values()))
        return self.deliveries.came == before and not self.full

    def judge(self, verdicts: Sequence[int] | None) -> None:
        """Note a verdict (of `AckLedger`) on each delivery of this part, in the order of arrival; None: acknowledge."""
        self._verdicts.append((self.part, verdicts))
        self._due -= self._counts
        self._judged += self.part

    def settle(self, patience: int = 1) -> None:
        """Tell the broker all verdicts, and return when the queues have taken them; see `Session.call`.

        By basic.nack, which a quorum queue does not count from RabbitMQ 4.3 on.

        RabbitMQ makes a command of each settlement for each consumer. While many commands to a quorum queue are under
        way, it keeps further ones back, and drops these with the channel. So a few are sent at a time, and in the end
        the queues are asked for their messages until those that went back are among them.
        """
        if self._judged == self._settled:
            return
        frames, queues = self._frames(), dict.fromkeys(self.queues.values())

        def ready() -> int:
            return sum(message_counts(self._session, self._channel, queues, patience=patience).values())

        back = sum(verdicts.count(AckLedger.REQUEUE) for _, verdicts in self._verdicts if verdicts is not None)
        back = back if len(frames) > 1 else 0
        before = ready() if back else 0
        self._settled, self._verdicts = self._judged, []
        for start in range(0, len(frames), UNDER_WAY):
            with self._session.transport:
                for verdict, tag, multiple in frames[start : start + UNDER_WAY]:
                    if verdict == AckLedger.ACK:
                        self._channel.basic_ack(tag, multiple)
                    else:
                        self._channel.basic_nack(tag, multiple, requeue=verdict == AckLedger.REQUEUE)
            after = ready()
        # Other consumers may take them at once.
        until = time.monotonic() + _LONGEST_SETTLING
        while after - before < back and time.monotonic() < until:
            after = ready()

    def _frames(self) -> list[tuple[int, int, bool]]:
        """Verdict, delivery tag and "multiple" of the fewest frames that settle what was judged."""
        if all(verdicts is None for _, verdicts in self._verdicts):
            return [(AckLedger.ACK, self._judged, True)]
        ledger, tag = AckLedger(), 0
        for count, verdicts in self._verdicts:
            for verdict in [AckLedger.ACK] * count if verdicts is None else verdicts:
                tag += 1
                ledger.deliver(tag)
                ledger.settle(tag, verdict)
        return [(verdict, self._settled + tag, multiple) for verdict, tag, multiple in ledger.flush()]

    def ready(self, queues: Iterable[str]) -> dict[str, int]:
        """Messages that are ready, by queue."""
        return message_counts(self._session, self._channel, queues)

    def sizes(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Messages of this part, their bytes, and the largest of them, by queue."""
        names = list(dict.fromkeys(self.queues.values()))
        places = np.frombuffer(
            self.deliveries.queues({tag: names.index(name) for tag, name in self.queues.items()}), np.int32
        )
        return figures(names, places, np.frombuffer(self.deliveries.sizes(), np.int64))

    def returns(self) -> NDArray[Any]:
        """Return how often a queue has counted that each message of this part came back; 0 where it does not count."""

        def whole(header: bytes) -> int | None:
            found = headers_of(header).get(_COUNT)
            return found if type(found) is int else None

        _, values = self.deliveries.numbers(_COUNT.encode(), whole)
        return np.frombuffer(values, np.int64)

    def give_back(self, patience: int = 1) -> None:
        """Return all that is not settled, in whatever state it is, and close the channel; see `Session.call`."""
        if self.deliveries.came > self._settled:
            self._channel.basic_nack(self.deliveries.came, multiple=True)
            self._settled = self.deliveries.came
            message_counts(self._session, self._channel, dict.fromkeys(self.queues.values()), patience=patience)
        self.close(patience)


def figures(
    names: Sequence[str], places: NDArray[Any], sizes: NDArray[Any]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Count rows, their bytes, and the largest, by queue; `places` says which of the names each row has."""
    counts, total, largest = (np.zeros(len(names), np.int64) for _ in range(3))
    np.add.at(counts, places, 1)
    np.add.at(total, places, sizes)
    np.maximum.at(largest, places, sizes)
    there = np.flatnonzero(counts).tolist()
    return tuple({names[k]: int(column[k]) for k in there} for column in (counts, total, largest))  # type: ignore[return-value]
