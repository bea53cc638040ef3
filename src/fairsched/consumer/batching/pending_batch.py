"""The wait for a batch to fill, and what happens to its messages if that is interrupted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairsched.amqp._ackledger import AckLedger
from fairsched.delivery._settling import settle_all
from fairsched.errors import ShutDown

if TYPE_CHECKING:
    from fairsched.consumer.batching.batch_methods import MakeBatches
    from fairsched.consumer.client import Client
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue

#: How often a thread that waits looks whether the shutdown timeout is over, in seconds.
SLICE = 1.0


class PendingBatch:
    """A batch that is not full yet.

    Parameters
    ----------
    client : Client
        The client that receives the messages.
    worker_queue : FairQueue
        The worker queue that they are taken from.
    size : int
        Maximum number of messages.
    wait : float
        Maximum wait for more messages after the first, in seconds.

    Attributes
    ----------
    handed_over : bool
        Whether the messages belong to the caller of `Consumer.batches`; set in the step that hands them over.

    Notes
    -----
    A context manager: an exception requeues the messages unless they were handed over.

    For one thread, or task.
    """

    def __init__(self, client: Client, worker_queue: FairQueue, size: int, wait: float) -> None:
        self._client = client
        self._worker_queue = worker_queue
        self._parts: list[list[Message]] = []
        self._size = size
        self._wait = wait
        self._deadline = -math.inf
        self.handed_over = False

    def __enter__(self) -> PendingBatch:
        return self

    def missing(self) -> int:
        """Return how many messages to wait for; 0 after the maximum wait, or if no more can come."""
        here = sum(map(len, self._parts))
        count = self._size - here
        if not count or self.left() == 0.0 or not here:
            return 0
        client = self._client
        if client.is_over():
            return 0
        return count if self._worker_queue.qsize() or not client.io_thread.channels.is_full() else 0

    def left(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self, limit: int, seconds: float) -> None:
        """Add messages of the worker queue, at most `limit`, waiting at most `seconds` for the first."""
        take(self._parts, self._client, self._worker_queue, limit, seconds)
        self._start()

    def add(self, messages: list[Message]) -> None:
        """Add messages."""
        self._parts.append(messages)
        self._start()

    def _start(self) -> None:
        """Start the maximum wait, with the first messages."""
        if len(self._parts) == 1 and self._wait:
            self._deadline = time.monotonic() + self._wait

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not self.handed_over:
            for messages in self._parts:
                settle_all(messages, AckLedger.REQUEUE)

    def messages(self) -> list[Message]:
        """Return the messages, without those that the broker redelivers because their channel was lost meanwhile."""
        if len(self._parts) == 1:
            return self._parts[0]
        return self._client.living(self._worker_queue, list(chain.from_iterable(self._parts)))


def take(found: list[list[Message]], client: Client, worker_queue: FairQueue, limit: int, seconds: float) -> None:
    """Append to a list the messages that `Client.get_many` returns, also a list.

    That is one step: an exception raised by the handler of a signal comes before the messages are taken, or when the
    caller has them. Between a call and the assignment of its result it would lose them.
    """
    found.extend(map(client.get_many, (worker_queue,), (limit,), (seconds,)))


def _fill(pending: PendingBatch, client: Client, size: int) -> None:
    """Wait for the messages of a batch; the end of deliveries completes it, unless they are to be returned."""
    pending.take(size, SLICE)
    try:
        while missing := pending.missing():
            pending.take(missing, min(SLICE, pending.left()))
    except ShutDown:
        if client.returning:
            raise


def each_batch(client: Client, worker_queue: FairQueue, make: MakeBatches, size: int, wait: float) -> Iterator[Any]:
    """Yield batches until the consumer ends; see `Consumer.batches`. An interrupt requeues an unfinished batch."""
    handled = partial(client.handled_many, worker_queue)
    while not client.is_over():
        try:
            with PendingBatch(client, worker_queue, size, wait) as pending:
                _fill(pending, client, size)
                messages = pending.messages()
                for batch in make(messages, client.failed_many, handled) if messages else ():
                    pending.handed_over = True
                    yield batch
        except ShutDown:
            break
        if messages and client.settlements.flush_requested:
            client.give_way()
    if client.error is not None:
        raise client.error
