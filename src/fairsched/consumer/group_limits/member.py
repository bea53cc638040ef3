"""A process of a group with limits: what it holds, and what it keeps while it is the keeper. Without a connection."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairsched.consumer.group_limits.holder import SILENT, Holder
from fairsched.consumer.group_limits.keeper import BEAT, Keeper
from fairsched.consumer.group_limits.limit_message import Epoch, Message
from fairsched.consumer.log_limit import LogLimit
from fairsched.consumer.sharing.share_message import slot_of
from fairsched.errors import LONGEST_THROTTLE
from fairsched.scheduling._permits import Permits

if TYPE_CHECKING:
    from fairsched.consumer.worker_queues import WorkerQueues
    from fairsched.scheduling._fairqueue import FairQueue

__all__ = ["Member"]

_log = logging.getLogger(__name__)

#: Routing keys: what members say to all, what they say to the keeper, and what the keeper says to all;
#: and what members say to one another.
BEATS, ASKS, NEWS, GOT = "beat", "ask", "news", "got"


#: Seconds between two looks whether something is still needed here that others wait for.
LOOK = 0.05
#: Seconds between two messages that ask the keeper, and between its answers, at least: while there is much to do, one
#: message is for many slots.
ASK_PAUSE, ANSWER_PAUSE = 0.03, 0.02
#: Seconds between two looks at slots that have permits and may need more: one that does at two of them asks.
LOOK_AT_TIGHT = 0.1
#: Longest time for which a message waits for a keeper, in seconds; older ones are dropped.
OLDEST = 2.0
#: A member whose own beats have not come back for so many seconds, and so many looks, has lost its connection. The
#: looks count because a process that stood still hears late.
UNHEARD_BY_ITSELF, LOOKS = 2.0, 10


class Member:
    """Takes what a process hears, and says what follows.

    Parameters
    ----------
    group : str
        Name of the group in the log.
    holder : Holder
        What this process has.
    fair : FairQueue or WorkerQueues
        What is throttled.
    permits : Permits
        The permits of its slots.
    say : callable
        Publishes a message to the members or the keeper, by routing key.
    send : callable
        Publishes a message to one queue; `undeliverable` is called if it does not exist.

    Notes
    -----
    For one thread. Times are seconds on a clock that stands still while the process is not connected.
    """

    def __init__(
        self,
        group: str,
        holder: Holder,
        fair: FairQueue | WorkerQueues,
        permits: Permits,
        say: Callable[[str, Message], object],
        send: Callable[[str, Message], object],
    ) -> None:
        self.holder = holder
        #: What this process keeps for the group; None: it is not the keeper.
        self.keeper: Keeper | None = None
        self._group, self._fair, self._permits, self._say, self._send = group, fair, permits, say, send
        self._beat_at = self._sweep_at = self._ask_at = self._tight_at = self._answer_at = 0.0
        self._stepped = 0.0
        #: Whether slots are short that were not looked at yet.
        self._short = False
        self._log = LogLimit()
        self._serial = 0
        #: Looks since an own beat came back.
        self._looks = 0
        #: Messages that will come by the own queue were sent at that time or later; and by that of the keeper.
        self._reached = self._keeper_reached = 0.0

    def joined(self, queue: str, now: float) -> None:
        """Note that this process has a connection, and a queue by which it is reached."""
        self.holder.joined(queue, now)
        self._beat_at = self._sweep_at = self._stepped = self._reached = now
        self._serial = self._looks = 0

    def lost(self) -> None:
        """Note that the connection is lost, or will be closed."""
        self.keeper = None
        self.holder.lost()

    def is_cut_off(self, now: float) -> bool:
        """Whether nothing that this process says comes back, although it listens."""
        return now - self._reached >= UNHEARD_BY_ITSELF and self._looks >= LOOKS

    def leave_alive(self) -> None:
        """Begin no more messages, and say that those in hand go on although the connection will be closed.

        If messages reach the broker from here, but not the other way, it would look as though this was killed.
        """
        self.lost()
        self._tell_keeper(BEATS, self.holder.stay())

    def wait(self, now: float) -> float:
        """Return the seconds until `step` has something to do although nothing is heard."""
        due = min(self._beat_at, self._sweep_at, self._tight_at) - now
        if self.holder.contended():
            due = min(due, LOOK)
        if self._short or self.holder.has_to_ask():
            due = min(due, self._ask_at - now)
        if self.keeper is not None:
            due = min(due, self._answer_at - now if self.keeper.has_answers() else BEAT / 2)
        return max(0.0, due)

    def step(self, short: bool, now: float) -> None:
        """Do what is due; `short`: slots may be short of permits."""
        self._short |= short
        tight = now >= self._tight_at
        if tight:
            self._tight_at = now + LOOK_AT_TIGHT
            self._looks += 1
        if tight or (self._short and now >= self._ask_at):  # each call of `short` lets the fair queue wake this again
            self._short = False
            self.holder.short(self._permits.short(tight), now)
        self.holder.give_way(now)
        if now >= self._sweep_at:
            self.holder.sweep(now)
            self._sweep_at = now + BEAT
        if now >= self._beat_at:
            self._beat(now)
            self._announce(now)
            for queue in self.holder.suspects(now):
                self._send(queue, Message("probe", self.holder.identity))
        got = self.holder.got()
        if got is not None:
            self._say(GOT, got)
        asked = self.holder.asked() if now >= self._ask_at else None
        if asked is not None:
            self._tell_keeper(ASKS, asked)
            self._ask_at = now + ASK_PAUSE
        self._keep(now)
        self._stepped = now

    def _beat(self, now: float) -> None:
        message = self.holder.beat(now)
        message.clock = now
        self._tell_keeper(BEATS, message)
        self._beat_at = now + BEAT

    def _tell_keeper(self, key: str, message: Message) -> None:
        """Publish a message that the keeper must not miss."""
        self._serial += 1
        message.serial = self._serial
        self._say(key, message)

    # What is heard -----------------------------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """Take a message that came by the own queue."""
        self.holder.hear_killed(message.killed, now)
        if message.kind == "throttle":
            self._throttled(message)
        elif message.kind == "got" and message.sender == self.holder.identity:
            if message.session == self.holder.session:
                self.holder.came_back(message.serial, now)
        elif message.kind not in ("keep", "probe"):
            if self._own_clock(message):
                self._reached, self._looks = max(self._reached, self._own_clock(message)), 0
            self.holder.hear_peer(message, self._reached - (SILENT if message.kind == "stay" else 0.0))
        elif message.kind == "keep" and self.holder.hear_keeper(message, now):
            self._tell_keeper(ASKS, self.holder.report(now))
            self.holder.ask_again()

    def _own_clock(self, message: Message) -> float:
        """Return when this process sent a message; 0 if it did not, or not by this connection."""
        own = message.sender == self.holder.identity and message.session == self.holder.session
        return message.clock if own else 0.0

    def throttle(self, name: str, seconds: float) -> None:
        """Tell the others that a slot takes no turns for so long."""
        message = Message("throttle", self.holder.identity)
        message.buckets[name] = seconds
        self._say(NEWS, message)

    def _throttled(self, message: Message) -> None:
        """Throttle slots, also those that have no messages here yet; names of other kinds of slots say nothing."""
        if message.sender == self.holder.identity:
            return
        for name, seconds in message.buckets.items():
            with contextlib.suppress(ValueError, KeyError):
                self._fair.throttle(slot_of(name), min(seconds, LONGEST_THROTTLE))

    def hear_as_keeper(self, message: Message, now: float) -> None:
        """Take a message that came by the keeper's queue, which the broker delivers to one process.

        This process hears its own messages, too, in their order among all others. So it knows when a message was sent
        at the earliest, however late it is read: the silence of a member that is gone is not taken for a shorter one.
        """
        if self.keeper is None:
            self._keeper_reached = self._stepped - OLDEST
            self._begin(max(self.holder.epoch, message.epoch).number, now)
        self._keeper_reached = max(self._keeper_reached, self._own_clock(message))
        if self.keeper is not None:
            self.keeper.hear(message, self._keeper_reached, now)

    def undeliverable(self, queue: str, now: float) -> None:
        """Note that a queue does not exist to which a message was sent."""
        self.holder.undeliverable(queue, now)
        if self.keeper is not None:
            self.keeper.undeliverable(queue, now)

    # The keeper --------------------------------------------------------------------------------------------------

    def _begin(self, number: int, now: float) -> None:
        """Become the keeper, in an epoch after that number."""
        epoch = Epoch(number + 1, self.holder.identity)
        _log.info("group %s: this process keeps the limits from now on, as keeper number %d", self._group, epoch.number)
        self.keeper = Keeper(epoch, self.holder.known(now), now)
        self._beat(now)
        self._announce(now)

    def _announce(self, now: float) -> None:
        """Tell all members which process is the keeper, and find those that are gone."""
        keeper = self.keeper
        if keeper is not None:
            message = Message("keep", self.holder.identity, keeper.epoch)
            message.known, message.forgotten = keeper.absent(now), keeper.forgotten(now)
            message.killed = keeper.killed(now)
            self._say(NEWS, message)
            keeper.probe()

    def _keep(self, now: float) -> None:
        """Do what the keeper is to do, if this is the keeper."""
        keeper = self.keeper
        if keeper is None:
            return
        if keeper.begin_after:
            self._begin(keeper.begin_after, now)
        else:
            keeper.tick(now)
            self._warn(keeper)
            if now >= self._answer_at and keeper.flush(self._send):
                self._answer_at = now + ANSWER_PAUSE

    def _warn(self, keeper: Keeper) -> None:
        """Log that processes do not agree on a limit."""
        found = keeper.differing()
        if found is not None and self._log.due("differing"):
            name, limits, count = found
            _log.warning(
                "group %s: processes define the limit of %s differently: %s; "
                "the smaller number in hand counts, and each process uses its own rate (%d such limits)",
                self._group,
                name,
                " or ".join(map(str, limits)),
                count,
            )
