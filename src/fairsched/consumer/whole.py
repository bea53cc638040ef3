"""Leaving queues whole: the channel of a queue with a single active consumer is closed, its consumer never cancelled.

When the active consumer of such a queue is cancelled, the broker lets the next one begin, although handlers may still
have messages of it; a classic queue of RabbitMQ 3.10 even crashes if it has messages then. When the channel is closed,
the broker takes back what is unsettled, in order, before the next consumer begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel

_log = logging.getLogger(__name__)


class WholeLeaving:
    """Leaves queues that have a single active consumer, each once the messages in hand are settled.

    Parameters
    ----------
    loop : pika IOLoop
        Of the I/O thread.
    put_back : callable
        ``put_back(queues)``: leave to the broker what waits here of queues.

    Notes
    -----
    (1) Nothing more of the queue is handed out, and what is buffered is left to the broker; (2) messages in hand are
    settled, however long that takes: if the channel were closed before, another consumer would get them while they are
    handled; (3) the broker answers, so it has heard of the settlements; (4) the channel is closed.

    At the end of a shutdown timeout the connection is closed, whichever step this is at. For the I/O thread alone.
    """

    def __init__(self, loop: IOLoop, put_back: Callable[[Collection[str]], None]) -> None:
        self._loop = loop
        self._put_back = put_back
        self._leaving: set[ConsumerChannel] = set()

    def begin(self, found: ConsumerChannel) -> None:
        """Leave a queue, unless that is under way."""
        self.begin_all([found])

    def begin_all(self, channels: Iterable[ConsumerChannel]) -> None:
        """Leave queues. O(queues and messages that wait)."""
        found = [one for one in channels if one.leave_whole()]
        if found:
            self._leaving.update(found)
            self._put_back({one.queue for one in found})
            self.look()

    def look(self) -> None:
        """Close the channels of which nothing is in hand any more; to be called when something was sent."""
        for found in [one for one in self._leaving if not (one.alive and one.busy)]:
            self._leaving.discard(found)
            if found.alive:
                self._close(found, found.settling_time())

    def _close(self, found: ConsumerChannel, seconds: float) -> None:
        """Close a channel when the broker has answered, and unless `seconds` is 0 once more after that time."""

        def answered() -> None:
            if seconds:
                self._loop.call_later(seconds, lambda: self._close(found, 0.0))
            else:
                found.close()

        if not found.await_settlements(answered):
            found.close()
