"""What a consumer is doing at one moment, for its owner and for the probes of a supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

#: Seconds without a turn of its loop after which the I/O thread counts as stuck; it takes one each second.
STUCK = 30.0


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of a consumer at one moment; `Consumer.state` returns it.

    Attributes
    ----------
    connected : bool
        Whether there is an open connection to a broker.
    since : datetime or None
        When the connection was opened, or else lost, in UTC. None if there was none yet.
    last_error : str or None
        Why there was no connection, or a queue was not consumed, the last time; it stays when that is over. Never a
        password.
    consuming : mapping of str to bool
        Per queue, whether the broker has confirmed the consumer and neither cancelled it nor closed its channel since.
    buffered : int
        Messages that are here and wait for a handler.
    in_hand : int
        Messages that were handed out and are not settled: those of running handlers, and deferred ones.
    stopping : bool
        Whether it was stopped, or has ended.
    problem : str or None
        Why it cannot go on by itself, so that the process should be restarted: an error that ended it, an I/O thread
        that has been stuck for half a minute, in a key function for example, or a handler that runs on in its thread
        after twice its time limit. None while all is well, and also while
        the broker is away, since the consumer connects again.
    paused : frozenset of str
        Queues that were paused, so that they are not consumed.
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
        """Whether it consumes every queue that is not paused, and was not stopped: what a readiness probe asks."""
        consuming = all(consumed or queue in self.paused for queue, consumed in self.consuming.items())
        return self.connected and not self.stopping and bool(self.consuming) and consuming

    @property
    def alive(self) -> bool:
        """Whether there is no `problem`: what a liveness probe asks."""
        return self.problem is None
