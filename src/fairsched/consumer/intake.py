"""From deliveries to messages in the lanes, one put per batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fairsched.consumer.lanes import Refused
from fairsched.consumer.message import Message

if TYPE_CHECKING:
    from pika.spec import Basic, BasicProperties

    from fairsched.consumer.cost import ConstantCost
    from fairsched.consumer.counters import Counters
    from fairsched.consumer.keys import Key
    from fairsched.consumer.lanes import Lanes
    from fairsched.consumer.message import Origin

_log = logging.getLogger(__name__)


class Intake:
    """Collects the deliveries of one turn of the I/O loop and queues them together.

    Parameters
    ----------
    lanes : Lanes
        Where they go.
    counters : Counters
        Counts what was received.
    key : callable or None
        Names a message's tenant.
    cost : ConstantCost
        Prices a message.
    defer : callable
        ``defer(function)`` has the I/O loop call it at the end of its turn.
    note : callable
        Told how many deliveries are about to be queued.

    Notes
    -----
    For the I/O thread alone. One put per turn instead of one per message: a put that finds a worker waiting hands
    it the GIL, and a worker that is handed one message at a time would serve them in the order of arrival.
    """

    def __init__(
        self,
        lanes: Lanes,
        counters: Counters,
        *,
        key: Key | None,
        cost: ConstantCost,
        defer: Callable[[Callable[[], None]], None],
        note: Callable[[int], None],
    ) -> None:
        self._lanes = lanes
        self._counters = counters
        self._key = key
        self._cost = cost
        self._defer = defer
        self._note = note
        self._plain = key is None and not cost.varies
        self._messages: list[Message] = []
        self._slots: list[Hashable] = []
        self._now = 0.0

    def add(
        self,
        origin: Origin,
        tag: int,
        redelivered: int,
        delivery: Basic.Deliver | bytes,
        properties: BasicProperties | bytes,
        body: bytes,
    ) -> None:
        """Take one delivery."""
        if not self._messages:
            # One reading of the clock for all that one turn of the loop brings.
            self._now = time.monotonic()
            self._defer(self.drain)
        message = Message(body, tag, redelivered != 0, delivery, properties, origin, self._now)
        if not self._plain:
            if self._key is not None:
                message.slot = self._key(message)
            message.cost = self._cost.estimate(message)
        self._messages.append(message)
        self._slots.append(message.slot)

    def drain(self) -> None:
        """Queue what was taken since the last call."""
        messages, slots = self._messages, self._slots
        if not messages:
            return
        self._messages, self._slots = [], []
        self._counters.add("received", len(messages))
        self._note(len(messages))
        costs = [message.cost for message in messages] if self._cost.varies else None
        try:
            self._lanes.put_many(slots, messages, costs)
        except Refused as refused:
            _log.debug("%d deliveries came after the end and return to the broker", len(refused.messages))
            for message in refused.messages:
                message.nack()
