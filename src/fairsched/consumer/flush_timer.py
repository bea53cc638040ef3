"""The timer of acknowledgements: what `AckPolicy` has not sent for another reason is sent by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.amqp.polling.pacing import Pace
    from fairsched.delivery._ackpolicy import AckPolicy
    from fairsched.delivery._delivery import Settlements


class FlushTimer:
    """Sends what is settled in time. The timer runs only while messages are out, so an idle consumer sleeps.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers they are.
    policy : AckPolicy
        Says how often to look.
    settlements : Settlements
        Count what is here, and the windows.
    flush : callable
        Sends what is settled, and says whether anything was.
    pace : Pace
        Of the I/O thread, which the timer does not wake from a rest.

    Notes
    -----
    For the I/O thread alone. O(channels with messages here) a look.
    """

    def __init__(
        self,
        loop: IOLoop,
        policy: AckPolicy,
        settlements: Settlements,
        flush: Callable[[], bool],
        pace: Pace,
    ) -> None:
        self._loop = loop
        self._policy = policy
        self._settlements = settlements
        self._flush = flush
        self._pace = pace
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
            self._timer = self._later()

    def _later(self) -> object:
        return self._loop.call_later(max(self._policy.period, self._pace.period), self._tick)

    def _tick(self) -> None:
        # While long handlers run nothing is settled, and looking two hundred times a second would be for nothing.
        self._policy.looked(self._flush())
        here = self._settlements.count_here()
        self._policy.count(here, self._settlements.window)
        self._timer = self._later() if here else None
