"""Fair shares for Celery workers: `fair_shares(app, ...)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import ImproperlyConfigured

from fairsched.config.lanes import Lanes
from fairsched.errors import ConfigurationError
from fairsched.integrations.celery_channels import ChannelForEachQueue
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
        result = getattr(request, name)(*args, **options)
        # The pool has counted the process as free before it says that the task has ended.
        self._give()
        return result


#: Methods of a request of which the pool calls one when a task has ended.
_ENDS = ("on_success", "on_failure")


def _unwatch(request: Any) -> None:
    for name in _ENDS:
        vars(request).pop(name, None)


def _queue(request: Any) -> object:
    return request.message.delivery_info["queue"]


def _header(request: Any, name: str) -> object:
    return (request.message.headers or {}).get(name)


def _property(request: Any, name: str) -> object:
    return (request.message.properties or {}).get(name)
