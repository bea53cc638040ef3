"""Lanes in a Celery worker: which of them its consumer consumes, and how they stand."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import kombu
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceError

from fairsched.config.lanes import Lanes
from fairsched.config.queues import Queue
from fairsched.errors import QueueNotFound, ShutDown
from fairsched.integrations.celery_urls import broker_urls
from fairsched.lanes.layout import disagreement, layout_request
from fairsched.lanes.own_lanes import Activity
from fairsched.lanes.registry import LaneRegistry

if TYPE_CHECKING:
    from fairsched.integrations.celery_channels import ChannelForEachQueue

_log = logging.getLogger(__name__)

#: Seconds that a stopping worker waits for the registry's thread.
_LONGEST_END = 5.0
#: The messages of a lane are pruned from this number on.
_FEW = 16


class LanesOfWorker:
    """The lanes that a worker consumes while it consumes the queue that has their name.

    Notes
    -----
    `add_queues`, `begin_removal`, `activity` and `weight_of` are for the thread of the registry, which finds the own
    lanes; all else is for the thread of the worker's event loop. There is a new registry whenever the worker begins
    with the queue.
    """

    def __init__(self, worker: Any, lanes: Lanes) -> None:
        self._worker = worker
        self._lanes = lanes
        self._urls = broker_urls(worker.app)
        self._buckets = frozenset(lanes.bucket_names)
        #: Own lanes by name; changed by the event loop only.
        self._own: dict[str, OwnLane] = {}
        self._consumer: ChannelForEachQueue | None = None
        self._before: ChannelForEachQueue | None = None
        self._registry: LaneRegistry | None = None
        self._calls = LoopCalls()
        self.listen = self._calls.listen
        if lanes.name not in worker.app.amqp.queues.consume_from:
            _log.info("lanes %r are not consumed, since this worker does not consume their queue", lanes.name)

    @property
    def name(self) -> str:
        """Name of the queue that has these lanes."""
        return self._lanes.name

    def begin(self, consumer: ChannelForEachQueue) -> None:
        """Consume the lanes: the consumer consumes their queue from now on."""
        self._compare(consumer)
        for name in self._lanes.bucket_names:
            consumer.add_lane(self._lane(name))
        if consumer is not self._before:  # after a lost connection
            self._own.clear()
        self._consumer = self._before = consumer
        self._registry = LaneRegistry([self._lanes], self._urls, self)
        self._registry.start(lambda: self._consumer is not consumer)

    def _compare(self, consumer: ChannelForEachQueue) -> None:
        """Raise ConfigurationError if other programs use the lanes with another layout; after a reconnect, log it."""
        request = layout_request(self._lanes)
        channel = consumer.channel.connection.client.channel()
        try:
            channel.exchange_declare(
                request["exchange"], request["exchange_type"], durable=request["durable"], auto_delete=False,
                arguments=request["arguments"],
            )  # fmt: skip
        except (PreconditionFailed, AccessRefused) as error:
            problem = disagreement(self._lanes, str(error))
            if problem is not None and self._before is None:
                raise problem from error
            if problem is not None:
                _log.error("%s; consuming anyway", problem)
        else:
            channel.close()

    def end(self, consumer: ChannelForEachQueue) -> None:
        """Cancel the lanes: the consumer does not consume their queue any more."""
        if consumer is not self._consumer:
            return
        self._consumer = None
        self._end_registry(0)
        for own in self._own.values():
            own.consumed = False
        for name in (*self._lanes.bucket_names, *self._own):
            consumer.cancel_by_queue(name)

    def stop(self) -> None:
        """Wait until the registry has ended."""
        self._end_registry(_LONGEST_END)
        self._calls.close()

    def _end_registry(self, timeout: float) -> None:
        if self._registry is not None:
            self._registry.end(timeout)

    def received(self, queue: str, message: Any) -> None:
        """Note a message; one from a lane gets the address to which its producer published it.

        Celery publishes the retry of a task to where the task came from, and the lane might be gone by then.
        """
        own = self._own.get(queue)
        if own is not None:
            own.received(message)
        elif queue not in self._buckets:
            return
        message.delivery_info.update(exchange="", routing_key=self.name)

    # For the registry --------------------------------------------------------------------------------------------

    def add_queues(self, queues: Mapping[str, Queue]) -> Mapping[str, Future[None]]:
        """Have the event loop consume own lanes, which exist; a future fails if its lane cannot be consumed."""
        futures: dict[str, Future[None]] = {name: Future() for name in queues}
        for name, future in futures.items():
            self._calls.make(partial(self._add, name, future))
        return futures

    def begin_removal(self, name: str, at_once: bool = False) -> Future[None]:
        """Have the event loop leave an own lane, unless a message of it is not settled."""
        future: Future[None] = Future()
        self._calls.make(partial(self._remove, name, future))
        return future

    def activity(self, queues: Iterable[str]) -> Mapping[str, Activity]:
        """Return how own lanes stand."""
        own = self._own.copy()
        return {name: own[name].activity() for name in queues if name in own}

    def weight_of(self, tenant: Any) -> int:
        """Return 1: the windows of all lanes are those of Celery."""
        return 1

    def _add(self, name: str, future: Future[None]) -> None:
        if self._consumer is None:
            future.set_exception(ShutDown(f"the queue {self.name!r} is not consumed any more"))
            return
        own = self._own.setdefault(name, OwnLane())
        if not own.consumed:
            own.consumed = True  # before its first message comes
            try:
                self._consumer.add_lane(self._lane(name, no_declare=True))
            except (*self._worker.consumer.channel_errors, ResourceError) as error:
                del self._own[name]
                future.set_exception(QueueNotFound(str(error)) if isinstance(error, NotFound) else error)
                return
        future.set_result(None)

    def _remove(self, name: str, future: Future[None]) -> None:
        own = self._own.get(name)
        if self._consumer is not None and own is not None and not own.unsettled():
            del self._own[name]
            self._consumer.close_lane(name)
        future.set_result(None)

    def _lane(self, name: str, *, no_declare: bool = False) -> kombu.Queue:
        arguments = dict(self._lanes.queue(name).arguments or {})
        return kombu.Queue(name, durable=True, queue_arguments=arguments, no_declare=no_declare)


class OwnLane:
    """Messages of a tenant's own lane, as far as they may not be settled yet."""

    __slots__ = ("_delivered", "_messages", "_prune_at", "consumed")

    def __init__(self) -> None:
        self.consumed = False
        self._delivered = 0
        self._messages: list[Any] = []
        self._prune_at = _FEW

    def received(self, message: Any) -> None:
        """Note a message. O(1), amortized. For the event loop."""
        self._delivered += 1
        self._messages.append(message)
        if len(self._messages) >= self._prune_at:
            self._messages = [message for message in self._messages if not message.acknowledged]
            self._prune_at = max(_FEW, 2 * len(self._messages))

    def unsettled(self) -> int:
        """Return how many messages are not settled. O(number of messages). Safe from any thread."""
        return sum(not message.acknowledged for message in tuple(self._messages))

    def activity(self) -> Activity:
        """Return how the lane stands. Safe from any thread."""
        return Activity(self.consumed, self._delivered, self.unsettled())


class LoopCalls:
    """Calls that other threads want the event loop of a worker to make.

    Notes
    -----
    `Hub.call_soon` of older releases of kombu does not wake the loop.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._hub: Any = None
        for end in self._reader, self._writer:
            end.setblocking(False)

    def make(self, call: Callable[[], None]) -> None:
        """Have the event loop make a call; after `close` it is forgotten. Safe from any thread."""
        self._calls.append(call)
        with suppress(OSError):  # full: the loop will wake in any case; or closed
            self._writer.send(b"\0")

    def listen(self, hub: Any) -> None:
        """Have an event loop make the calls; it forgets this when a connection is lost."""
        self._hub = hub
        hub.add_reader(self._reader, self._make_all)

    def close(self) -> None:
        """Make no more calls."""
        if self._hub is not None:
            self._hub.remove(self._reader)
        self._reader.close()
        self._writer.close()

    def _make_all(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        while self._calls:
            self._calls.popleft()()
