"""The part of a worker among others that consume the same ordered lanes: it tells them, hears them, and divides."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pika import BasicProperties

from fairsched.amqp.jsonbody import read_fields
from fairsched.amqp.side_connection import SideConnection
from fairsched.consumer.log_limit import LogLimit
from fairsched.errors import ConnectionFailed, FairschedError
from fairsched.lanes.members import ALONE, BEAT, Members

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pika.channel import Channel

    from fairsched.amqp.session import Session
    from fairsched.config.lanes import Lanes
    from fairsched.config.queues import Queue

_log = logging.getLogger(__name__)

#: Routing keys of what workers tell one another: a worker is here, and a worker leaves.
HERE, BYE = "here", "bye"
#: Longest body that is read, in bytes.
LONGEST_BODY = 1024
#: Seconds until a lane that could not be consumed is tried again.
RETRY = 2.0


class MemberConsumer(Protocol):
    """The consumer of lanes, as the membership uses it; every method is safe from any thread and waits for nothing."""

    def add_queues(self, queues: Mapping[str, Queue]) -> dict[str, Future[None]]:
        """Begin to consume queues; each future is done when its queue is consumed, or fails."""

    def begin_removal(self, name: str) -> Future[None]:
        """Begin to remove a queue; the future is done when nothing of it is here any more."""

    def after(self, seconds: float, function: Callable[[], object]) -> object:
        """Call a function after so many seconds, in another thread, unless the consumer has ended."""

    @property
    def is_serving(self) -> bool:
        """Whether queues are consumed: the consumer is connected, and neither stopped nor closed."""


class _Group:
    """Lanes of one name, with their workers."""

    def __init__(self, lanes: Lanes, own: str, weight: int, now: float) -> None:
        self.lanes = lanes
        self.queues = {name: lanes.queue(name, weight) for name in lanes.bucket_names}
        self.members = Members(own, lanes.bucket_names, now)
        #: The lanes that the consumer has, or is asked to have.
        self.consumed = set(lanes.bucket_names)
        #: Lanes that could not be consumed, and when to try again.
        self.refused: dict[str, float] = {}


class LaneMembership(SideConnection):
    """Has a consumer consume its part of ordered lanes, and leave those that are another worker's.

    Parameters
    ----------
    lanes : sequence of Lanes
        Those that are ordered.
    urls : sequence of str
        The brokers.
    consumer : MemberConsumer
        Consumes all lanes at first.
    weight : int
        Weight of a lane.

    Notes
    -----
    Each worker has an exclusive queue at the registry exchange. It says "here" every `BEAT` seconds while its consumer
    is connected, and as soon as it hears of an unknown worker; and "bye" when the consumer is stopped. `Members` says
    which lanes follow from that.

    It has a connection and a thread of its own (`SideConnection`), and never stops the consumer: without the registry
    the worker keeps its lanes, and after some seconds consumes all of them.

    `start` and `end` are for the owner, one after the other. `connected` and `counts` are safe from any thread. The
    groups are under a lock, since the consumer's I/O thread divides the lanes while the connection is lost. Any thread
    may append to `_failed`. All else belongs to the thread.
    """

    def __init__(self, lanes: Sequence[Lanes], urls: Sequence[str], consumer: MemberConsumer, weight: int) -> None:
        super().__init__(urls, "fairsched-members")
        self._own = uuid.uuid4().hex
        self._consumer = consumer
        now = time.monotonic()
        self._groups = {one.registry: _Group(one, self._own, weight, now) for one in lanes}
        self._guard = threading.Lock()
        self._log = LogLimit()
        self._inbox: deque[tuple[str, str, bytes]] = deque()
        self._failed: deque[tuple[_Group, str, BaseException]] = deque()
        self._beat_at = 0.0
        self._left = False
        self._channel: Channel

    def counts(self) -> dict[str, int]:
        """Return the number of lanes that are consumed, by the name of the lanes."""
        return {one.lanes.name: len(one.consumed) for one in self._groups.values()}

    # The thread --------------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException) -> None:
        """Go on with the lanes as they are; after a while, with all."""
        names = ", ".join(self._groups)
        if not isinstance(error, FairschedError | KeyboardInterrupt):
            _log.error("the membership of lanes %s failed", names, exc_info=error)
        if self._log.due("lost"):
            _log.warning("other workers are not heard until %s can be used: %s", names, error)
        with self._guard:
            for one in self._groups.values():
                one.members.lost(time.monotonic())
        self._divide_all()
        self._consumer.after(ALONE, self._divide_all)  # the next attempt to connect may be later

    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Tell and hear, until the connection is lost or this is ended."""
        self._inbox.clear()
        self._channel = channel = session.channel()
        (declared,) = session.call([partial(channel.queue_declare, "", exclusive=True)], "queue of members")
        queue = declared.method.queue
        for name in self._groups:
            session.call(
                [
                    partial(channel.exchange_declare, name, "direct", durable=True),
                    *(partial(channel.queue_bind, queue, name, key) for key in (HERE, BYE)),
                ],
                f"members of lanes {name}",
            )
        channel.add_on_cancel_callback(lambda _frame: session.fail(_cancelled(queue)))
        channel.basic_consume(queue, partial(self._on_message, session), auto_ack=True)
        self._beat_at = 0.0
        with self._guard:
            for one in self._groups.values():
                one.members.joined(time.monotonic())
        working()
        try:
            while not self.over():
                self._step()
                session.serve_until(lambda: self._inbox or self.over(), self._pause(time.monotonic()))
        finally:
            if channel.is_open:
                self._leave()

    def _pause(self, now: float) -> float:
        """Return the seconds until something is due."""
        due = [one.members.wait(now) for one in self._groups.values()]
        return max(0.0, min(self._beat_at - now, *due))

    def _step(self) -> None:
        """Take what was heard, say that this worker is here, and divide the lanes."""
        with self._guard:
            while self._inbox:
                self._hear(*self._inbox.popleft())
        now = time.monotonic()
        if not self._consumer.is_serving:
            self._leave()
        elif now >= self._beat_at:
            self._left = False
            self._say(HERE)
        if now >= self._beat_at:
            self._beat_at = now + BEAT
        self._divide_all()

    # Messages ----------------------------------------------------------------------------------------------------

    def _say(self, key: str) -> None:
        body = json.dumps({"worker": self._own}).encode()
        for name in self._groups:
            self._channel.basic_publish(name, key, body, BasicProperties(content_type="application/json"))

    def _leave(self) -> None:
        """Say once that this worker leaves: the others take its lanes, and get each when it is left here."""
        if not self._left:
            self._left = True
            self._say(BYE)

    def _on_message(self, session: Session, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._inbox.append((method.exchange, method.routing_key, body))
        session.stop()

    def _hear(self, registry: str, key: str, body: bytes) -> None:
        one = self._groups.get(registry)
        if one is None:  # any user of the broker may name the queue, or bind an exchange to the registry
            if self._log.due("message"):
                _log.warning("queue of members: message ignored: its exchange is %r", registry)
            return
        try:
            worker = decode(body)
        except ValueError as error:
            if self._log.due("message"):
                _log.warning("members of lanes %r: message ignored: %s", one.lanes.name, error)
            return
        if key == BYE:
            one.members.bye(worker)
        elif one.members.here(worker, time.monotonic()):
            self._beat_at = 0.0  # the other one does not know this worker

    # Lanes -------------------------------------------------------------------------------------------------------

    def _divide_all(self) -> None:
        with self._guard:
            for one in self._groups.values():
                self._divide(one, time.monotonic())

    def _divide(self, one: _Group, now: float) -> None:
        """Have the consumer consume the lanes that are this worker's, and leave the others."""
        while self._failed:
            group, lane, error = self._failed.popleft()
            group.consumed.discard(lane)
            group.refused[lane] = now + RETRY
            if self._consumer.is_serving and self._log.due("refused"):
                _log.warning("lane %r cannot be consumed, and is tried again: %s", lane, error)
        if not self._consumer.is_serving:
            return
        before = one.members.present
        wanted = one.members.lanes_at(now)
        if one.members.present != before:
            _log.info(
                "lanes %r: %d of %d are consumed by this worker, one of %d",
                one.lanes.name, len(wanted), len(one.queues), len(one.members.present) or 1,
            )  # fmt: skip
        for lane in sorted(one.consumed - wanted):
            one.consumed.discard(lane)
            self._remove(lane)
        one.refused = {lane: due for lane, due in one.refused.items() if due > now}
        self._add(one, sorted(wanted - one.consumed - one.refused.keys()))

    def _add(self, one: _Group, lanes: Sequence[str]) -> None:
        for lane in lanes:
            one.consumed.add(lane)
            try:
                added = self._consumer.add_queues({lane: one.queues[lane]})[lane]
            except (FairschedError, RuntimeError) as error:  # such as: the consumer was stopped
                self._failed.append((one, lane, error))
            else:
                added.add_done_callback(partial(self._added, one, lane))

    def _added(self, one: _Group, lane: str, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._failed.append((one, lane, error))

    def _remove(self, lane: str) -> None:
        try:
            self._consumer.begin_removal(lane)
        except (FairschedError, RuntimeError) as error:  # it is not consumed, or nothing is any more
            _log.debug("lane %r is not left: %s", lane, error)


def decode(body: bytes) -> str:
    """Read the body of a message.

    Parameters
    ----------
    body : bytes
        From anything that may publish to the registry.

    Returns
    -------
    str
        Identity of a worker.

    Raises
    ------
    ValueError
        If the body is anything else.

    Notes
    -----
    O(length). Safe from any thread.
    """
    worker = read_fields(body, LONGEST_BODY).get("worker")
    if not isinstance(worker, str) or not worker:
        raise ValueError(f"'worker' must be the identity of a worker, got {worker!r:.300}")
    return worker


def _cancelled(queue: str) -> ConnectionFailed:
    return ConnectionFailed(f"the queue of members {queue!r} was deleted")
