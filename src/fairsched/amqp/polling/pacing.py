"""Have an I/O thread read many messages at a time while a connection is busy."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from typing import Any

from pika.adapters import select_connection

__all__ = ["Pace", "PacedPoll", "use_poll"]

#: Messages under way from which an I/O thread rests: fewer may be all that there are, and nothing would make up for it.
BUSY = 256
#: A rest lasts for this part of the time that the messages under way take.
PART = 8
#: Shortest time between two polls, in seconds.
SHORT = 0.005
#: Seconds for which messages are counted to know how long they take.
COUNTED = 0.1


class Pace:
    """The rests of an I/O thread before it polls again.

    Parameters
    ----------
    progress : callable
        Returns how many messages were handled so far, and how many are under way.

    Attributes
    ----------
    rest : float
        Longest rest in seconds, which any thread may set; 0, the default: the thread never rests.
    period : float
        Seconds from one poll to the next while many messages are under way, otherwise 0. Any thread may read it.

    Notes
    -----
    To wake a thread costs as much as to handle dozens of messages, and a broker may send as few at a time. A thread
    that rests leaves them in the socket, together with what comes meanwhile. It rests only if many messages are under
    way, and no longer than an eighth of the time that these need at the present rate: so each poll finds an eighth of
    them, and the broker always has most of the window to work on. The time in which the thread handles what it found is
    part of the period.

    `seconds` is for the I/O thread.
    """

    def __init__(self, progress: Callable[[], tuple[int, int]]) -> None:
        self.rest = self.period = 0.0
        self._progress = progress
        #: When counting began, what was handled by then, and the messages a second that were counted before.
        self._since, self._before, self._rate = -math.inf, 0, 0.0
        #: When the last rest ended.
        self._polled = -math.inf

    def seconds(self) -> float:
        """Return the seconds to rest now."""
        if not self.rest:
            return 0.0
        handled, under_way = self._progress()
        now = time.monotonic()
        if now - self._since > COUNTED:
            self._rate = (handled - self._before) / (now - self._since)
            self._since, self._before = now, handled
        if under_way < BUSY:
            self.period = 0.0
            return 0.0
        self.period = min(self.rest, max(SHORT, under_way / (PART * self._rate)) if self._rate else SHORT)
        rest = min(max(0.0, self._polled + self.period - now), self.period)
        self._polled = now + rest
        return rest


class PacedPoll:
    """An epoll for pika's loop that keeps to a pace.

    Parameters
    ----------
    pace : Pace
        Says how long to rest.

    Notes
    -----
    Only the I/O thread may use it.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._poll = select.epoll()
        self.fileno, self.close = self._poll.fileno, self._poll.close
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Rest, then wait for events."""
        rest = min(self._pace.seconds(), seconds)
        if rest > 0:
            time.sleep(rest)
        return self._poll.poll(seconds - rest)


def use_poll(loop: select_connection.IOLoop, create: Callable[[], Any]) -> None:
    """Make a loop that is not running yet use another poll object, if it uses epoll."""
    poller: Any = getattr(loop, "_poller", None)
    kind = getattr(select_connection, "EPollPoller", None)
    if kind is not None and type(poller) is kind and callable(getattr(poller, "_create_poller", None)):
        poller._create_poller = create
