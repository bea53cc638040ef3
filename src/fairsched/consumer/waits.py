"""Warnings of queues whose messages wait here longer than brokers allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from fairsched.consumer.requeueing.budget import COUNTS

if TYPE_CHECKING:
    from fairsched.config.queues import Queue
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Seconds that RabbitMQ leaves a message unsettled, unless told otherwise: then it closes the channel.
CONSUMER_TIMEOUT = 1800.0
#: Messages that count their deliveries should not wait here longer than this for their handler, in seconds.
COUNTED_WAIT = 10.0
#: Handlers faster than this, in nanoseconds, are not looked at; and how seldom others are, in seconds.
SLOW, PAUSE = 5_000_000, 1.0


def consumer_timeout(queue: Queue | None) -> float:
    """Return the seconds for which the broker leaves a message of a queue unsettled, by its arguments. O(1)."""
    found = ((queue.arguments if queue is not None else None) or {}).get("x-consumer-timeout")
    return found / 1000 if isinstance(found, int) and not isinstance(found, bool) and found > 0 else CONSUMER_TIMEOUT


def _limit(timeout: float) -> str:
    """Name the limit of a queue, for a warning."""
    if timeout == CONSUMER_TIMEOUT:
        return f"consumer_timeout, {timeout:g} s by default"
    return f"its x-consumer-timeout, {timeout:g} s"


def overstay(queue: str, here: int, seconds: float, counted: bool, timeout: float = CONSUMER_TIMEOUT) -> str | None:
    """Say what becomes of messages that wait here for so long, or return None if nothing does.

    Parameters
    ----------
    queue : str
        Where they came from.
    here : int
        How many unsettled messages there are, of all queues.
    seconds : float
        That it takes to handle them.
    counted : bool
        Whether the queue counts how often a message was delivered.
    timeout : float
        Seconds for which the broker leaves a message of the queue unsettled.

    Returns
    -------
    str or None
        One sentence, without the remedy.

    Notes
    -----
    O(1). Pure.
    """
    what = f"{here} messages are here and need {seconds:.3g} s"
    if seconds > timeout:
        return (
            f"{what}, those of queue {queue!r} too: RabbitMQ closes the channel of a message that is unsettled for "
            f"longer than {_limit(timeout)}, and delivers all of them again"
        )
    if counted and seconds > COUNTED_WAIT:
        return (
            f"{what}, and queue {queue!r} counts deliveries: each connection that is lost counts as one for all of "
            "them, and beyond the delivery limit, 20 by default in RabbitMQ 4, they are dead-lettered or dropped"
        )
    return None


def slow_rates(settings: ConsumerSettings) -> Iterator[str]:
    """Say for which limits a full window needs longer than brokers leave a message unsettled.

    Parameters
    ----------
    settings : ConsumerSettings
        Windows and limits.

    Yields
    ------
    str
        One sentence for each queue or, with a key, one for the slowest of the tenants.

    Notes
    -----
    O(queues and limits). Pure.
    """
    if settings.key is None:
        found = [
            (f"queue {name!r}", settings.limits_of(name), size, consumer_timeout(settings.queues.get(name)))
            for name, size in settings.windows.items()
        ]
    else:
        shortest = min(map(consumer_timeout, settings.queues.values()), default=CONSUMER_TIMEOUT)
        found = [("one tenant", settings.all_limits(), sum(settings.windows.values()), shortest)]
    for whose, limits, window, timeout in found:
        rate = min((limit.per_second for limit in limits if limit.per_second is not None), default=None)
        if rate is not None and window / rate > timeout:
            yield (
                f"a window full of messages of {whose}, {window} of them, needs {window / rate:.3g} s at a rate of "
                f"{rate:.3g} a second: RabbitMQ closes the channel of a message that is unsettled for longer than "
                f"{_limit(timeout)}, and delivers all of them again; use a prefetch of at most "
                f"{max(1, int(rate * timeout))}"
            )


class WaitWarnings:
    """Looks now and then, while handlers are slow, at how long messages wait here, and warns once for each queue.

    Parameters
    ----------
    workers : int
        That handle messages side by side.
    here : callable
        Returns the number of unsettled messages.
    advice : callable
        Returns the remedy, a sentence.
    timeout : callable
        ``timeout(queue)``: the seconds for which the broker leaves a message of a queue unsettled.
    clock : callable
        Returns seconds.

    Notes
    -----
    Safe from any thread: two at the same moment may both warn. O(1), and O(queues) once in `PAUSE` seconds.
    """

    def __init__(
        self,
        workers: int,
        here: Callable[[], int],
        advice: Callable[[], str],
        *,
        timeout: Callable[[str], float] = lambda _: CONSUMER_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._workers = workers
        self._here = here
        self._advice = advice
        self._clock = clock
        self._again_at = 0.0
        self._counting: set[Hashable] = set()
        self._warned: set[Hashable] = set()

    def forget(self, queue: str) -> None:
        """Warn again if a queue of this name is consumed again."""
        self._counting.discard(queue)
        self._warned.discard(queue)

    def look(self, message: Message, service: float) -> None:
        """Look, because a message was handled slowly; handlers take so many seconds in the mean."""
        queue = message.queue
        if queue in self._warned:
            return
        if message.redelivered and queue not in self._counting and _is_counted(message):
            self._counting.add(queue)
            self._again_at = 0.0
        now = self._clock()
        if now < self._again_at:
            return
        self._again_at = now + PAUSE
        here = self._here()
        needed = here * service / self._workers
        reason = overstay(queue, here, needed, queue in self._counting, self._timeout(queue))
        if reason is not None:
            self._warned.add(queue)
            _log.warning("%s. %s", reason, self._advice())


def _is_counted(message: Message) -> bool:
    """Whether a quorum queue said how often it delivered a message before."""
    try:
        headers = message.headers
    except Exception:
        return False  # headers that cannot be decoded say nothing
    return any(name in headers for name in COUNTS)
