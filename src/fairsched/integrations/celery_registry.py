"""The thread by which a Celery worker hears of own lanes, over a connection as Celery makes it."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import amqp
from amqp.exceptions import AccessRefused, AMQPNotImplementedError, NotFound, PreconditionFailed

from fairsched.amqp.backoff import Backoff
from fairsched.config.lanes import Lanes
from fairsched.consumer.log_limit import LogLimit
from fairsched.lanes.announcement import KEYS, NEW, Announcement, decode, encode
from fairsched.lanes.own_lanes import Action, Activity, Do, OwnLanes

_log = logging.getLogger(__name__)

#: Longest time for which the thread waits for an announcement, in seconds.
_PERIOD = 0.5
#: Seconds after which exchange, queue and bindings are declared again, in case that an operator has deleted them.
_REPAIR = 10.0
#: Seconds without a message after which the rest of the registry queue is not waited for.
_SILENCE = 5.0
#: Longest pause before the thread connects again, in seconds.
_LONGEST_PAUSE = 5.0
#: Shortest and longest wait for another worker that reads the registry queue, in seconds.
_MUTEX_WAIT = (0.05, 0.1)


class LaneConsumer(Protocol):
    """What consumes the lanes."""

    def activities(self) -> Mapping[str, Activity]:
        """Return how own lanes stand."""

    def consume(self, lane: str) -> None:
        """Consume a lane soon."""

    def leave(self, lane: str) -> None:
        """Close the channel of a lane soon, if nothing of it is unsettled."""


class RegistryThread(threading.Thread):
    """Hears of own lanes, has them consumed, and takes part in giving up those that are idle.

    Parameters
    ----------
    lanes : Lanes
        Whose registry it hears.
    connect : callable
        Returns a new `kombu.Connection`.
    consumer : LaneConsumer
        What consumes the lanes.

    Notes
    -----
    `stop` and `refused` are for any thread; all else is the thread's own. `OwnLanes` says what is done when. Whatever
    fails, the thread connects again; meanwhile all lanes that it knows are consumed.
    """

    def __init__(self, lanes: Lanes, connect: Callable[[], Any], consumer: LaneConsumer) -> None:
        super().__init__(name=f"fairsched lanes {lanes.name}", daemon=True)
        self._lanes = lanes
        self._connect = connect
        self._consumer = consumer
        self._own = OwnLanes(keeps=(lanes.arguments or {}).get("x-queue-type") == "quorum")
        self._stopped = threading.Event()
        self._heard: deque[Any] = deque()
        self._refused: deque[str] = deque()
        self._reports = LogLimit()
        self._backoff = Backoff(longest=_LONGEST_PAUSE)

    def stop(self) -> None:
        """Have the thread end soon; its connection takes its queue along."""
        self._stopped.set()

    def refused(self, lane: str) -> None:
        """Take note that a lane could not be consumed; it is tried again later."""
        self._refused.append(lane)

    def run(self) -> None:
        """Hear announcements until `stop`."""
        while not self._stopped.is_set():
            try:
                with self._connect() as connection:
                    connection.ensure_connection(max_retries=max(1, len(connection.alt)), interval_start=0)
                    self._serve(connection)
            except Exception as error:  # of any kind: a worker that hears nothing must try again
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, AMQPNotImplementedError):  # of queues that a policy of the broker has made quorum queues
            self._own.keeps = True
        self._heard.clear()
        for action in self._own.deaf(time.monotonic()):
            self._consumer.consume(action.lane)
        if self._reports.due(""):
            _log.warning("lanes %r: no announcement can be heard: %r; trying again", self._lanes.name, error)
        self._stopped.wait(self._backoff.failed())

    def _serve(self, connection: Any) -> None:
        registry = Registry(connection, self._lanes)
        registry.hear(self._heard.append)
        self._remember(registry)
        self._backoff.succeeded()
        repair = time.monotonic() + _REPAIR
        while not self._stopped.is_set():
            now = time.monotonic()
            if now >= repair:
                registry.declare()
                repair = now + _REPAIR
            registry.wait(max(0.01, min(_PERIOD, self._own.wait(now))))
            self._look_around(registry)

    def _remember(self, registry: Registry) -> None:
        """Find the lanes that were announced before this thread heard anything, and remove entries of those gone."""
        with registry.entries(self._stopped) as entries:
            seen: set[str] = set()
            for entry in entries:
                found = self._decoded(entry.body)
                if found is not None and found.lane not in seen:
                    seen.add(found.lane)
                    self._do(registry, self._own.heard(NEW, found.lane, found.tenant, time.monotonic()))
                    if self._own.is_consumed(found.lane):
                        continue
                entries.remove(entry)

    def _look_around(self, registry: Registry) -> None:
        """Do what is due, and what was heard."""
        while self._refused:
            lane = self._refused.popleft()
            self._own.answered(Action(Do.CONSUME, lane, None), False, time.monotonic())
        self._do(registry, self._own.observed(self._consumer.activities(), time.monotonic()))
        while self._heard:
            message = self._heard.popleft()
            found = self._decoded(message.body)
            if found is not None:
                key = message.delivery_info["routing_key"]
                self._do(registry, self._own.heard(key, found.lane, found.tenant, time.monotonic()))

    def _decoded(self, body: bytes) -> Announcement | None:
        try:
            return decode(body, self._lanes)
        except ValueError as error:
            if self._reports.due("malformed"):
                _log.warning("lanes %r: ignoring a malformed announcement: %s", self._lanes.name, error)
            return None

    def _do(self, registry: Registry, actions: Iterable[Action]) -> None:
        left = deque(actions)
        while left:
            action = left.popleft()
            answer = self._perform(registry, action)
            if answer is not None:
                left.extendleft(reversed(self._own.answered(action, answer, time.monotonic())))

    def _perform(self, registry: Registry, action: Action) -> bool | None:
        """Do one thing; return its result, if it has one."""
        if action.do is Do.LOOK:
            return registry.exists(action.lane)
        if action.do is Do.DELETE:
            return registry.delete(action.lane)
        if action.do is Do.CONSUME:
            self._consumer.consume(action.lane)
            return True  # `refused` says otherwise later
        if action.do is Do.LEAVE:
            self._consumer.leave(action.lane)
        else:
            registry.announce(action.key, Announcement(action.lane, action.tenant))
        return None


class Registry:
    """The registry of lanes at the broker, over a connection of kombu's to RabbitMQ.

    Notes
    -----
    For one thread. Methods raise the errors of the connection.
    """

    def __init__(self, connection: Any, lanes: Lanes) -> None:
        self._connection = connection
        self._name = lanes.registry
        self._channel = connection.channel()
        self._asking: Any = None
        self._queue = ""
        self._rate = 2
        self._heartbeat = time.monotonic()

    def hear(self, heard: Callable[[Any], None]) -> None:
        """Have all announcements from now on passed to a function, which is called by `wait`."""
        self._queue = self._channel.queue_declare("", exclusive=True, auto_delete=False).queue
        self.declare()
        self._channel.basic_consume(self._queue, no_ack=True, callback=heard)

    def declare(self) -> None:
        """Declare exchange and queue, if they are not there, and bind them."""
        channel = self._channel
        channel.exchange_declare(self._name, "direct", durable=True, auto_delete=False)
        channel.queue_declare(self._name, durable=True, auto_delete=False)
        channel.queue_bind(self._name, self._name, NEW)
        for key in KEYS:
            channel.queue_bind(self._queue, self._name, key)

    def wait(self, seconds: float) -> None:
        """Wait until something comes, at most so long."""
        try:
            self._connection.drain_events(timeout=seconds)
        except socket.timeout:
            pass
        interval = self._connection.get_heartbeat_interval()
        now = time.monotonic()
        if interval and now - self._heartbeat >= interval / self._rate:
            self._heartbeat = now
            self._connection.heartbeat_check(self._rate)

    def entries(self, stopped: threading.Event) -> Entries:
        """Return what the queue of the registry has, which no other worker reads meanwhile."""
        while True:
            channel = self._connection.channel()
            try:
                return Entries(self, channel, self._name)
            except AccessRefused as error:
                if "exclusive" not in str(error):  # not permitted
                    raise
            stopped.wait(random.uniform(*_MUTEX_WAIT))
            if stopped.is_set():
                raise ConnectionAbortedError("the worker stops")

    def announce(self, key: str, announcement: Announcement) -> None:
        """Publish to all workers."""
        message = amqp.Message(encode(announcement), content_type="application/json", delivery_mode=2)
        self._channel.basic_publish(message, self._name, key)

    def exists(self, lane: str) -> bool:
        """Ask whether a lane exists."""
        return self._ask(lambda channel: channel.queue_declare(lane, passive=True))

    def delete(self, lane: str) -> bool:
        """Delete a lane if it has neither messages nor consumers; return whether it was deleted."""
        return self._ask(lambda channel: channel.queue_delete(lane, if_unused=True, if_empty=True))

    def _ask(self, ask: Callable[[Any], Any]) -> bool:
        if self._asking is None:
            self._asking = self._connection.channel()
        try:
            ask(self._asking)
        except (NotFound, PreconditionFailed):
            self._asking = None  # closed by the broker
            return False
        return True


class Entries:
    """Messages that are in the queue of a registry, held on a channel; those not removed return to the queue."""

    def __init__(self, registry: Registry, channel: Any, name: str) -> None:
        self._channel = channel
        self._found: list[Any] = []
        count = channel.queue_declare(name, passive=True).message_count
        channel.basic_consume(name, exclusive=True, callback=self._found.append)
        deadline = time.monotonic() + _SILENCE
        while len(self._found) < count and time.monotonic() < deadline:
            before = len(self._found)
            registry.wait(_PERIOD)
            if len(self._found) > before:
                deadline = time.monotonic() + _SILENCE

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def __iter__(self) -> Any:
        return iter(list(self._found))

    def remove(self, entry: Any) -> None:
        """Remove an entry for good."""
        self._channel.basic_ack(entry.delivery_tag)
