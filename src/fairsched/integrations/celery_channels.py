"""A Celery worker's consumer with a channel, and so a window, for each queue."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import kombu

__all__ = ["ChannelForEachQueue", "Lanes"]


class Lanes(Protocol):
    """The lanes of a queue, as the consumer of that queue sees them."""

    @property
    def name(self) -> str:
        """Name of the queue."""

    def begin(self, consumer: ChannelForEachQueue) -> None:
        """Consume the lanes: the queue is consumed from now on."""

    def end(self, consumer: ChannelForEachQueue) -> None:
        """Cancel the lanes: the queue is not consumed any more."""

    def received(self, queue: str, message: Any) -> None:
        """Take note of a message."""


class ChannelForEachQueue(kombu.Consumer):  # type: ignore[misc]  # kombu has no types
    """A worker's consumer with a channel, and so a window, for each queue: no queue can fill the window of another.

    Notes
    -----
    Celery limits what a channel has unacknowledged, and consumes all queues on one. What it sets for its channel is set
    for each of these. A channel stays open when its queue is cancelled, so that tasks from it can be acknowledged, and
    is used again when the queue is consumed again.
    """

    def __init__(self, worker: Any, lanes: Lanes | None, *args: Any, **options: Any) -> None:
        self._worker = worker
        self._lanes = lanes
        self._own: dict[str, kombu.Consumer] = {}
        super().__init__(*args, **options)

    def qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the window of each queue."""
        for own in self._own.values():
            if not (apply_global and _is_quorum(own)):
                own.qos(prefetch_size, prefetch_count, apply_global)

    def cancel(self) -> None:
        """Cancel all consumers."""
        if self._lanes:
            self._lanes.end(self)
        for name in list(self._active_tags):
            self._cancel(name)

    close = cancel

    def cancel_by_queue(self, queue: Any) -> None:
        """Cancel the consumer of a queue, and of its lanes."""
        name = getattr(queue, "name", queue)
        if name in self._active_tags:
            self._cancel(name)
        self._queues.pop(name, None)
        if self._lanes and name == self._lanes.name:
            self._lanes.end(self)

    def _cancel(self, name: str) -> None:
        del self._active_tags[name]
        self._own[name].cancel()

    def add_lane(self, queue: kombu.Queue) -> None:
        """Declare and consume a lane; an error of its channel leaves the other channels as they are."""
        channel = self._channel_of(queue.name)
        try:
            self._queues[queue.name] = queue = queue(channel)
            queue.declare()
            self._open(queue, channel, self.no_ack)
        except self._worker.consumer.channel_errors:
            self._queues.pop(queue.name, None)
            self._own.pop(queue.name, None)
            raise

    def close_lane(self, name: str) -> None:
        """Close the channel of a lane: in one step its consumer ends, and what is under way returns to the lane."""
        self._active_tags.pop(name, None)
        self._queues.pop(name, None)
        own = self._own.pop(name, None)
        if own is not None:
            own.channel.close()

    def _basic_consume(self, queue: Any, consumer_tag: Any = None, no_ack: Any = None, nowait: bool = True) -> Any:
        if queue.name not in self._active_tags:
            self._open(queue, self._channel_of(queue.name), no_ack)
            if self._lanes and queue.name == self._lanes.name:
                self._lanes.begin(self)
        return self._active_tags[queue.name]

    def _channel_of(self, name: str) -> Any:
        before = self._own.get(name)
        return before.channel if before else self.channel.connection.client.channel()

    def _open(self, queue: Any, channel: Any, no_ack: Any) -> None:
        consumer = self._worker.consumer
        own = self._own[queue.name] = kombu.Consumer(
            channel, [queue], no_ack=no_ack, auto_declare=False,
            on_decode_error=self.on_decode_error, on_message=partial(self._received, queue.name),
        )  # fmt: skip
        own.accept = self.accept
        window = consumer.qos.value if consumer.qos else consumer.initial_prefetch_count
        own.qos(0, window, getattr(consumer, "qos_global", True) and not _is_quorum(own))
        own.consume()
        self._active_tags[queue.name] = own._active_tags[queue.name]

    def _received(self, queue: str, message: Any) -> None:
        message.delivery_info["queue"] = queue
        if self._lanes:
            self._lanes.received(queue, message)
        self.on_message(message)


def _is_quorum(consumer: kombu.Consumer) -> bool:
    """Whether a consumer's queue is a quorum queue, for which RabbitMQ refuses windows of channels (``global``)."""
    return any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in consumer.queues)
