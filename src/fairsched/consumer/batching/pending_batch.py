"""The wait for a batch to fill, and what happens to its messages if that is interrupted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from fairsched.amqp._ackledger import AckLedger
from fairsched.delivery._settling import settle_all
from fairsched.errors import ShutDown

if TYPE_CHECKING:
    from fairsched.consumer.client import Client
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue

#: How often a thread that waits looks whether the shutdown timeout is over, in seconds.
_SLICE = 1.0


class PendingBatch:
    """A batch that is not full yet.

    Parameters
    ----------
    client : Client
        The client that receives the messages.
    lane : FairQueue
        The lane that they are taken from.
    messages : list of Message
        The messages taken so far.
    size : int
        Maximum number of messages.
    wait : float
        Maximum wait for more messages, in seconds.

    Notes
    -----
    A context manager: the end of deliveries ends the block, and completes the batch. Any other exception, and
    ``stop(now=True)``, requeues the messages.

    For one thread, or task.
    """

    def __init__(self, client: Client, lane: FairQueue, messages: list[Message], size: int, wait: float) -> None:
        self._client = client
        self._lane = lane
        self._messages = messages
        self._size = size
        self._deadline = time.monotonic() + wait if wait else -math.inf
        self._waited = False

    def __enter__(self) -> PendingBatch:
        return self

    def missing(self) -> int:
        """Return how many messages to wait for; 0 after the maximum wait, or if no more can come."""
        count = self._size - len(self._messages)
        if not count or self.left() == 0.0 or not self._messages:
            return 0
        client = self._client
        if client.is_over():
            return 0
        return count if self._lane.qsize() or not client.io_thread.channels.is_full() else 0

    def left(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self._deadline - time.monotonic())

    def add(self, messages: list[Message]) -> None:
        """Add messages."""
        self._waited = True
        self._messages += messages

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if isinstance(error, ShutDown) and not self._client.returning:
            return True
        settle_all(self._messages, AckLedger.REQUEUE)
        return False

    def messages(self) -> list[Message]:
        """Return the messages, without those that the broker redelivers because their channel was lost meanwhile."""
        return self._client.living(self._lane, self._messages) if self._waited else self._messages


def taken(client: Client, lane: FairQueue, size: int, wait: float) -> Iterator[list[Message]]:
    """Yield the messages of each batch until the consumer ends; see `Consumer.batches`."""
    while not client.is_over():
        try:
            with PendingBatch(client, lane, client.get_many(lane, size, _SLICE), size, wait) as pending:
                while missing := pending.missing():
                    pending.add(client.get_many(lane, missing, min(_SLICE, pending.left())))
            messages = pending.messages()
        except ShutDown:
            break
        if not messages:
            continue
        yield messages
        if client.settlements.flush_requested:
            client.give_way()
    if client.error is not None:
        raise client.error
