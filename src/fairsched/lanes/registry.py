"""The registry of lanes at the broker, for a worker: it hears of own lanes, remembers them and gives them up."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pika import BasicProperties

from fairsched.amqp.side_connection import SideConnection
from fairsched.config.queues import Queue
from fairsched.consumer.log_limit import LogLimit
from fairsched.errors import ConnectionFailed, FairschedError, QueueNotFound, RequestRefused, ShutDown
from fairsched.lanes.announcement import KEYS, NEW, REGISTRY_ARGUMENTS, Announcement, decode, encode
from fairsched.lanes.layout import layout_problem
from fairsched.lanes.own_lanes import Action, Activity, Do, OwnLanes

if TYPE_CHECKING:
    from pika.channel import Channel

    from fairsched.amqp.session import Session
    from fairsched.config.lanes import Lanes

_log = logging.getLogger(__name__)

#: Seconds between two looks at the lanes that are consumed, and while a lane is left and not deleted.
LOOK, SOON = 1.0, 0.1
#: Seconds between two declarations of the registry: an operator may have deleted it, or a binding.
BEAT = 10.0
#: Seconds after which a worker that found another one reading the registry tries again, at least and at most; later up
#: to ten times as many, since the other one may be stopped and not dead.
TURN = (0.05, 0.1)
#: What the broker says of a queue that another one consumes exclusively; without permission it says something else.
_IN_USE = "exclusive use"
#: Seconds for which the broker is asked whether more entries come.
LONGEST_READ = 10.0
#: The registry is read, and so cleaned, when it has more than this many entries for each lane, and so many more.
MOST_ENTRIES, SLACK = 2, 64


class LaneConsumer(Protocol):
    """The consumer of lanes, as the registry uses it; every method is safe from any thread, and waits for nothing."""

    def add_queues(self, queues: Mapping[str, Queue]) -> Mapping[str, Future[None]]:
        """Begin to consume queues; a future fails if its queue cannot be consumed."""

    def begin_removal(self, name: str, at_once: bool = False) -> Future[None]:
        """Consume a queue no more; `at_once`: close its channel, so that what is unsettled returns to it."""

    def activity(self, queues: Iterable[str]) -> Mapping[str, Activity]:
        """Return how those of the queues stand that have a channel."""

    def weight_of(self, tenant: Any) -> int:
        """Return the weight of a tenant."""


class _Entry(NamedTuple):
    """A message of the registry queue."""

    tag: int
    body: bytes


class _Registered:
    """Lanes of one name, with what is known of their registry. For the thread of the registry."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.own = OwnLanes(keeps=(lanes.arguments or {}).get("x-queue-type") == "quorum")
        #: Entries that the registry queue should have; None: it has not been read.
        self.entries: int | None = None
        #: When to read it, if it is to be read.
        self.read_at: float | None = 0.0
        #: How often another worker was reading it.
        self.turns = 0

    def begin(self) -> None:
        """Forget what was known of the registry: the connection is new."""
        self.entries, self.read_at = None, 0.0

    def counted(self, found: int, readers: int, now: float) -> None:
        """Compare the number of entries with what it should be, and have the queue read if that differs.

        A reader has entries that the broker does not count.
        """
        if readers:
            return
        if found != self.entries or found > MOST_ENTRIES * len(self.own.consumed) + SLACK:
            self.read_at = now


class LaneRegistry(SideConnection):
    """Has a consumer consume the own lanes of tenants: new ones at once, others after a restart, idle ones no more.

    Parameters
    ----------
    lanes : sequence of Lanes
        Those that the consumer consumes and that have own lanes.
    urls : sequence of str
        The brokers.
    consumer : LaneConsumer
        Consumes them. The window of a lane is by the weight of its tenant.

    Notes
    -----
    It has a connection and a thread of its own (`SideConnection`), and never stops the consumer. While the broker
    cannot be reached, or does not allow it, the buckets and the lanes that are known are consumed; the log says so once
    a minute.

    `start` and `end` are for the owner, one after the other. `connected` and `counts` are safe from any thread; all
    else belongs to the thread.
    """

    def __init__(
        self,
        lanes: Sequence[Lanes],
        urls: Sequence[str],
        consumer: LaneConsumer,
    ) -> None:
        super().__init__(urls, "fairsched-lanes")
        self._registered = {one.registry: _Registered(one) for one in lanes}
        self._consumer = consumer
        self._log = LogLimit()
        self._inbox: deque[tuple[str, str, bytes]] = deque()
        self._beat_at = 0.0
        #: Of announcements; one for questions that may cost their channel.
        self._channel: Channel
        self._asking: Channel | None = None
        self._queue = ""

    def counts(self) -> dict[str, int]:
        """Return the number of own lanes that are consumed, by the name of the lanes."""
        return {one.lanes.name: len(one.own.consumed) for one in self._registered.values()}

    # The thread --------------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException) -> None:
        """Consume what was left for a while: no announcement is heard until there is another connection."""
        names = ", ".join(self._registered)
        if not isinstance(error, FairschedError | KeyboardInterrupt):
            _log.error("the registry of lanes %s failed", names, exc_info=error)
        if self._log.due("lost"):
            _log.warning(
                "lanes of single tenants are neither found nor given up until %s can be used: %s", names, error
            )
        for one in self._registered.values():
            for action in one.own.deaf(time.monotonic()):
                self._consume(one, action)

    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Hear announcements and do what is due, until the connection is lost or this is ended."""
        self._inbox.clear()
        self._asking = None
        self._channel = session.channel()
        (declared,) = session.call([partial(self._channel.queue_declare, "", exclusive=True)], "queue of announcements")
        self._queue = declared.method.queue
        for one in self._registered.values():
            one.begin()
        self._beat(session, time.monotonic())
        self._channel.add_on_cancel_callback(lambda _frame: session.fail(_cancelled(self._queue)))
        self._channel.basic_consume(self._queue, partial(self._on_message, session), auto_ack=True)
        working()
        while not self.over():
            session.serve_until(lambda: self._inbox or self.over(), self._pause(time.monotonic()))
            self._step(session)

    def _pause(self, now: float) -> float:
        """Return the seconds until something is due."""
        reads = [one.read_at - now for one in self._registered.values() if one.read_at is not None]
        left = any(one.own.wait(now) < float("inf") for one in self._registered.values())
        return max(0.0, min(SOON if left else LOOK, self._beat_at - now, *reads))

    def _step(self, session: Session) -> None:
        """Take what was heard, and do what is due."""
        now = time.monotonic()
        for one in self._registered.values():
            self._observe(session, one, now)
        while self._inbox and not self.over():
            self._hear(session, *self._inbox.popleft())
        if now >= self._beat_at:
            self._beat(session, now)
        for one in self._registered.values():
            if one.read_at is not None and now >= one.read_at:
                self._read(session, one)

    def _observe(self, session: Session, one: _Registered, now: float) -> None:
        """Do what is due by how the lanes stand at the consumer."""
        self._do(session, one, one.own.observed(self._consumer.activity(one.own.known), now))

    def _beat(self, session: Session, now: float) -> None:
        """Declare the registries with their bindings, again too, and look whether they have what they should."""
        channel = self._channel
        for name, one in self._registered.items():
            _, declared, *_ = session.call(
                [
                    partial(channel.exchange_declare, name, "direct", durable=True),
                    partial(channel.queue_declare, name, durable=True, arguments=REGISTRY_ARGUMENTS),
                    partial(channel.queue_bind, name, name, NEW),
                    *(partial(channel.queue_bind, self._queue, name, key) for key in KEYS),
                ],
                f"registry of lanes {one.lanes.name}",
            )
            one.counted(declared.method.message_count, declared.method.consumer_count, now)
            self._compare(session, one.lanes)
        self._beat_at = now + BEAT * random.uniform(0.8, 1.2)

    def _compare(self, session: Session, lanes: Lanes) -> None:
        """Say if other programs use the lanes with another layout, which may have changed since the start."""
        problem = layout_problem(session, lanes)
        if problem is not None and self._log.due("layout"):
            _log.error("%s; consuming anyway", problem)

    # Announcements -----------------------------------------------------------------------------------------------

    def _on_message(self, session: Session, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._inbox.append((method.exchange, method.routing_key, body))
        session.stop()

    def _hear(self, session: Session, registry: str, key: str, body: bytes) -> None:
        one = self._registered.get(registry)
        if one is None:  # any user of the broker may name the queue, or bind an exchange to the registry
            if self._log.due("exchange"):
                _log.warning("queue of announcements %r: message ignored: its exchange is %r", self._queue, registry)
            return
        if key == NEW and one.entries is not None:
            one.entries += 1
        announced = self._decoded(one, body)
        if announced is not None:
            now = time.monotonic()
            self._observe(session, one, now)
            self._do(session, one, one.own.heard(key, *announced, now))

    def _decoded(self, one: _Registered, body: bytes) -> Announcement | None:
        """Return what a message announces; None if it is malformed, which the log says once a minute."""
        try:
            return decode(body, one.lanes)
        except ValueError as error:
            if self._log.due("message"):
                _log.warning("registry of lanes %r: message ignored: %s", one.lanes.name, error)
            return None

    def _say(self, one: _Registered, key: str, announcement: Announcement) -> None:
        properties = BasicProperties(content_type="application/json", delivery_mode=2 if key == NEW else 1)
        self._channel.basic_publish(one.lanes.registry, key, encode(announcement), properties)

    # Actions -----------------------------------------------------------------------------------------------------

    def _do(self, session: Session, one: _Registered, actions: Iterable[Action]) -> None:
        """Do everything, and what follows from the results."""
        left = deque(actions)
        while left:
            action = left.popleft()
            if action.do is Do.SAY:
                self._say(one, action.key, Announcement(action.lane, action.tenant))
            elif action.do is Do.LEAVE:
                self._leave(action.lane)
            elif action.do is Do.CONSUME:
                self._consume(one, action)
            else:
                found = (
                    self._exists(session, action.lane) if action.do is Do.LOOK else self._delete(session, one, action)
                )
                left.extendleft(reversed(one.own.answered(action, found, time.monotonic())))

    def _consume(self, one: _Registered, action: Action) -> None:
        try:
            # Not declared: the publisher that declares a lane enters it into the registry before it has messages. Its
            # messages are retried as those of the tenant's bucket.
            queue = Queue(action.lane, weight=self._consumer.weight_of(action.tenant), retry=False)
            added = self._consumer.add_queues({action.lane: queue})[action.lane]
        except (FairschedError, RuntimeError) as error:  # such as: the consumer was stopped
            self._refused(action.lane, error)
            one.own.answered(action, False, time.monotonic())
        else:
            # If it fails, the lane has no channel, and it will be looked whether the lane exists.
            added.add_done_callback(partial(self._added, action.lane))
            one.own.answered(action, True, time.monotonic())

    def _added(self, lane: str, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and not isinstance(error, QueueNotFound):
            self._refused(lane, error)

    def _refused(self, lane: str, error: BaseException) -> None:
        if not isinstance(error, ShutDown) and not self.over() and self._log.due("refused"):
            _log.warning("lane %r cannot be consumed, and is tried again: %s", lane, error)

    def _leave(self, lane: str) -> None:
        with contextlib.suppress(FairschedError, RuntimeError):  # it is not consumed, or nothing is any more
            self._consumer.begin_removal(lane, at_once=True)

    def _exists(self, session: Session, lane: str) -> bool:
        """Ask the broker for a lane; one that may not be asked for exists, as far as is known."""
        try:
            session.call([partial(self._questions(session).queue_declare, lane, passive=True)], f"lane {lane}")
        except QueueNotFound:
            self._recover(session)
            return False
        except RequestRefused as error:
            if self._log.due("look"):
                _log.warning("the broker does not say whether lane %r exists: %s", lane, error)
            self._recover(session)
        return True

    def _delete(self, session: Session, one: _Registered, action: Action) -> bool:
        """Delete a lane that has neither messages nor consumers; False if it has."""
        channel = self._questions(session)
        try:
            session.call([partial(channel.queue_delete, action.lane, if_unused=True, if_empty=True)], "queue.delete")
        except RequestRefused:
            self._recover(session)
            return False
        except ConnectionFailed:
            # Quorum queues cannot be deleted so: the broker answers 540, and closes the connection. They may be the
            # default type of queue of the virtual host.
            if getattr(session.error, "reply_code", None) == 540:
                one.own.keeps = True
            raise
        _log.info("lane %r was idle and is deleted", action.lane)
        return True

    def _questions(self, session: Session) -> Channel:
        if self._asking is None:
            self._asking = session.channel()
        return self._asking

    def _recover(self, session: Session) -> None:
        """Go on after a refusal, which cost the channel of questions."""
        self._asking = None
        session.recover()

    # The registry queue ------------------------------------------------------------------------------------------

    def _read(self, session: Session, one: _Registered) -> None:
        """Read the whole registry queue, drop what is of no use from it, and consume the lanes that it names.

        It is consumed exclusively, so that one worker at a time reads, and the broker takes everything back when that
        one dies.
        """
        channel = session.channel()
        entries: list[_Entry] = []
        try:
            session.call([partial(
                channel.basic_consume, one.lanes.registry,
                lambda _channel, method, _properties, body: entries.append(_Entry(method.delivery_tag, body)),
                exclusive=True,
            )], "registry of lanes")  # fmt: skip
        except RequestRefused as error:
            if _IN_USE not in str(error):
                raise
            session.recover()
            one.turns += 1
            one.read_at = time.monotonic() + random.uniform(*TURN) * min(10.0, 1.0 + 0.1 * one.turns)
            return
        one.turns = 0
        self._await_entries(session, channel, one.lanes.registry)
        kept = self._clean(session, channel, one, entries)
        session.close_channel(channel)
        one.read_at, one.entries = None, len(kept)
        self._take_entries(session, one, kept)

    def _await_entries(self, session: Session, channel: Channel, registry: str) -> None:
        """Wait until the broker has delivered all: it answers after what it sent before, and counts what is left."""
        deadline = time.monotonic() + LONGEST_READ
        while time.monotonic() < deadline:
            (declared,) = session.call([partial(channel.queue_declare, registry, passive=True)], "registry of lanes")
            if not declared.method.message_count:
                return

    def _clean(
        self, session: Session, channel: Channel, one: _Registered, entries: Sequence[_Entry]
    ) -> dict[str, Announcement]:
        """Acknowledge entries that are malformed, repeated, or of lanes that are gone; return the others by lane.

        A lane that is declared after the look was announced once more, after it was declared: that is another entry.
        """
        kept: dict[str, Announcement] = {}
        for entry in entries:
            announced = self._decoded(one, entry.body)
            if announced is not None and announced.lane not in kept and self._is_there(session, one, announced.lane):
                kept[announced.lane] = announced
            else:
                channel.basic_ack(entry.tag)
        return kept

    def _is_there(self, session: Session, one: _Registered, lane: str) -> bool:
        return one.own.is_consumed(lane) or self._exists(session, lane)

    def _take_entries(self, session: Session, one: _Registered, kept: Mapping[str, Announcement]) -> None:
        """Consume the lanes of the registry, and enter those that it lacks: its queue may have been deleted."""
        for announced in kept.values():
            if not one.own.is_consumed(announced.lane):
                there = Action(Do.LOOK, *announced)  # as it was just seen to be
                self._do(session, one, one.own.answered(there, True, time.monotonic()))
        for lane, tenant in one.own.consumed.items():
            if lane not in kept:
                self._say(one, NEW, Announcement(lane, tenant))


def _cancelled(queue: str) -> ConnectionFailed:
    return ConnectionFailed(f"the queue of announcements {queue!r} was deleted")
