"""Lend the connection to other threads while pika's loop waits for events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched.amqp.polling.pacing import PacedPoll, use_poll

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.amqp.polling.pacing import Pace
    from fairsched.delivery._delivery import LentConnection


class LendingPoll:
    """An epoll for pika's loop that lends a connection while it waits.

    Parameters
    ----------
    lent : LentConnection
        The connection.
    allowed : callable
        Returns whether other threads may send on the connection, and whether they may read from it.
    pace : Pace
        Of the I/O thread; the connection is lent while the thread rests, too.

    Notes
    -----
    Only the I/O thread may use it.
    """

    def __init__(self, lent: LentConnection, allowed: Callable[[], tuple[bool, bool]], pace: Pace) -> None:
        self._lent = lent
        self._allowed = allowed
        self._poll = PacedPoll(pace)
        #: Events to wait for, by descriptor.
        self.events: dict[int, int] = {}

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._poll.fileno()

    def register(self, descriptor: int, events: int) -> None:
        """Wait for events of a descriptor."""
        self._poll.register(descriptor, events)
        self.events[descriptor] = events

    def modify(self, descriptor: int, events: int) -> None:
        """Change the events of a descriptor."""
        if descriptor == self._lent.fd:
            self._lent.wait_for(events)
        else:
            self._poll.modify(descriptor, events)
        self.events[descriptor] = events

    def unregister(self, descriptor: int) -> None:
        """Stop waiting for a descriptor."""
        if descriptor == self._lent.fd:
            self._lent.forget()
        self.events.pop(descriptor, None)
        self._poll.unregister(descriptor)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for events; meanwhile other threads may borrow the connection."""
        usable, readable = self._allowed()
        self._lent.lend(usable, readable)
        try:
            return self._poll.poll(seconds)
        finally:
            self._lent.take_back()

    def close(self) -> None:
        """Close the descriptor."""
        self._lent.forget()
        self._poll.close()


def lend(loop: IOLoop, lent: LentConnection, allowed: Callable[[], tuple[bool, bool]], pace: Pace) -> None:
    """Make a loop that is not running yet lend a connection while it waits, if it uses epoll."""
    poller: Any = getattr(loop, "_poller", None)
    # A signal handler or destructor may interrupt the thread here, settle a message, and wake the loop again.
    if hasattr(poller, "_waking_mutex"):
        poller._waking_mutex = threading.RLock()
    use_poll(loop, lambda: LendingPoll(lent, allowed, pace))


def connect(loop: IOLoop, lent: LentConnection, transport: Any) -> None:
    """Lend a connection that was just opened, if its loop lends."""
    poll: Any = getattr(getattr(loop, "_poller", None), "_poll", None)
    descriptor = transport.descriptor
    if isinstance(poll, LendingPoll) and descriptor in poll.events:
        lent.connect(transport, descriptor, poll.fileno(), poll.events[descriptor], transport.longest)
