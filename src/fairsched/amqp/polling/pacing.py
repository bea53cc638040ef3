"""Have an I/O thread read many messages at a time while a connection is busy."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from pika.adapters import select_connection

__all__ = ["Pace", "PacedPoll", "use_poll"]

#: Messages under way from which an I/O thread rests: fewer may be all that there are, and nothing would make up for it.
BUSY = 256
#: Messages since the last poll from which an I/O thread goes on at once: it has enough to do each time.
MANY = 128


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

    Notes
    -----
    To wake a thread costs as much as to handle a dozen messages, and a broker may send as few at a time. A thread that
    rests leaves them in the socket, together with what comes meanwhile, and so does not delay a message by more than
    `rest`. It rests only if many messages are under way, and few were handled since its last poll.

    `seconds` is for the I/O thread.
    """

    def __init__(self, progress: Callable[[], tuple[int, int]]) -> None:
        self.rest = 0.0
        self._progress = progress
        self._handled = 0

    def seconds(self) -> float:
        """Return the seconds to rest now."""
        if not self.rest:
            return 0.0
        before = self._handled
        self._handled, under_way = self._progress()
        return self.rest if under_way >= BUSY and self._handled - before < MANY else 0.0


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
