"""Lanes in a Celery worker: which of them its consumer consumes, and which are idle."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import kombu

from fairsched.config.lanes import Lanes

if TYPE_CHECKING:
    from fairsched.integrations.celery import ChannelForEachQueue

_log = logging.getLogger(__name__)


class LanesOfWorker:
    """The lanes that a worker consumes while it consumes the queue that has their name.

    Notes
    -----
    All methods are for the thread of the worker's event loop.
    """

    def __init__(self, worker: Any, lanes: Lanes) -> None:
        self._worker = worker
        self._lanes = lanes
        self._buckets = frozenset(lanes.bucket_names)
        self._own: dict[str, OwnLane] = {}
        self._consumer: ChannelForEachQueue | None = None

    @property
    def name(self) -> str:
        """Name of the queue that has these lanes."""
        return self._lanes.name

    def listen(self, hub: Any) -> None:
        pass

    def stop(self) -> None:
        pass

    def begin(self, consumer: ChannelForEachQueue) -> None:
        """Consume the buckets: the consumer consumes the queue of these lanes from now on."""
        self._consumer = consumer
        for name in self._lanes.bucket_names:
            consumer.add_lane(self._queue(name))

    def end(self, consumer: ChannelForEachQueue) -> None:
        """Cancel the lanes: the consumer does not consume their queue any more."""
        if consumer is not self._consumer:
            return
        self._consumer = None
        for name in (*self._lanes.bucket_names, *self._own):
            consumer.cancel_by_queue(name)
        self._own.clear()

    def received(self, queue: str, message: Any) -> None:
        """Note a message; one from a lane gets the address under which its producer published it.

        Celery publishes a retry where its task came from. The lane might be gone by then.
        """
        own = self._own.get(queue)
        if own is not None:
            own.received(message)
        elif queue not in self._buckets:
            return
        message.delivery_info.update(exchange="", routing_key=self.name)

    def _queue(self, name: str) -> kombu.Queue:
        queue = self._lanes.queue(name)
        return kombu.Queue(name, durable=True, queue_arguments=dict(queue.arguments or {}))


class OwnLane:
    """Messages of a tenant's own lane that may not be settled yet, and when the last one came."""

    __slots__ = ("_prune_at", "_unsettled", "last")

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._unsettled: list[Any] = []
        self._prune_at = _FEW

    def received(self, message: Any) -> None:
        """Note a message. O(1), amortized."""
        self.last = time.monotonic()
        self._unsettled.append(message)
        if len(self._unsettled) >= self._prune_at:
            self._prune_at = max(_FEW, 2 * self.unsettled())

    def unsettled(self) -> int:
        """Return how many messages are not settled. O(number of them), amortized."""
        self._unsettled = [message for message in self._unsettled if not message.acknowledged]
        return len(self._unsettled)


#: A lane's list of messages is pruned from this length on.
_FEW = 16
