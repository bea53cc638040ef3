"""A window that can change: several consumers of one queue on one channel, opened and cancelled one at a time.

The prefetch of a live consumer cannot change in AMQP 0-9-1. So a queue has several consumers if need be, whose
prefetches add up to its window. To widen it, another consumer is opened with the difference. To narrow it, those are
cancelled that do not fit, and if need be one is opened with what is then missing.

* Overshoot. What a cancelled consumer holds unsettled stays until it is settled, beside the windows of the others. A
  consumer is opened only when all of it together is no more than the wider of the old and the new window.
* Order. All of them are on one channel, and AMQP keeps the order of a queue on one outgoing channel (section 4.7 of
  the specification), whichever of its consumers gets a message.
* Nothing is stranded. A cancelled consumer's messages are still here, to be handled and settled as ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pika.channel import Channel
    from pika.frame import Method
    from pika.spec import Basic

    from fairsched.amqp._ackledger import AckLedger

#: Consumers that one queue has at most. Brokers share a queue among consumers in turn, so each counts there as one.
MOST = 5


class _Consumer(NamedTuple):
    tag: str
    window: int


class _Cancelled(NamedTuple):
    """Bound on the messages that a cancelled consumer still holds: their number, and the newest delivery."""

    window: int
    last: int


def kept(windows: list[int], target: int, most: int) -> list[int]:
    """Choose the consumers that stay when the window changes.

    Parameters
    ----------
    windows : list of int
        Of the consumers there are.
    target : int
        What they may add up to.
    most : int
        How many may stay, if another has to be opened beside them.

    Returns
    -------
    list of int
        Indices, such that the sum is as large as it can be, with as many as possible; one more than `most` if the sum
        is the target.

    Notes
    -----
    O(2**len(windows)); there are few. Pure.
    """
    best: tuple[int, int] = (-1, 0)
    chosen: tuple[int, ...] = ()
    for size in range(len(windows) + 1):
        for some in itertools.combinations(range(len(windows)), size):
            total = sum(windows[index] for index in some)
            fits = total == target or (total < target and size <= most)
            if fits and (total, size) > best:
                best, chosen = (total, size), some
    return list(chosen)


class ResizableWindow:
    """The consumers of one queue on one channel.

    Parameters
    ----------
    ledger : AckLedger
        Of the channel.
    start : callable
        ``start(channel, window, confirmed)`` consumes with that prefetch, which governs this consumer and later ones,
        and returns its tag; `confirmed` is called later.
    stop : callable
        ``stop(channel, tag, confirmed)`` cancels, likewise.
    changed : callable
        Called when a change is complete, or a consumer was added or removed.

    Notes
    -----
    For the I/O thread alone. One request is under way at a time: pika does not tell confirmations apart.
    """

    def __init__(
        self,
        ledger: AckLedger,
        start: Callable[[Channel, int, Callable[[Method[Basic.ConsumeOk]], None]], str],
        stop: Callable[[Channel, str, Callable[[Method[Basic.CancelOk]], None]], None],
        changed: Callable[[], None],
    ) -> None:
        #: Unsettled messages that the present consumers may have.
        self.window = 0
        #: What the windows are to add up to.
        self.target = 0
        #: Whether a request is not confirmed yet.
        self.busy = False
        self._ledger = ledger
        self._start = start
        self._stop = stop
        self._changed = changed
        self._consumers: list[_Consumer] = []
        self._cancelled: list[_Cancelled] = []
        self._ceiling = 0

    @property
    def consumers(self) -> int:
        """Number of consumers there are."""
        return len(self._consumers)

    def leftover(self) -> int:
        """Return how many unsettled messages of cancelled consumers there are at most."""
        if not self._cancelled:
            return 0
        unsettled = self._ledger.unsettled
        held = [(min(one.window, unsettled(one.last)), one) for one in self._cancelled]
        self._cancelled = [one for count, one in held if count]
        return sum(count for count, _ in held)

    def move(self, channel: Channel, target: int) -> None:
        """Change the window, as soon as that can be; to be called again, with the same target, while it is not."""
        if target != self.target:
            self.target = target
            self._ceiling = max(self.window + self.leftover(), target)
        if self.busy or self.window == target or not channel.is_open:
            return
        windows = [consumer.window for consumer in self._consumers]
        staying = kept(windows, target, MOST - 1)
        going = [index for index in range(len(windows)) if index not in staying]
        missing = target - sum(windows[index] for index in staying)
        if going:
            self._cancel(channel, self._consumers[going[0]])
        elif self.window + self.leftover() + missing <= self._ceiling:
            self._open(channel, missing)

    def _open(self, channel: Channel, window: int) -> None:
        def confirmed(_frame: Method[Basic.ConsumeOk]) -> None:
            self._have([*self._consumers, _Consumer(tag, window)])
            self._settled(channel)

        self.busy = True
        tag = self._start(channel, window, confirmed)

    def _cancel(self, channel: Channel, consumer: _Consumer) -> None:
        def confirmed(_frame: Method[Basic.CancelOk]) -> None:
            # Unless the broker cancelled it at the same time.
            if consumer in self._consumers:
                self._have([one for one in self._consumers if one is not consumer])
                self._cancelled.append(_Cancelled(consumer.window, self._ledger.delivered))
            self._settled(channel)

        self.busy = True
        self._stop(channel, consumer.tag, confirmed)

    def _settled(self, channel: Channel) -> None:
        self.busy = False
        self.move(channel, self.target)
        self._changed()

    def lost(self, tag: str) -> None:
        """Note that the broker cancelled a consumer."""
        self._have([consumer for consumer in self._consumers if consumer.tag != tag])

    def _have(self, consumers: list[_Consumer]) -> None:
        self._consumers, self.window = consumers, sum(consumer.window for consumer in consumers)
