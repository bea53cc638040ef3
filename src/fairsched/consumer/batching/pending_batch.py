"""Until a batch is full: how long more messages are waited for, and what becomes of those that are here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from fairsched._amqp import AckLedger
from fairsched._delivery import settle_all
from fairsched.errors import ShutDown

if TYPE_CHECKING:
    from fairsched._delivery import Message
    from fairsched._fairqueue import FairQueue
    from fairsched.consumer.client import Client

#: How often who waits looks whether the shutdown timeout is over, in seconds.
_SLICE = 1.0


class PendingBatch:
    """A batch that is not full yet, and what is still waited for.

    Parameters
    ----------
    client : Client
        Where messages come from.
    lane : FairQueue
        The one that they are taken from.
    messages : list of Message
        What was taken so far.
    size : int
        How many it should be.
    wait : float
        Seconds for which more are waited for.

    Notes
    -----
    A context manager: the end of deliveries ends the block, and the batch. Whatever else interrupts it requeues what
    was taken, as does ``stop(now=True)``.

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
        """Return how many messages are to be waited for: 0 if the time is over, or none can come."""
        count = self._size - len(self._messages)
        if not count or self.left() == 0.0 or not self._messages:
            return 0
        client = self._client
        if client.is_over():
            return 0
        return count if self._lane.qsize() or not client.io_thread.is_full() else 0

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._deadline - time.monotonic())

    def add(self, messages: list[Message]) -> None:
        """Take more in."""
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
        """Return the batch, without what the broker delivers again because a channel was lost meanwhile."""
        return self._client.living(self._lane, self._messages) if self._waited else self._messages


def taken(client: Client, lane: FairQueue, size: int, wait: float) -> Iterator[list[Message]]:
    """Yield the messages of one batch after the other until the consumer ends, as `Consumer.batches` says."""
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
