"""The timer of acknowledgements: what `AckPolicy` has not sent for another reason is sent by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel
    from fairsched.delivery._ackpolicy import AckPolicy


class FlushTimer:
    """Sends what is settled in time. The timer runs only while messages are out, so an idle consumer sleeps.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers they are.
    policy : AckPolicy
        Says how often to look.
    channels : callable
        Iterates over the current channels.
    flush : callable
        Sends what is settled, and says whether anything was.

    Notes
    -----
    For the I/O thread alone.
    """

    def __init__(
        self,
        loop: IOLoop,
        policy: AckPolicy,
        channels: Callable[[], Iterator[ConsumerChannel]],
        flush: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._policy = policy
        self._channels = channels
        self._flush = flush
        self._timer: object = None

    @property
    def quick(self) -> bool:
        """Whether it runs, and looks as often as ever."""
        return self._timer is not None and not self._policy.resting

    def wake(self) -> None:
        """Look in time, because deliveries came or something was settled."""
        if self._timer is not None and self._policy.resting:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self._policy.wake()
        if self._timer is None:
            self._timer = self._loop.call_later(self._policy.period, self._tick)

    def _tick(self) -> None:
        # While long handlers run nothing is settled, and looking two hundred times a second would be for nothing.
        self._policy.looked(self._flush())
        alive = [one for one in self._channels() if one.alive]
        here = sum(one.unsettled for one in alive)
        self._policy.count(here, sum(one.window for one in alive))
        self._timer = self._loop.call_later(self._policy.period, self._tick) if here else None
