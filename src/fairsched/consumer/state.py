"""The state of a consumer at one moment, for its owner and for health probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

#: Seconds without a turn of its event loop after which the I/O thread counts as stuck; normally it takes one a second.
STUCK = 30.0


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of a consumer at one moment; `Consumer.state` returns it.

    Attributes
    ----------
    connected : bool
        Whether there is an open connection to a broker; with thousands of queues, whether all connections are open.
    since : datetime or None
        When the connection was opened, or, if there is none, lost; in UTC. None before the first connection. With
        several, since when all are open, or one is lost.
    last_error : str or None
        The last reason for which there was no connection, or a queue was not consumed; kept after recovery. Never
        contains a password.
    consuming : mapping of str to bool
        Per queue, whether the broker has confirmed the consumer and neither cancelled it nor closed its channel since.
    buffered : int
        Messages that were received and wait for a handler.
    in_hand : int
        Messages that were handed out and are not yet settled: those of running handlers, and deferred ones.
    stopping : bool
        Whether it was stopped, or has ended.
    problem : str or None
        Why the consumer cannot recover by itself, so that the process should be restarted: an error that ended it, an
        I/O thread that has been stuck for half a minute, for example in a key function, or a handler that still runs
        in its thread after twice its time limit. None otherwise, also while the broker is unavailable, since the
        consumer reconnects.
    paused : frozenset of str
        Queues that are paused, and so not consumed.
    """

    connected: bool = False
    since: datetime | None = None
    last_error: str | None = None
    consuming: Mapping[str, bool] = field(default_factory=dict)
    buffered: int = 0
    in_hand: int = 0
    stopping: bool = False
    problem: str | None = None
    paused: frozenset[str] = frozenset()

    @property
    def ready(self) -> bool:
        """True if it consumes every queue that is not paused, and was not stopped; for a readiness probe."""
        consuming = all(consumed or queue in self.paused for queue, consumed in self.consuming.items())
        return self.connected and not self.stopping and consuming

    @property
    def alive(self) -> bool:
        """True if there is no `problem`; for a liveness probe."""
        return self.problem is None
