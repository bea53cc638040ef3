"""The connections of a consumer: one, and more when its queues need more channels than one connection may have."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fairsched.consumer.declarations import Declarations
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.amqp.connection import Connection
    from fairsched.amqp.transport import Transport

_log = logging.getLogger(__name__)

#: Channels beside those of queues: one that declares queues, and one that counts consumers.
_DECLARING, _COUNTING = 1, 1
#: After so many seconds an additional connection without queues is closed, if it has none then.
IDLE = 5.0


class QueueConnection:
    """One connection, and the queues that are consumed on it.

    Parameters
    ----------
    loop : pika IOLoop
        Of the I/O thread.
    counts : bool
        Whether consumers are counted on this connection.

    Attributes
    ----------
    connection : Connection
        Opened again when it is lost. Set once, right after this was made.
    declarations : Declarations
        Declares queues on it.
    queues : dict
        Names of the queues, in the order in which they were placed.
    is_idling : bool
        Whether a timer will look if it still has no queue.
    """

    connection: Connection

    def __init__(self, loop: IOLoop, counts: bool) -> None:
        self.declarations = Declarations(loop)
        self.queues: dict[str, None] = {}
        self.is_idling = False
        self._own = _DECLARING + (_COUNTING if counts else 0)
        #: Channels that the broker allows; None: not known yet.
        self._allowed: int | None = None

    @property
    def transport(self) -> Transport | None:
        """The open connection; None while there is none."""
        return self.connection.transport

    @property
    def room(self) -> int:
        """Number of further queues for which there are channels; negative: so many have none."""
        return 1 if self._allowed is None else self._allowed - self._own - len(self.queues)

    def allow(self, channels: int) -> None:
        """Take note of how many channels the broker allows; raise ConfigurationError if no queue can have one."""
        if channels <= self._own:
            raise ConfigurationError(
                f"a queue needs {self._own + 1} channels, with those that declare queues and count consumers, but "
                f"{self.connection.address} allows {channels} on one connection (channel_max); raise the limit"
            )
        self._allowed = channels

    def allow_as(self, other: QueueConnection) -> None:
        """Expect what the broker allows another connection."""
        self._allowed = other._allowed


class Connections:
    """Divides queues among connections, and opens another one when no channel is left.

    Parameters
    ----------
    loop : pika IOLoop
        Runs all of them.
    first : Connection
        Stays, whether it has queues or not.
    counts : bool
        Whether consumers are counted on the first connection.
    another : callable
        ``another(one)`` returns one more connection, which is not open yet.

    Notes
    -----
    A queue stays on its connection until it is removed, or until the broker allows fewer channels after a reconnect.
    Each connection is lost and opened again by itself; the queues of the others are consumed meanwhile.

    `is_open`, `since` and `last_error` are safe from any thread, the rest is for the I/O thread. O(connections), and
    `divide` O(queues that move).
    """

    def __init__(
        self, loop: IOLoop, first: Connection, counts: bool, another: Callable[[QueueConnection], Connection]
    ) -> None:
        self._loop = loop
        self._another = another
        self.first = QueueConnection(loop, counts)
        self.first.connection = first
        #: Replaced, never changed: other threads iterate over it.
        self._all: tuple[QueueConnection, ...] = (self.first,)
        #: Those that did not end yet; some may be closing.
        self._going = {self.first}
        self._of: dict[str, QueueConnection] = {}

    def __iter__(self) -> Iterator[QueueConnection]:
        return iter(self._all)

    # From any thread ---------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether every connection is open."""
        return all(one.connection.is_open for one in self._all)

    @property
    def since(self) -> float | None:
        """The time since when all are open, or one is lost (`time.time`); None: not all were open yet."""
        found = [one.connection for one in self._all]
        lost = [one.since for one in found if not one.is_open]
        times = lost or [one.since for one in found]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return min(known) if lost else max(known)

    @property
    def last_error(self) -> str | None:
        """The last error of a connection that is not open, or else of any; without a password."""
        found = sorted((one.connection for one in self._all), key=lambda one: one.is_open)
        return next((one.last_error for one in found if one.last_error is not None), None)

    # Queues ------------------------------------------------------------------------------------------------------

    def of(self, queue: str) -> QueueConnection:
        """Return the connection on which a queue is consumed; the first for one that has none."""
        return self._of.get(queue, self.first)

    def place(self, queues: Iterable[str]) -> None:
        """Choose a connection for each queue that has none: the first with room, or a new one, which is opened."""
        for queue in queues:
            if queue not in self._of:
                one = next((one for one in self._all if one.room > 0), None) or self._open_another()
                self._of[queue] = one
                one.queues[queue] = None

    def _open_another(self) -> QueueConnection:
        one = QueueConnection(self._loop, counts=False)
        one.connection = self._another(one)
        one.allow_as(self.first)
        self._all += (one,)
        self._going.add(one)
        _log.info("opening connection %d: the others have no channel left for more queues", len(self._all))
        one.connection.follow(self.first.connection)
        one.connection.connect()
        return one

    def release(self, queue: str) -> None:
        """Forget a queue, so that its channel is free for another."""
        one = self._of.pop(queue, None)
        if one is not None:
            del one.queues[queue]
            if not (one.queues or one.is_idling or one is self.first):
                one.is_idling = True
                self._loop.call_later(IDLE, lambda: self._close_idle(one))

    def _close_idle(self, one: QueueConnection) -> None:
        one.is_idling = False
        if not one.queues and one in self._all:
            _log.info("closing a connection on which no queue is consumed any more; %d are left", len(self._all) - 1)
            self.discard(one)

    def divide(self, one: QueueConnection, channels: int) -> dict[QueueConnection, list[str]]:
        """Move the queues for which a connection that was just opened has no channel.

        Parameters
        ----------
        one : QueueConnection
            The connection.
        channels : int
            The number of channels that its broker allows.

        Returns
        -------
        dict
            The queues that were moved, by the connection that they are on now.

        Raises
        ------
        ConfigurationError
            If the broker allows no channel for a queue.
        """
        one.allow(channels)
        excess = list(one.queues)[one.room :] if one.room < 0 else []
        for queue in excess:
            del one.queues[queue], self._of[queue]
        self.place(excess)
        moved: dict[QueueConnection, list[str]] = {}
        for queue in excess:
            moved.setdefault(self._of[queue], []).append(queue)
        return moved

    # All of them -------------------------------------------------------------------------------------------------

    @property
    def transports(self) -> list[Transport]:
        """The open connections."""
        return [transport for one in self._all if (transport := one.transport) is not None]

    def holding(self) -> contextlib.AbstractContextManager[object]:
        """Collect what is sent on each connection, and send it in one write."""
        transports = self.transports
        if len(transports) == 1:  # a stack costs ten times as much as the only one
            return transports[0]
        stack = contextlib.ExitStack()
        for transport in transports:
            stack.enter_context(transport)
        return stack

    def give_up(self) -> None:
        """Make no further attempt to connect; open connections stay."""
        for one in self._all:
            one.connection.give_up()

    def discard(self, one: QueueConnection) -> None:
        """Close a connection, and place no queue on it any more."""
        self._all = tuple(other for other in self._all if other is not one)
        one.connection.close()

    def close(self) -> None:
        """Close every connection."""
        for one in self._all:
            one.connection.close()

    def closed(self, one: QueueConnection) -> bool:
        """Note that a connection ended since it was closed; return whether all have."""
        self._going.discard(one)
        return not self._going

    def drop(self) -> None:
        """Close every socket without a handshake, after the loop has ended."""
        for one in self._going:
            one.connection.drop()
