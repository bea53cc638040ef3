"""Batches of messages, settled together or one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, overload

from fairsched.amqp._ackledger import AckLedger
from fairsched.delivery._settling import finish_all, note_failures, settle_all, settle_all_failed
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: Most messages of a batch, and the longest wait for them in seconds.
LARGEST, LONGEST = 1_000_000, 3600

_Self = TypeVar("_Self", bound="MessageBatch")


def check_limits(max_size: object, max_wait: object) -> tuple[int, float]:
    """Check the maximum size of a batch, and the maximum wait for it to fill.

    Parameters
    ----------
    max_size : int
        Number of messages, from 1 to `LARGEST`.
    max_wait : float
        Seconds, from 0 to `LONGEST`.

    Returns
    -------
    tuple of (int, float)
        Both values.

    Raises
    ------
    ConfigurationError
        If a value is invalid.
    """
    if not isinstance(max_size, int) or isinstance(max_size, bool) or not 1 <= max_size <= LARGEST:
        raise ConfigurationError(f"max_size must be a whole number from 1 to {LARGEST}, got {max_size!r}")
    if not isinstance(max_wait, int | float) or isinstance(max_wait, bool) or not 0 <= max_wait <= LONGEST:
        raise ConfigurationError(f"max_wait must be a number of seconds from 0 to {LONGEST}, got {max_wait!r}")
    return int(max_size), float(max_wait)


class MessageBatch(Sequence["Message"]):
    """A sequence of messages in fair order; a slice is a list.

    Returned by ``batches()`` of a consumer.

    Notes
    -----
    Messages may also be settled one by one; the methods of the batch settle those that are not settled yet. As a
    context manager, a batch acks these when the block ends, except messages that were deferred. If the block raises an
    `Exception`, each unsettled message is settled as the consumer's ``on_error`` or ``retry`` says; other exceptions,
    such as KeyboardInterrupt or a task's CancelledError, requeue them. The exception propagates. As for a `Message`,
    the first failure decides: afterwards the methods and blocks of the batch and of its messages leave them alone.

    With ``cost="time"``, the time of the ``with`` block is divided equally among the messages. Without a block no time
    is measured, as in an iteration.

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
        """Acknowledge all messages that are not settled yet.

        Returns
        -------
        int
            Number of messages that this call settled.

        Notes
        -----
        Never waits for the network. Messages whose channel was closed are not counted here but in
        ``stats()["stale_settlements"]``; the broker redelivers them.
        """
        return settle_all(self._messages, AckLedger.ACK)

    def nack(self, requeue: bool = True) -> int:
        """Negatively acknowledge all messages that are not settled yet.

        Parameters
        ----------
        requeue : bool
            True returns them to their queues; False drops them, or dead-letters them if the queue is set up for it.

        Returns
        -------
        int
            Number of messages that this call settled.

        Notes
        -----
        As for `ack`.
        """
        return settle_all(self._messages, AckLedger.REQUEUE if requeue else AckLedger.REJECT)

    def __enter__(self: _Self) -> _Self:
        self._began = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            finish_all(self._messages)
        elif issubclass(type(error), Exception):  # `isinstance` asks the object, which may raise
            self._fail(error)  # type: ignore[arg-type]
        else:
            self.nack()
            return
        self._handled(self._messages, time.perf_counter_ns() - self._began)

    def _fail(self, error: Exception) -> None:
        failed = note_failures(self._messages)
        try:
            self._failed(failed, error)
        except BaseException:  # whatever it was about to do, the messages must not stay here
            settle_all_failed(failed, AckLedger.REQUEUE)
            raise

    def __repr__(self) -> str:
        unsettled = sum(not message.settled for message in self._messages)
        return f"<{type(self).__name__} of {len(self)} messages, {unsettled} unsettled>"


def plain_batches(
    messages: list[Message],
    failed: Callable[[list[Message], Exception], None],
    handled: Callable[[list[Message], int], None],
) -> Generator[MessageBatch]:
    """Yield messages as one batch; `MessageBatch` calls the functions."""
    yield MessageBatch(messages, failed, handled)
