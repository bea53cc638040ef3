"""Requeueing slowly what fails again: what always fails would otherwise come back hundreds of times a second."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.requeueing.content import content_of
from fairsched.delivery._settling import settle_failed

if TYPE_CHECKING:
    from fairsched.consumer.requeueing.late_returns import LateReturns
    from fairsched.delivery._delivery import Message

#: Seconds for which the second failure of a message is held back; and the longest, by doubling with each failure.
FIRST, LONGEST = 0.05, 10.0
#: Messages that are remembered, those that failed last.
REMEMBERED = 4096


class Pace:
    """Requeues messages that failed: at once the first time, later and later after that.

    Parameters
    ----------
    late_returns : LateReturns, optional
        Told of each message before it is requeued.

    Notes
    -----
    A message that is held back stays unsettled, so it takes a place in the window of its queue; the worker goes on. A
    redelivered message is known by its content, since nothing else of it stays the same in all kinds of queues: equal
    messages are held back for as long as the one that failed most often.

    Safe from any thread. O(length of the message).
    """

    def __init__(self, late_returns: LateReturns | None = None) -> None:
        self._late_returns = late_returns
        self._failures: OrderedDict[int, int] = OrderedDict()
        self._held: dict[int, Message] = {}
        self._guard = threading.RLock()
        #: Calls a function after so many seconds; None: nothing is held back, not yet or not any more.
        self._after: Callable[[float, Callable[[], object]], object] | None = None

    def begin(self, after: Callable[[float, Callable[[], object]], object]) -> None:
        """Take what calls a function after so many seconds, in whatever thread."""
        self._after = after

    @property
    def held(self) -> int:
        """Messages that are held back."""
        return len(self._held)

    def requeue(self, message: Message) -> None:
        """Requeue a message that failed, now or later."""
        if message.settled:
            return
        content = content_of(message)
        with self._guard:
            after = self._after
            seconds = self._seconds(content, message.redelivered) if after is not None else 0.0
            if seconds:
                self._held[id(message)] = message
        if after is None or not seconds:
            self._nack(message)
        else:
            after(seconds, lambda: self._let_go(message))

    def release(self) -> None:
        """Requeue what is held back, and hold back nothing any more."""
        with self._guard:
            self._after = None
            held = list(self._held.values())
            self._held.clear()
        for message in held:
            self._nack_if_alive(message)

    def release_of(self, queues: Collection[str]) -> None:
        """Requeue what is held back of queues."""
        with self._guard:
            held = [message for message in self._held.values() if message.queue in queues]
            for message in held:
                del self._held[id(message)]
        for message in held:
            self._nack_if_alive(message)

    def _let_go(self, message: Message) -> None:
        with self._guard:
            mine = self._held.pop(id(message), None) is not None
        if mine:
            self._nack_if_alive(message)

    def _nack_if_alive(self, message: Message) -> None:
        if message.alive:  # else the broker has it back already
            self._nack(message)

    def _nack(self, message: Message) -> None:
        if self._late_returns is not None:
            self._late_returns.returning(message)
        settle_failed(message, AckLedger.REQUEUE)

    def _seconds(self, content: int, redelivered: bool) -> float:
        """Return for how long a message is held back, and count its failure."""
        before = self._failures.pop(content, 0)
        self._failures[content] = before + 1 if redelivered else max(1, before)
        if len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)
        return min(LONGEST, FIRST * 2.0 ** min(max(0, before - 1), 30)) if redelivered else 0.0
