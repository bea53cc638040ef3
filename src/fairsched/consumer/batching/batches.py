"""Messages that were taken together, handled together, and settled together or one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, overload

from fairsched._amqp import AckLedger
from fairsched._delivery import settle_all
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched._delivery import Message

#: Most messages of a batch, and the longest wait for them in seconds.
LARGEST, LONGEST = 1_000_000, 3600

_Self = TypeVar("_Self", bound="MessageBatch")


def check_limits(max_size: object, max_wait: object) -> tuple[int, float]:
    """Check how large a batch may be, and how long is waited until it is.

    Parameters
    ----------
    max_size : int
        Messages, from 1 to `LARGEST`.
    max_wait : float
        Seconds, from 0 to `LONGEST`.

    Returns
    -------
    tuple of (int, float)
        Both.

    Raises
    ------
    ConfigurationError
        One of them is not allowed.
    """
    if not isinstance(max_size, int) or isinstance(max_size, bool) or not 1 <= max_size <= LARGEST:
        raise ConfigurationError(f"max_size must be a whole number from 1 to {LARGEST}, got {max_size!r}")
    if not isinstance(max_wait, int | float) or isinstance(max_wait, bool) or not 0 <= max_wait <= LONGEST:
        raise ConfigurationError(f"max_wait must be a number of seconds from 0 to {LONGEST}, got {max_wait!r}")
    return int(max_size), float(max_wait)


class MessageBatch(Sequence["Message"]):
    """Messages that were taken together, in fair order: a sequence, of which a slice is a list.

    Made by ``batches()`` of a consumer.

    Notes
    -----
    Each message may be settled alone, before or after; the methods of the batch settle those that are not settled yet.
    As a context manager a batch acks these when the block ends, except messages that were deferred. When the block
    raises an `Exception`, each unsettled message is settled as the consumer's ``on_error`` says; anything else, such
    as KeyboardInterrupt or a task's CancelledError, requeues them. The exception goes on.

    With ``cost="time"`` the time of the ``with`` block is divided among the messages in equal parts. Without one
    nothing is measured, as in an iteration.

    Settling is safe from any thread, and O(messages).
    """

    __slots__ = ("_began", "_failed", "_handled", "_messages")

    def __init__(
        self,
        messages: list[Message],
        failed: Callable[[list[Message], Exception], None],
        handled: Callable[[list[Message], int], None],
    ) -> None:
        self._messages = messages
        self._failed = failed
        self._handled = handled
        self._began = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def ack(self) -> int:
        """Say that all messages were processed that are not settled yet.

        Returns
        -------
        int
            How many messages this call settled.

        Notes
        -----
        Never waits for the network. Messages whose channel is gone are not counted, since the broker delivers them
        again; ``stats()["stale_settlements"]`` does.
        """
        return settle_all(self._messages, AckLedger.ACK)

    def nack(self, requeue: bool = True) -> int:
        """Give all messages back that are not settled yet.

        Parameters
        ----------
        requeue : bool
            True puts them back into their queues; False drops them, or dead-letters them where the queue says so.

        Returns
        -------
        int
            How many messages this call settled.

        Notes
        -----
        As `ack`.
        """
        return settle_all(self._messages, AckLedger.REQUEUE if requeue else AckLedger.REJECT)

    def __enter__(self: _Self) -> _Self:
        self._began = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            settle_all(self._messages, AckLedger.ACK, True)
        elif isinstance(error, Exception):
            self._failed([message for message in self._messages if not message.settled], error)
        else:
            self.nack()
            return
        self._handled(self._messages, time.perf_counter_ns() - self._began)

    def __repr__(self) -> str:
        unsettled = sum(not message.settled for message in self._messages)
        return f"<{type(self).__name__} of {len(self)} messages, {unsettled} unsettled>"


def plain_batches(
    messages: list[Message],
    failed: Callable[[list[Message], Exception], None],
    handled: Callable[[list[Message], int], None],
) -> Generator[MessageBatch]:
    """Yield messages that were taken together as one batch; see `MessageBatch` for what is called."""
    yield MessageBatch(messages, failed, handled)
