"""Holds on slots that are empty here and backlogged at the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel
    from fairsched.consumer.prefetch.measure import Measurements
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.worker_queues import WorkerQueues

#: How often a held slot has to show that more of it waits at the broker, in seconds.
PERIOD = 0.05
#: So many queues are asked about at the broker in one period, at most: the others have their turn in the next ones.
MOST_ASKED = 8
#: A slot that was waited for in vain is waited for again after a number of periods that doubles up to this.
LONGEST_PENALTY = 64
#: A turn is waited for so many round trips, and this many seconds at least: settlements travel in batches, and a busy
#: broker answers later than an idle one.
ROUND_TRIPS, LEAST_PATIENCE, MOST_PATIENCE = 4, 0.02, 10.0


def patience(*round_trips: float | None) -> float:
    """Return for how long a turn is waited for.

    Parameters
    ----------
    *round_trips : float or None
        As measured in several ways, in seconds; None when it is not known yet. The longest counts.

    Returns
    -------
    float
        Seconds.

    Notes
    -----
    O(1). Pure.
    """
    longest = max((one for one in round_trips if one is not None), default=0.0)
    return min(MOST_PATIENCE, max(LEAST_PATIENCE, ROUND_TRIPS * longest))


class BackloggedSlots:
    """Holds the slots of queues that are backlogged at the broker, and lets go of them when they no longer are.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timer it uses.
    settings : ConsumerSettings
        How long a turn is waited for, if that was said; the weights; and whether slots are queues: otherwise a full
        window says nothing about a slot, and nothing is held.
    measurements : Measurements
        Knows the round trip.
    worker_queues : WorkerQueues
        Whose slots are held.
    channel : callable
        ``channel(queue)`` returns the current channel of a queue, or None.

    Notes
    -----
    A queue that fills its window has more at the broker. Later, when a fast handler keeps the window empty, only the
    broker knows: it is asked, by a passive declaration once a period, and only while the answer is in doubt. Of many
    queues a few are asked about in each period; the others count as backlogged as long as anything of them arrives.

    A queue whose window is smaller than a turn is held, but not waited for: its turns would each last for several
    round trips.

    For the I/O thread alone. The timer runs only while something is held. O(queues that are held) a period.
    """

    def __init__(
        self,
        loop: IOLoop,
        settings: ConsumerSettings,
        measurements: Measurements,
        worker_queues: WorkerQueues,
        channel: Callable[[str], ConsumerChannel | None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._measurements = measurements
        self._worker_queues = worker_queues
        self._channel = channel
        self._held: dict[str, _Penalty] = {}
        #: The first queue to ask about, when its number comes.
        self._turn = 0

    def reweigh(self, settings: ConsumerSettings) -> None:
        """Take other weights."""
        self._settings = settings

    def forget(self, queue: str) -> None:
        """Hold a queue no longer."""
        if self._held.pop(queue, None) is not None:
            self._worker_queues.hold(queue, False)

    def note_fill(self, found: ConsumerChannel) -> None:
        """Hold a queue that filled its window: more are on the way when its messages here run out."""
        if self._settings.key is not None or found.queue in self._held:
            return
        if not self._held:
            self._set_patience()
            self._loop.call_later(PERIOD, self._review)
        self._held[found.queue] = _Penalty()
        self._worker_queues.hold(found.queue, True, self._is_awaited(found))

    def _set_patience(self) -> None:
        chosen, measurements = self._settings.anticipation, self._measurements
        self._worker_queues.anticipate(
            chosen if chosen is not None else patience(measurements.round_trip(), measurements.refill())
        )

    def _is_awaited(self, found: ConsumerChannel) -> bool:
        return found.window >= self._settings.units[found.queue]

    def _review(self) -> None:
        self._set_patience()
        left = MOST_ASKED
        for found in self._in_turn():
            penalty = self._held[found.queue]
            backlogged = found.backlogged(left > 0)
            left -= found.asking
            if backlogged:
                if penalty.over():
                    awaited = self._is_awaited(found)
                    before = self._worker_queues.hold(found.queue, True, awaited)
                    penalty.renew(awaited and not before)
            else:
                del self._held[found.queue]
                self._worker_queues.hold(found.queue, False)
        if self._held:
            self._loop.call_later(PERIOD, self._review)

    def _in_turn(self) -> list[ConsumerChannel]:
        """Return the channels of what is held, beginning with others each time."""
        found = [one for queue in self._held if (one := self._channel(queue)) is not None]
        self._turn = (self._turn + MOST_ASKED) % len(found) if len(found) > MOST_ASKED else 0
        return found[self._turn :] + found[: self._turn]


class _Penalty:
    """For how many periods a slot that was waited for in vain stays so; twice as many each time in a row."""

    __slots__ = ("_left", "_length")

    def __init__(self) -> None:
        self._left = self._length = 0

    def over(self) -> bool:
        self._left -= 1
        return self._left < 0

    def renew(self, in_vain: bool) -> None:
        self._length = min(LONGEST_PENALTY, max(1, 2 * self._length)) if in_vain else 0
        self._left = self._length
