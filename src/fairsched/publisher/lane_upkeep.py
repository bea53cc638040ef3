"""A publisher's lanes in its I/O thread: returned messages find their lane again, hot tenants get one of their own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairsched.errors import ConfigurationError, ConnectionFailed, PublishFailed
from fairsched.lanes.own_lanes import NOTICE
from fairsched.publisher.lane_opener import LaneOpener
from fairsched.publisher.overdue import OverdueMessages

if TYPE_CHECKING:
    from fairsched.amqp._publishing import PublishWindow
    from fairsched.amqp.polling.ioloop import Loop
    from fairsched.amqp.transport import Transport
    from fairsched.config.lanes import Lanes
    from fairsched.publisher.spread import Spread

_log = logging.getLogger(__name__)

#: Seconds between announcements that a lane is in use, and between attempts to open one.
_PERIOD = 10.0
#: Seconds without an answer to a message after which workers may soon delete own lanes. They do so ten minutes after
#: the last message, which may have been five minutes old when the one without an answer was published.
_LONGEST_WAIT = 240.0


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
    When the broker owes no confirm, the bucket is declared, and they are sent again in their place. Declared sooner, it
    would take those that the broker has not looked at, before those that were returned. Another program may declare it
    at any time: so the buckets of ordered lanes are declared before the first message is sent.

    If it was an own lane, which a worker has deleted, they go to the bucket instead: RabbitMQ confirms a message that
    reaches a queue while it is being deleted, so a lane must not be used just after workers have agreed to delete it.
    """

    def __init__(
        self, loop: Loop, window: PublishWindow, spreads: Sequence[Spread], on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._window = window
        self._spreads = spreads
        self._on_change = on_change
        self._opener = LaneOpener(loop)
        #: Buckets of held messages, to be opened, with their lanes and one message of each, encoded.
        self._wanted: dict[str, tuple[Lanes, bytes]] = {}
        #: Those of them that are being declared.
        self._declaring: set[str] = set()
        #: Own lanes of held messages, one message of each, encoded, and the bucket that takes them.
        self._moves: dict[str, tuple[bytes, str]] = {}
        #: Own lanes of hot tenants that could not be opened, which is logged once.
        self._failed: dict[str, tuple[Spread, Any]] = {}
        #: Number of own lanes that are being opened, and what is called when it is 0.
        self._opening = 0
        self._when_open: list[Callable[[], object]] = []
        self._next = time.monotonic() + _PERIOD
        self._overdue = OverdueMessages()

    def compare_layouts(self, done: Callable[[ConfigurationError | None], None]) -> None:
        """Compare the lanes with those of other programs.

        Parameters
        ----------
        done : callable
            Called once, with the error if they differ, or None; and never if the connection is lost before.
        """
        left = [spread.lanes for spread in self._spreads]

        def compared(error: Exception | None) -> None:
            if isinstance(error, ConnectionFailed):
                return
            if isinstance(error, ConfigurationError):
                done(error)
            elif left:  # without the permission to declare the exchange, nothing is compared
                self._opener.compare_layout(left.pop(), compared)
            else:
                done(None)

        compared(None)

    def declare_ordered(self, done: Callable[[Exception | None], None]) -> None:
        """Declare the buckets of ordered lanes.

        Parameters
        ----------
        done : callable
            Called once, with the last refusal, or None; never if the connection is lost before.
        """
        left = [(one.lanes, name) for one in self._spreads if one.lanes.ordered for name in one.lanes.bucket_names]
        refused: Exception | None = None

        def declared(error: Exception | None) -> None:
            nonlocal refused
            if isinstance(error, ConnectionFailed):
                return
            refused = error or refused
            if left:
                self._opener.declare(*left.pop(), declared)
            else:
                done(refused)

        declared(None)

    def connected(self, transport: Transport) -> None:
        """Take a new channel: all messages are sent again. The connection may be the same."""
        self._forget_held()
        if self._are_doubtful():
            self._leave_own_lanes()
        self._opener.connected(transport)
        self._try_again()

    def _leave_own_lanes(self) -> None:
        """Have all messages go to buckets until the own lanes are opened as if they were new: workers may delete them.

        RabbitMQ confirms and loses a message that reaches a lane at the moment of its deletion.
        """
        for spread in self._spreads:
            for tenant, lane in self._open_lanes(spread):
                if spread.placement.closed(lane):
                    self._failed[lane] = spread, tenant
        self._window.move_all(lambda place: place[0].lanes.bucket_of(place[1]))
        self._overdue.forgive(self._window.published)

    def _open_lanes(self, spread: Spread) -> list[tuple[Any, str]]:
        """Return the tenants that have lanes of their own which messages may go to, with these lanes."""
        found: list[tuple[Any, str]] = spread.placement.active(time.monotonic(), math.inf)
        return found

    def _are_doubtful(self) -> bool:
        """Whether own lanes are open, and a message has waited for so long that workers may delete them."""
        window = self._window
        unconfirmed = window.unconfirmed  # read first: a message that is published meanwhile counts as settled
        published = window.published
        overdue = self._overdue.look(published, published - unconfirmed, _LONGEST_WAIT)
        return overdue and any(map(self._open_lanes, self._spreads))

    def may_go_on(self) -> bool:
        """Whether messages may be sent, and confirms believed; otherwise another connection is needed.

        Without a message on its way, the own lanes are left in place. Messages on their way may have reached a lane
        while it was deleted, so the broker's confirms of them say nothing: they are published again, to buckets.
        """
        if not self._spreads or not self._overdue.is_due() or not self._are_doubtful():
            return True
        if self._window.in_flight:
            return False
        self._leave_own_lanes()
        return True

    def disconnected(self) -> None:
        """Note that the connection is lost."""
        self._forget_held()
        self._opener.disconnected()

    def _forget_held(self) -> None:
        """Forget which lanes messages are held for: all are sent again."""
        self._wanted.clear()
        self._declaring.clear()
        self._moves.clear()

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
            self._wanted[lane] = spread.lanes, encoded
            _log.debug("lane %r does not exist; declaring it and publishing its messages again", lane)
        return True

    def _declare_wanted(self) -> None:
        for lane, (lanes, _) in list(self._wanted.items()):
            if lane not in self._declaring:
                self._declaring.add(lane)
                self._opener.declare(lanes, lane, partial(self._on_declared, lane))

    def _on_declared(self, lane: str, error: Exception | None) -> None:
        if lane not in self._declaring or isinstance(error, ConnectionFailed):
            return  # on another channel all messages are sent again, and may be returned again
        self._declaring.discard(lane)
        _, head = self._wanted.pop(lane)
        if isinstance(error, PublishFailed):
            self._window.fail_held(head, error)
        self.resume()
        self._on_change()

    def resume(self) -> None:
        """Declare the lanes of held messages, and send these again, once the broker owes no confirm."""
        if self._window.in_flight:
            return
        if self._wanted:
            self._declare_wanted()
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
