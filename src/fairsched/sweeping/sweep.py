"""One pass over a queue: each message is looked at once, and moved, dropped or left.

A message that is moved is published with a confirm, and acknowledged in its queue once the broker has confirmed the
copy: if this process dies in between, the message is in both queues, and a further pass moves it again. Messages that
stay are held unsettled until the end of the pass, or the broker would deliver them again at once; then they return to
where they were.

A count of a queue lacks messages that are on their way back from a consumer that was just closed or killed, such as a
pass before this one. So the count does not end a pass: it ends when the queue has been silent for a while and has
nothing ready. Each message that returns is looked at: the queue marks it as redelivered. Of all others, a pass looks at
no more than were counted at the beginning; and beyond that number of messages, at none with the body of one that it has
moved. So it does not follow messages that fail again and come back as new ones.

RabbitMQ looks for the message of an acknowledgement among all that its channel holds, from the oldest on. So when many
are held, a further consumer on a channel of its own goes on where that one ended: with one channel, 10 000 messages out
of 100 000 took minutes.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.flag import Flag
from fairsched.amqp.session import Session
from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.amqp.urls import check_urls
from fairsched.delivery._delivery import Message
from fairsched.errors import ConfigurationError, ConnectionFailed, MessageReturned, PublishFailed, RequestRefused
from fairsched.lanes.ingress import is_stream
from fairsched.lanes.moved_properties import MovedProperties
from fairsched.publisher.publisher import Publisher
from fairsched.sweeping.origin import without_death

if TYPE_CHECKING:
    from fairsched.amqp._publishing import Confirmation
    from fairsched.sweeping.condition import Condition

__all__ = ["Sweep"]

#: Messages that a channel may hold, and how many of these may be messages that stay: then the next one goes on. If the
#: channels that are left of `_MOST_CHANNELS` cannot hold all, the next one holds more; RabbitMQ allows 2 047 channels.
_WINDOW, _HELD, _MOST_CHANNELS = 2_000, 1_000, 1_000
_LARGEST_WINDOW = 65_535
#: If no message comes for so many seconds, the queue is asked whether any is left; if none is, the pass is over. If
#: some are, but none comes for so long, the pass ends: another consumer may be the single active one.
_QUIET, _PATIENCE = 1.0, 30.0
#: Longest time until it is looked whether the pass is over, in seconds.
_LOOK = 0.1
#: Seconds between two calls of `progress`.
_PERIOD = 1.0
#: A message is not returned to a queue that has counted so many deliveries of it: a quorum queue may have a limit, and
#: drop the message at it. RabbitMQ's own limit is 20.
MOST_DELIVERIES = 10
#: Headers of a quorum queue that count deliveries.
_COUNT = "x-delivery-count"


class Sweep:
    """Pass over a queue once, and move, drop or count the messages that meet all conditions.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://`` URL; several URLs are tried in turn.
    queue : str
        The queue.
    conditions : sequence of Condition
        What a message must meet; with none, every message does.
    destination : callable or str, optional
        The queue that a message goes to, or a function of the message that returns it, or None: the message then stays.
        By default messages are dropped.
    replay : bool
        Whether copies lose the headers that tell of their death.
    dry_run : bool
        Count only: every message stays.

    Raises
    ------
    ConfigurationError
        If a value is invalid.

    Attributes
    ----------
    total : int
        Messages that were in the queue, ready for delivery, when the pass began; or those that were looked at, if they
        are more, since others returned meanwhile.
    seen, matched, done : int
        Messages that were looked at; that meet the conditions; and that were moved or dropped for good.
    destinations : Counter of str
        How many of the matching messages go to which queue. Key None: it is not known where they came from.
    refused : Counter of str
        Why messages could not be moved, and how many; they stay.

    Notes
    -----
    At least once: a fault may repeat messages, and loses none. Moved messages keep their order; a copy has body and
    properties of its message, with the exceptions in `fairsched.lanes.moved_properties`.

    Memory: O(messages that are moved and not confirmed), and some octets for each other message.

    `run` is for one thread, and once; `stop` is safe from any thread.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        queue: str,
        conditions: Sequence[Condition] = (),
        destination: Callable[[Message], str | None] | str | None = None,
        *,
        replay: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.urls = check_urls(url)
        self.queue = queue
        for name in (queue, destination):
            if isinstance(name, str) and not (name and is_short_string(name)):
                raise ConfigurationError(f"a queue name has 1 to {LONGEST} bytes of text, got {name!r}")
        if destination == queue:
            raise ConfigurationError(f"messages of queue {queue!r} cannot be moved to itself")
        self._conditions = tuple(conditions)
        self._target = destination if isinstance(destination, str) else None
        self._destination = destination
        self._replay, self._dry_run = replay, dry_run
        self.total = self.seen = self.matched = self.done = 0
        self.destinations: Counter[str | None] = Counter()
        self.refused: Counter[str] = Counter()
        self._stopping = Flag()
        self._progress: Callable[[], object] = int
        self._told = 0.0
        #: When the last message came, and when the queue was asked whether it has more.
        self._came = self._asked = 0.0
        #: How many messages were ready when the pass began, and how many it may still look at that no consumer had
        #: before.
        self._counted = self._new_left = 0
        #: Hash values of the bodies of messages that were moved; the set is made of them when it is needed.
        self._moved = array("q")
        self._moved_bodies: set[int] = set()
        #: Whether one came that was not looked at, since it is newer than the pass.
        self._left_new = False
        #: Whether the queue has no more messages for this.
        self._ended = False
        self._holders: list[_Holder] = []
        self._most_held = _HELD
        self._error: BaseException | None = None
        self._publisher: Publisher | None = None
        self._properties = MovedProperties(self.urls)

    def stop(self, _now: bool = False) -> None:
        """Take no more messages, wait for the confirms of those that were published, and end; from any thread."""
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def run(self, progress: Callable[[], object] = int) -> None:
        """Make the pass.

        Parameters
        ----------
        progress : callable
            Called once a second, in this thread.

        Raises
        ------
        QueueNotFound
            If the queue, or the one that messages are to go to, does not exist.
        ConnectionFailed
            If no broker can be reached, or the connection is lost. Messages that were not acknowledged are still in the
            queue, and those among them that were published are in both.
        ConfigurationError
            If the queue is a stream, or has counted too many deliveries of a message that would have to stay.
        PublishFailed
            If the broker takes no messages for 30 seconds.
        """
        self._progress = progress
        session = self._open()
        try:
            self._look(session)
            if self._destination is not None and not self._dry_run:
                self._publisher = Publisher(self.urls)
                self._publisher.open()
            self._take(session)
        finally:
            if self._publisher is not None:
                self._publisher._client.end()
            session.close()

    def _open(self) -> Session:
        """Open a session with the first broker that can be reached."""
        for url in self.urls[:-1]:
            try:
                session = Session(url)
                session.open()
            except RequestRefused:
                raise
            except ConnectionFailed:
                continue
            return session
        session = Session(self.urls[-1])
        session.open()
        return session

    def _look(self, session: Session) -> None:
        """Count the messages; check that the queues exist, and that messages can be taken out."""
        if is_stream(session, self.queue):
            raise ConfigurationError(f"queue {self.queue!r} is a stream, whose messages cannot be taken out")
        self.total = self._counted = self._new_left = self._ready_in(session, self.queue)
        if self._target is not None:
            self._ready_in(session, self._target)

    def _ready_in(self, session: Session, queue: str) -> int:
        """Return how many messages of a queue are ready for delivery."""
        channel = session.channel()
        (found,) = session.call([partial(channel.queue_declare, queue, passive=True)], f"queue {queue}")
        session.close_channel(channel)
        return int(found.method.message_count)

    # Taking messages ---------------------------------------------------------------------------------------------

    def _take(self, session: Session) -> None:
        """Look at all messages; return those that stay."""
        self._consume(session)
        session.transport.after_read = partial(self._after_read, session)
        while not self._is_over():
            session.serve_until(self._is_over, _LOOK)
            self._after_read(session)
            self._look_whether_it_ended(session)
            if self._holders[-1].held >= self._most_held and not self._is_over():
                self._consume(session)
        for holder in self._holders:
            holder.cancel()
        self._wait_for_confirms(session)
        for holder in self._holders:
            holder.give_back()
        # An answer on each channel, since a quorum queue may lose settlements that a closing one has just sent.
        asked = [partial(holder.channel.queue_declare, self.queue, passive=True) for holder in self._holders]
        session.call(asked, "queue.declare", patience=6)
        if self._error is not None:
            raise self._error

    def _consume(self, session: Session) -> None:
        for holder in self._holders[-1:]:
            holder.cancel()
        channels_left = max(1, _MOST_CHANNELS - len(self._holders))
        ready = self._ready_in(session, self.queue)
        self._most_held = min(max(_HELD, ready // channels_left), _LARGEST_WINDOW - _WINDOW)
        channel = session.channel()
        session.call([partial(channel.basic_qos, prefetch_count=self._most_held + _WINDOW - _HELD)], "basic.qos")
        holder = _Holder(session, channel)
        self._holders.append(holder)
        holder.consume(self.queue, partial(self._on_message, holder))
        # A classic queue answers this after it has taken back what was returned before; it counts out of turn.
        self._came = time.monotonic()

    def _look_whether_it_ended(self, session: Session) -> None:
        """Ask the queue whether it has more, if nothing that is to be looked at came for a while."""
        now = time.monotonic()
        if now > max(self._came, self._asked) + _QUIET:
            self._asked = now
            self._ended = self._left_new or not self._ready_in(session, self.queue) or now > self._came + _PATIENCE

    def _is_over(self) -> bool:
        return self._error is not None or self._stopping.is_set() or self._ended

    def _on_message(
        self, holder: _Holder, tag: int, redelivered: int, method: bytes, header: bytes, body: bytes
    ) -> None:
        """Take a message: it is moved, dropped or held."""
        holder.ledger.deliver(tag)
        if self._error is not None or self._stopping.is_set():
            return
        if not redelivered:
            if not self._new_left or (self.seen >= self._counted and self._was_moved(body)):
                self._left_new = True
                return
            self._new_left -= 1
        self.seen += 1
        self.total = max(self.total, self.seen)
        self._came = time.monotonic()
        message = Message(body, tag, bool(redelivered), method, header, _Origin(self.queue))
        if not all(condition(message) for condition in self._conditions):
            self._hold(holder, message)
            return
        self.matched += 1
        target = self._target_of(message)
        if self._dry_run or (target is None and self._destination is not None):
            self._hold(holder, message)
        elif target is None:
            self.done += holder.ledger.settle(tag, AckLedger.ACK)
        else:
            self._move(holder, message, header, target)

    def _was_moved(self, body: bytes) -> bool:
        """Return whether a message with this body was moved."""
        if self._moved:
            self._moved_bodies.update(self._moved)
            del self._moved[:]
        return hash(body) in self._moved_bodies

    def _target_of(self, message: Message) -> str | None:
        """Return the queue that a message goes to, and count it."""
        if self._destination is None:
            return None
        target = self._destination(message) if callable(self._destination) else self._destination
        if target == self.queue:
            target = None  # it would come again and again
        self.destinations[target] += 1
        return target

    def _hold(self, holder: _Holder, message: Message) -> None:
        """Keep a message that stays until the end of the pass."""
        holder.held += 1
        if message.redelivered and _delivery_count(message) >= MOST_DELIVERIES:
            self._error = ConfigurationError(
                f"queue {self.queue!r} has counted {_delivery_count(message)} deliveries of a message that stays: at "
                f"its delivery limit it would drop the message. Move all messages to another queue first"
            )

    def _move(self, holder: _Holder, message: Message, header: bytes, target: str) -> None:
        """Publish a copy, waiting for room."""
        assert self._publisher is not None
        body = message.body
        if self._replay and (kept := without_death(header)) is not header:
            copied = Message(body, message.delivery_tag, message.redelivered, b"", kept, _Origin(self.queue))
        else:
            copied = message
        properties = self._properties.of(copied, body)
        try:
            found = self._publisher._put(("", target, properties, body, True, None))
        except ValueError as error:
            self._refuse(holder, error)
        except PublishFailed as error:
            self._error = error
        else:
            holder.published.append((message.delivery_tag, found))
            self._moved.append(hash(body))

    def _refuse(self, holder: _Holder, error: BaseException) -> None:
        """Count a message that could not be moved, and stays."""
        self.refused[_reason(error)] += 1
        holder.held += 1

    # Settling ----------------------------------------------------------------------------------------------------

    def _after_read(self, session: Session) -> None:
        self._acknowledge()
        now = time.monotonic()
        if now >= self._told + _PERIOD:
            self._told = now
            self._progress()
        if self._is_over() or self._holders[-1].held >= self._most_held:
            session.stop()

    def _acknowledge(self) -> None:
        """Settle what the broker has confirmed."""
        for holder in self._holders:
            published = holder.published
            while published and published[0][1].done():
                tag, confirmation = published.popleft()
                error = confirmation.exception()
                if error is None:
                    self.done += holder.ledger.settle(tag, AckLedger.ACK)
                else:
                    self._refuse(holder, error)
            holder.send()

    def _wait_for_confirms(self, session: Session) -> None:
        """Wait for the broker to confirm what was published; what it does not confirm stays."""
        confirmed, since = -1, time.monotonic()
        while (
            waiting := [holder.published[0][1] for holder in self._holders if holder.published]
        ) and not self._failed:
            waiting[0]._wait(_LOOK)
            session.serve(0)
            self._acknowledge()
            if self.done != confirmed:
                confirmed, since = self.done, time.monotonic()
            self._check_publisher(time.monotonic() - since)
        self._progress()

    @property
    def _failed(self) -> bool:
        """Whether nothing more will be confirmed."""
        return isinstance(self._error, PublishFailed)

    def _check_publisher(self, waited: float) -> None:
        """Note that no message can be published any more, or that nothing was confirmed for too long."""
        assert self._publisher is not None
        error = self._publisher._client.error
        if error is not None:
            self._error = PublishFailed(f"publishing cannot continue: {error}")
        elif waited > _PATIENCE:
            self._error = PublishFailed(
                f"the broker has confirmed nothing for {_PATIENCE:g} s: what it did not confirm is still in queue "
                f"{self.queue!r}, and may be in the other queue, too"
            )


class _Holder:
    """A consumer on a channel of its own, with the messages that it holds."""

    def __init__(self, session: Session, channel: Any) -> None:
        self.ledger = AckLedger()
        #: Delivery tags of messages that were published, in order, with what the broker answers.
        self.published: deque[tuple[int, Confirmation]] = deque()
        #: Messages that stay.
        self.held = 0
        self._session, self.channel = session, channel
        self._consumer: str | None = None

    def consume(self, queue: str, take: Callable[[int, int, bytes, bytes, bytes], None]) -> None:
        """Consume a queue; messages may come before this returns."""

        def on_message(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            """Take a message that did not come in one piece."""
            take(method.delivery_tag, method.redelivered, b"", properties.header, body)

        channel = self.channel
        self._session.transport.sinks[channel.channel_number] = take
        self._session.call([partial(self._begin, queue, on_message)], "basic.consume")

    def _begin(self, queue: str, on_message: Callable[..., None], callback: Callable[..., Any]) -> None:
        self._consumer = self.channel.basic_consume(queue, on_message, callback=callback)

    def cancel(self) -> None:
        """Take no more messages."""
        if self._consumer is not None:
            self._session.call([partial(self.channel.basic_cancel, self._consumer)], "basic.cancel")
            self._consumer = None

    def send(self) -> None:
        """Send the acknowledgements."""
        frames = self.ledger.frames(self.channel.channel_number)
        if frames:
            self._session.transport.send_settlements(frames)

    def give_back(self) -> None:
        """Return all that is unsettled to its queue."""
        self.send()
        if self.ledger.outstanding:
            self.channel.basic_nack(0, multiple=True, requeue=True)


class _Origin:
    """The origin of messages that only the pass settles."""

    alive = True

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def settle(self, _tag: int, _verdict: int, /) -> bool:
        """Settle nothing."""
        return False

    def failed(self, _message: Message, _error: Exception, /) -> None:
        """Settle nothing."""


def _delivery_count(message: Message) -> int:
    found = message.headers.get(_COUNT)
    return found if isinstance(found, int) else 0


def _reason(error: BaseException) -> str:
    """Return why a message could not be moved, without what differs from message to message."""
    if isinstance(error, MessageReturned):
        return f"there is no queue {error.routing_key!r}"
    return str(error)
