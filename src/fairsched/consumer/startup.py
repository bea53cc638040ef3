"""The start of a consumer: it begins when the first windows of all its queues are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.consumer.channel import ConsumerChannel

#: How often, in seconds, and how many times at most a start looks whether first deliveries still come in.
_LOOK, _LOOKS = 0.01, 20


class Startup:
    """Waits, once, until every queue is consumed and its first deliveries have come.

    Parameters
    ----------
    loop : pika IOLoop
        Whose timers it uses.
    channels : callable
        Iterates over the current channels.
    expected : callable
        Returns whether a queue was never consumed yet.
    ready : callable
        Called when consuming has begun.

    Notes
    -----
    Queues are subscribed one after the other. A handler that starts with the first would serve a whole window of it
    before the others have a message here, and every start would favour the queue named first. A connection that
    is lost meanwhile may not last for a whole window next time either: then it begins with whatever comes.

    For the I/O thread alone.
    """

    def __init__(
        self,
        loop: IOLoop,
        channels: Callable[[], Iterator[ConsumerChannel]],
        expected: Callable[[], bool],
        ready: Callable[[], None],
    ) -> None:
        #: Whether consuming has begun.
        self.done = False
        self._loop = loop
        self._channels = channels
        self._expected = expected
        self._ready = ready
        self._hurried = False
        #: Whether every queue was consumed, and the first deliveries are awaited.
        self._looking = False

    def hurry(self) -> None:
        """Begin as soon as any queue is consumed."""
        self._hurried = True

    def subscribed(self) -> None:
        """Note that one more queue is consumed, or paused."""
        if self.done:
            return
        if self._hurried:
            self._begin()
        elif not (self._looking or self._expected()):
            self._looking = True
            self._loop.call_later(_LOOK, lambda: self._look(-1, _LOOKS))

    def _begin(self) -> None:
        self.done = True
        self._ready()

    def _look(self, before: int, looks: int) -> None:
        here = sum(found.ledger.outstanding for found in self._channels())
        full = all(found.full for found in self._channels())
        if self.done or self._hurried:
            return
        if full or here == before or looks == 0:
            self._begin()
        else:
            self._loop.call_later(_LOOK, lambda: self._look(here, looks - 1))
