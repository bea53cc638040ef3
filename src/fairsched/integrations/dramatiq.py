"""Fair shares for dramatiq workers: `broker.add_middleware(FairShares(...))`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any

from dramatiq import Broker, Middleware, Worker

from fairsched._core import checked_timeout
from fairsched.integrations.waiting_jobs import Job, Key, WaitingJobs

__all__ = ["FairShares"]


class FairShares(Middleware):  # type: ignore[misc]  # dramatiq has no types where it is not installed
    """Serves the messages that a dramatiq worker has prefetched by deficit weighted round robin.

    Parameters
    ----------
    weights : mapping, optional
        Weight by key, whole numbers of at least 1: worker time in proportion to it. ``"*"`` stands for all other keys,
        which have weight 1 by default.
    key : str or callable
        What shares are between: "queue"; ``"option:NAME"``, an option of messages
        (``send_with_options(tenant=...)``); or a function of a `dramatiq.MessageProxy`, which must not block.
    cost : "time" or "constant"
        What a message costs: the time that it keeps a worker thread busy, or 1.

    Raises
    ------
    ConfigurationError
        If a value is none of these; the message names it.

    Notes
    -----
    It replaces the queue between a worker's consumers and its threads, and nothing else: acknowledgements, retries,
    delays, rate limits, pausing and shutting down are dramatiq's. Within a key, messages keep dramatiq's order: by
    priority of the actor, then by arrival.

    Only prefetched messages can be reordered. Each queue has a window of its own, so queues of any length are served
    fairly; for tenants within a queue, set dramatiq's environment variable ``dramatiq_queue_prefetch`` to about the
    length of a flood that others should not wait for.

    O(log n) in the messages of a key. Source: Shreedhar and Varghese, Efficient fair queuing using deficit round robin,
    SIGCOMM 1995.

    Examples
    --------
    >>> from dramatiq.brokers.stub import StubBroker
    >>> broker = StubBroker()
    >>> broker.add_middleware(FairShares({"gold": 40, "free": 4}))
    """

    def __init__(
        self,
        weights: Mapping[Any, int] | None = None,
        *,
        key: str | Callable[[Any], object] = "queue",
        cost: str = "time",
    ) -> None:
        self._arguments = (weights, cost)
        self._key = Key(
            key, lambda message: message.queue_name, {"option": lambda message, name: message.options.get(name)}
        )
        WaitingJobs(*self._arguments)  # a wrong value is found here, not in the worker

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Replace the worker's queue by the fair queue before its threads start."""
        worker.work_queue = FairWorkQueue(WaitingJobs(*self._arguments), self._key)


class FairWorkQueue:
    """The queue between a dramatiq worker's consumers and its threads: the part of `queue.Queue` that they use.

    Notes
    -----
    Not a subclass of `queue.Queue`, since gevent, under which ``dramatiq-gevent`` runs, replaces that class by one that
    cannot be extended in this way. Safe from any thread. A worker's thread takes an item, handles it, and calls
    `task_done`: the time between is the cost of the item.
    """

    def __init__(self, jobs: WaitingJobs, key: Key) -> None:
        self._jobs = jobs
        self._key = key
        self._own = threading.local()
        guard = threading.Lock()
        self._filled = threading.Condition(guard)
        self._finished = threading.Condition(guard)
        #: Number of items that were put and not finished.
        self.unfinished_tasks = 0

    def put(self, item: Any) -> None:
        """Add an item of dramatiq's; items are ordered by the priority of their actors."""
        # Before dramatiq 2.2 a pair of priority and message.
        message = item[1] if isinstance(item, tuple) else item.message
        # The key is the user's function, so it runs before the lock is taken.
        job = Job(self._key(message), item, item)
        with self._filled:
            self._jobs.put(job)
            self.unfinished_tasks += 1
            self._filled.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next item; raise `queue.Empty` if none comes in time."""
        with self._filled:
            seconds = min(checked_timeout(timeout), threading.TIMEOUT_MAX) if block else 0
            if not self._filled.wait_for(self.qsize, seconds):
                raise Empty
            job = self._own.job = self._jobs.take()
        return job.work

    def get_nowait(self) -> Any:
        """Take the next item; raise `queue.Empty` if there is none."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Note that this thread has finished the item that it took last."""
        job, self._own.job = getattr(self._own, "job", None), None
        if job is not None:
            self._jobs.finish(job)
        with self._finished:
            self.unfinished_tasks -= 1
            if not self.unfinished_tasks:
                self._finished.notify_all()

    def join(self) -> None:
        """Wait until all items are finished."""
        with self._finished:
            self._finished.wait_for(lambda: not self.unfinished_tasks)

    def qsize(self) -> int:
        """Return the number of waiting items."""
        return len(self._jobs)
