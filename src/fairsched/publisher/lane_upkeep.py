"""A publisher's lanes in its I/O thread: returned messages find their lane again, hot tenants get one of their own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairsched.errors import ConnectionFailed, PublishFailed
from fairsched.lanes.own_lanes import NOTICE
from fairsched.publisher.lane_opener import LaneOpener

if TYPE_CHECKING:
    from fairsched.amqp._publishing import PublishWindow
    from fairsched.amqp.polling.ioloop import Loop
    from fairsched.amqp.transport import Transport
    from fairsched.publisher.spread import Spread

_log = logging.getLogger(__name__)

#: Seconds between announcements that a lane is in use, and between attempts to open one.
_PERIOD = 10.0
#: Seconds without a connection after which workers may soon delete the own lanes. They do so ten minutes after the last
#: message, which may have been five minutes old when the connection was lost.
_LONGEST_ABSENCE = 240.0


class LaneUpkeep:
    """Opens the lanes of a publisher when messages were returned, and those of hot tenants.

    Parameters
    ----------
    loop : pika IOLoop
        Of the I/O thread.
    window : PublishWindow
        The unconfirmed messages.
    spreads : sequence of Spread
        The lanes.
    on_change : callable
        Called when messages can be sent again, or have failed.

    Notes
    -----
    For the I/O thread.

    A returned message is held in the window, with all others of its lane that are not confirmed, and nothing is sent.
    A bucket is declared, and when the broker owes no confirm, they are sent again in their place. If it was an own
    lane, which a worker has deleted, they go to the bucket instead: RabbitMQ confirms a message that reaches a queue
    while it is being deleted, so a lane must not be used at once after workers have agreed to delete it.
    """

    def __init__(
        self, loop: Loop, window: PublishWindow, spreads: Sequence[Spread], on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._window = window
        self._spreads = spreads
        self._on_change = on_change
        self._opener = LaneOpener(loop)
        #: Lanes of held messages, which are being opened, and one message of each, encoded.
        self._wanted: dict[str, bytes] = {}
        #: Own lanes of held messages, one message of each, encoded, and the bucket that takes them.
        self._moves: dict[str, tuple[bytes, str]] = {}
        #: Own lanes of hot tenants that could not be opened, which is logged once.
        self._failed: dict[str, tuple[Spread, Any]] = {}
        #: Number of own lanes that are being opened, and what is called when it is 0.
        self._opening = 0
        self._when_open: list[Callable[[], object]] = []
        self._next = time.monotonic() + _PERIOD
        #: When the connection was lost; None: it is there.
        self._lost_at: float | None = None

    def connected(self, transport: Transport) -> None:
        """Take a new channel: all messages are sent again. The connection may be the same."""
        self._wanted.clear()
        self._moves.clear()
        if self._lost_at is not None and time.monotonic() - self._lost_at > _LONGEST_ABSENCE:
            self._leave_own_lanes()
        self._lost_at = None
        self._opener.connected(transport)
        self._try_again()

    def _leave_own_lanes(self) -> None:
        """Have all messages go to buckets until the own lanes are opened as if they were new: workers may delete them.

        RabbitMQ confirms and loses a message that reaches a lane at the moment of its deletion.
        """
        for spread in self._spreads:
            for tenant, lane in spread.placement.active(time.monotonic(), math.inf):
                if spread.placement.closed(lane):
                    self._failed[lane] = spread, tenant
        self._window.move_all(lambda place: place[0].lanes.bucket_of(place[1]))

    def disconnected(self) -> None:
        """Note that the connection is lost."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        self._wanted.clear()
        self._moves.clear()
        self._opener.disconnected()

    # Returned messages -------------------------------------------------------------------------------------------

    def returned(self, encoded: bytes, lane: str) -> bool:
        """Hold messages one of which was returned, until their lane is there; False if they are in none."""
        found = self._window.hold_returned(encoded) if self._spreads else None
        if found is None:
            return False
        spread, tenant = found
        if lane not in spread.lanes.bucket_names:
            self._moves[lane] = encoded, spread.lanes.bucket_of(tenant)
            if spread.placement.closed(lane):
                self._failed[lane] = spread, tenant
        elif lane not in self._wanted:
            self._wanted[lane] = encoded
            _log.debug("lane %r does not exist; declaring it and publishing its messages again", lane)
            self._opener.declare(spread.lanes, lane, partial(self._on_declared, lane))
        return True

    def _on_declared(self, lane: str, error: Exception | None) -> None:
        head = self._wanted.pop(lane, None)
        if head is None or isinstance(error, ConnectionFailed):
            return  # on another channel all messages are sent again, and may be returned again
        if isinstance(error, PublishFailed):
            self._window.fail_held(head, error)
        self.resume()
        self._on_change()

    def resume(self) -> None:
        """Send held messages again, if their lanes exist and the broker owes no confirm."""
        if self._wanted or self._window.in_flight:
            return
        for head, bucket in self._moves.values():
            self._window.move_held(head, bucket)
        self._moves.clear()
        if self._window.resume():
            self._on_change()

    # Lanes of hot tenants ----------------------------------------------------------------------------------------

    def open_fresh(self) -> None:
        """Open lanes of tenants that have become hot."""
        for spread in self._spreads:
            if spread.placement.has_fresh:
                for tenant, lane in spread.placement.take_fresh():
                    self._open_own(spread, tenant, lane, is_first=True)

    def when_open(self, done: Callable[[], object]) -> None:
        """Call a function once the lanes of all hot tenants are open, or cannot be opened for now."""
        self.open_fresh()
        self._when_open.append(done)
        self._call_if_open()

    def release_waiting(self) -> None:
        """Have no caller wait for lanes any more."""
        due, self._when_open = self._when_open, []
        for done in due:
            done()

    def _call_if_open(self) -> None:
        if not self._opening:
            self.release_waiting()

    def _open_own(self, spread: Spread, tenant: Any, lane: str, *, is_first: bool) -> None:
        opened = partial(self._own_opened, spread, tenant, lane)

        def on_done(error: Exception | None, existed: bool) -> None:
            if error is None and existed:
                # Workers may have agreed to delete it before they heard that it is in use.
                self._loop.call_later(2 * NOTICE, lambda: self._opener.check(spread.lanes, lane, opened))
                return
            if is_first and isinstance(error, PublishFailed):
                _log.warning("%s. Until then its messages go to the bucket of their tenant", error)
            opened(error)

        self._opening += 1
        self._opener.open_own(spread.lanes, lane, tenant, on_done)

    def _own_opened(self, spread: Spread, tenant: Any, lane: str, error: Exception | None) -> None:
        self._opening -= 1
        if error is None:
            spread.placement.opened(lane)
        else:
            spread.placement.closed(lane)
            self._failed[lane] = spread, tenant
        self._call_if_open()

    def _try_again(self) -> None:
        """Try to open lanes that could not be opened, for tenants that are still hot."""
        failed, self._failed = self._failed, {}
        for lane, (spread, tenant) in failed.items():
            if spread.placement.closed(lane):
                self._open_own(spread, tenant, lane, is_first=False)

    def look(self) -> None:
        """Have lanes in use announced, and try again to open others, every ten seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _PERIOD
        for spread in self._spreads:
            if used := spread.placement.active(now):
                self._opener.count_entries(spread.lanes, partial(self._announce, spread, used))
        self._try_again()

    def _announce(self, spread: Spread, used: list[tuple[Any, str]], error: Exception | None, entries: int) -> None:
        """Announce lanes in use: as new ones if the registry has lost them.

        Workers enter again what an operator deleted from the registry. If none runs, those that start later would not
        find the lane.
        """
        if error is not None:
            return
        for tenant, lane in used:
            if entries < len(used):
                self._open_own(spread, tenant, lane, is_first=False)
            else:
                self._opener.say_active(spread.lanes, lane, tenant)
