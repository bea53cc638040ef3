"""Fair shares for Celery workers: `fair_shares(app, ...)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import kombu
from celery import Celery, bootsteps
from celery.exceptions import ImproperlyConfigured

from fairsched.config.lanes import Lanes
from fairsched.errors import ConfigurationError
from fairsched.integrations.celery_lanes import LanesOfWorker
from fairsched.integrations.waiting_jobs import Job, Key, WaitingJobs

__all__ = ["fair_shares"]


def fair_shares(
    app: Celery,
    weights: Mapping[Any, int] | None = None,
    *,
    key: str | Callable[[Any], object] | None = None,
    cost: str = "time",
    lanes: Lanes | None = None,
) -> None:
    """Have the workers of a Celery app serve what they have received by deficit weighted round robin.

    Parameters
    ----------
    app : Celery
        Its workers get one step more.
    weights : mapping, optional
        Weight by key, whole numbers of at least 1: worker time in proportion to it. ``"*"`` stands for all other keys,
        which have weight 1 by default.
    key : str or callable
        What shares are between: "queue"; ``"header:NAME"``, a header of messages
        (``apply_async(headers={"tenant": ...})``); ``"property:NAME"``, a property of messages; or a function of a
        `celery.worker.request.Request`, which must not block. By default the key of the lanes, and "queue" without
        lanes.
    cost : "time" or "constant"
        What a task costs: the time that it keeps a pool process busy, or 1.
    lanes : Lanes, optional
        Lanes of one of the app's queues, which has their name. A worker that consumes this queue consumes the lanes,
        too.

    Raises
    ------
    ConfigurationError
        If a value is none of these, or if the lanes are ordered; the message names it.
    ImproperlyConfigured
        In the worker, if its pool is not the prefork pool on an event loop (``-P prefork``, the default with RabbitMQ).

    Notes
    -----
    Celery lets a received task wait until a process of the pool is free, and gives free processes to tasks in the order
    in which they came. With this step a free process takes the next task of the key whose turn it is; all else is
    Celery's: acknowledgements, late ones too, retries, ETA, revoking, rate and time limits, remote control, shutting
    down.

    Only received tasks can be reordered. Each queue gets a channel and so a window of its own
    (``worker_prefetch_multiplier`` times the processes), so queues of any length are served fairly. Tenants within a
    queue of any length are served fairly if it has lanes, over which ``fairsched spread`` moves its messages. Without
    lanes, choose ``worker_prefetch_multiplier`` so that the window is about as long as a flood that others should not
    wait for. Tasks with an ETA widen the window of every queue while they wait.

    A lane is consumed like a queue, on a channel of its own. Tasks from lanes have the name of the lanes as their
    queue: a retry of a task is published there.

    O(log n) in the waiting tasks of a key. Source: Shreedhar and Varghese, Efficient fair queuing using deficit round
    robin, SIGCOMM 1995.

    Examples
    --------
    >>> app = Celery("shop")
    >>> fair_shares(app, {"gold": 40, "free": 4})
    >>> fair_shares(app, {"acme": 10}, lanes=Lanes("celery", key="header:tenant"))
    """
    _check_lanes(lanes)
    if key is None:
        key = lanes.key if lanes else "queue"
    find = Key(key, _queue, {"header": _header, "property": _property})
    arguments = (weights, cost)
    WaitingJobs(*arguments)  # a wrong value is found here, not in the worker

    class FairShares(Step):
        """The step of this app."""

        def create(self, worker: Any) -> None:
            if worker.process_task != worker._process_task_sem:
                raise ImproperlyConfigured(
                    "fair_shares needs the prefork pool on an event loop: run the worker with -P prefork and RabbitMQ; "
                    f"its pool is {worker.pool_cls.__name__}, and event loop {worker.use_eventloop}"
                )
            FreeProcesses(worker, WaitingJobs(*arguments), find)
            if lanes:
                self.lanes = LanesOfWorker(worker, lanes)
            worker.app.amqp.Consumer = partial(ChannelForEachQueue, worker, self.lanes)

    steps = app.steps["worker"]
    steps -= {step for step in steps if isinstance(step, type) and issubclass(step, Step)}  # the last call counts
    steps.add(FairShares)


def _check_lanes(lanes: object) -> None:
    if lanes is None:
        return
    if not isinstance(lanes, Lanes):
        raise ConfigurationError(f"lanes must be Lanes(...) or None, got {lanes!r}")
    if lanes.ordered:
        raise ConfigurationError(
            f"lanes {lanes.name!r} are ordered, which a pool of processes cannot keep: use fairsched.Consumer, or "
            "ordered=False"
        )


class Step(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Gives free pool processes to waiting tasks by turns."""

    requires = ("celery.worker.components:Pool",)
    lanes: LanesOfWorker | None = None

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Have the loop, which is new after a lost connection, listen to the thread that hears of lanes."""
        if self.lanes:
            self.lanes.listen(hub)

    def stop(self, worker: Any) -> None:
        """End that thread."""
        if self.lanes:
            self.lanes.stop()


class FreeProcesses:
    """Gives each free process of a worker's pool to the waiting task whose turn it is.

    Notes
    -----
    Celery counts free processes by a semaphore that may count too many: a process that is replaced (as
    ``worker_max_tasks_per_child`` has it), a pool that grows and a lost connection each add one, and the pool then
    keeps tasks in a queue of its own, in the order in which they came. So the pool itself is asked, whenever a task
    comes and before the event loop waits. All of it runs in the worker's event loop.
    """

    def __init__(self, worker: Any, jobs: WaitingJobs, key: Key) -> None:
        self._worker = worker
        self._jobs = jobs
        self._key = key
        self._numbers = itertools.count()
        self._clear = worker.semaphore.clear
        worker._quick_acquire = self.put
        worker.semaphore.clear = self.clear
        worker.hub.on_tick.add(self._on_tick)

    def put(self, process: Callable[[Any], None], request: Any) -> None:
        """Queue a request until its turn."""
        self._jobs.put(Job(self._key(request), next(self._numbers), (process, request)))
        self._give()

    def clear(self) -> None:
        """Forget waiting requests: the connection was lost, so the broker redelivers them."""
        self._jobs.clear()
        self._clear()

    def _on_tick(self) -> None:
        if len(self._jobs) and self._give():
            # In this turn of the loop, it may already have checked what to write to processes.
            self._worker.pool._pool.on_poll_start()

    def _give(self) -> bool:
        """Give tasks to free processes while there are both; return whether a process got one."""
        pool = self._worker.pool._pool
        gave = False
        while len(self._jobs) and len(pool._busy_workers) + len(pool.outbound_buffer) < len(pool._all_inqueues):
            self._begin_next()
            gave = True
        return gave

    def _begin_next(self) -> None:
        job = self._jobs.take()
        (process, request), job.work = job.work, None
        for name in _ENDS:
            setattr(request, name, partial(self._ended, job, request, name))
        process(request)
        if request._apply_result is None:  # revoked: the pool did not get it
            _unwatch(request)
            self._jobs.refund(job)

    def _ended(self, job: Job, request: Any, name: str, *args: Any, **options: Any) -> Any:
        _unwatch(request)
        self._jobs.finish(job)
        return getattr(request, name)(*args, **options)


#: Methods of a request of which the pool calls one when a task has ended.
_ENDS = ("on_success", "on_failure")


def _unwatch(request: Any) -> None:
    for name in _ENDS:
        vars(request).pop(name, None)


class ChannelForEachQueue(kombu.Consumer):  # type: ignore[misc]  # kombu has no types
    """A worker's consumer with a channel, and so a window, for each queue: no queue can fill the window of another.

    Notes
    -----
    Celery limits what a channel has unacknowledged, and consumes all queues on one. What it sets for its channel is set
    for each of these. A channel stays open when its queue is cancelled, so that tasks from it can be acknowledged, and
    is used again when the queue is consumed again.
    """

    def __init__(self, worker: Any, lanes: LanesOfWorker | None, *args: Any, **options: Any) -> None:
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


def _queue(request: Any) -> object:
    return request.message.delivery_info["queue"]


def _header(request: Any, name: str) -> object:
    return (request.message.headers or {}).get(name)


def _property(request: Any, name: str) -> object:
    return (request.message.properties or {}).get(name)
