"""A process of a group with limits: what it holds, and what it keeps while it is the keeper. Without a connection."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from fairsched.consumer.group_limits.holder import Holder
from fairsched.consumer.group_limits.keeper import BEAT, Keeper
from fairsched.consumer.group_limits.limit_message import NO_EPOCH, Epoch, Message
from fairsched.consumer.sharing.share_message import slot_of
from fairsched.errors import LONGEST_THROTTLE
from fairsched.scheduling._fairqueue import FairQueue

__all__ = ["Member"]

_log = logging.getLogger(__name__)

#: Routing keys: what members say to all, what they say to the keeper, and what the keeper says to all.
BEATS, ASKS, NEWS = "beat", "ask", "news"


#: Seconds between two looks whether a bucket is still needed that others wait for.
BUCKET_LOOK = 0.02


class Member:
    """Takes what a process hears, and says what follows.

    Parameters
    ----------
    group : str
        Name of the group in the log.
    holder : Holder
        What this process has.
    fair : FairQueue
        What is limited.
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
        fair: FairQueue,
        say: Callable[[str, Message], object],
        send: Callable[[str, Message], object],
    ) -> None:
        self.holder = holder
        #: What this process keeps for the group; None: it is not the keeper.
        self.keeper: Keeper | None = None
        self._group, self._fair, self._say, self._send = group, fair, say, send
        self._beat_at = self._sweep_at = 0.0
        self._buckets_wait = False

    def joined(self, queue: str, now: float) -> None:
        """Note that this process has a connection, and a queue by which it is reached."""
        self.holder.joined(queue, now)
        self._beat_at = self._sweep_at = now

    def lost(self) -> None:
        """Note that the connection is lost, or will be closed."""
        self.keeper = None
        self.holder.lost()

    def wait(self, now: float) -> float:
        """Return the seconds until `step` has something to do although nothing is heard."""
        due = min(self._beat_at, self._sweep_at) - now
        if self._buckets_wait:
            due = min(due, BUCKET_LOOK)
        return max(0.0, due if self.keeper is None else min(due, self.keeper.wait()))

    def step(self, short: bool, now: float) -> None:
        """Do what is due; `short`: slots may be short of permits."""
        if short:
            self.holder.short(self._fair.short_of_permits(), now)
        self._buckets_wait = self.holder.return_buckets(now)
        if now >= self._sweep_at:
            self.holder.sweep(now)
            self._sweep_at = now + BEAT
        if now >= self._beat_at:
            self._say(BEATS, self.holder.beat())
            self._announce(now)
            self._beat_at = now + BEAT
        asked = self.holder.asked()
        if asked is not None:
            self._say(ASKS, asked)
        self._keep(now)

    # What is heard -----------------------------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """Take a message that came by the own queue."""
        if message.kind == "throttle":
            self._throttled(message)
        elif message.kind != "keep":
            self.holder.hear_peer(message, now)
        elif self.holder.hear_keeper(message, now):
            self._say(ASKS, self.holder.report(now))
            self.holder.ask_again()

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
        """Take a message that came by the keeper's queue, which the broker delivers to one process."""
        if self.keeper is None:
            known = max(self.holder.epoch, message.epoch)
            self._begin(known.number, known == NO_EPOCH and not self.holder.peers, now)
        if self.keeper is not None:
            self.keeper.hear(message, now)

    def undeliverable(self, queue: str, now: float) -> None:
        """Note that a queue does not exist to which a message was sent."""
        if self.keeper is not None:
            self.keeper.undeliverable(queue, now)

    # The keeper --------------------------------------------------------------------------------------------------

    def _begin(self, number: int, first: bool, now: float) -> None:
        """Become the keeper, in an epoch after all that are known."""
        epoch = Epoch(number + 1, self.holder.identity)
        _log.info("group %s: this process keeps the limits from now on, as keeper number %d", self._group, epoch.number)
        self.keeper = Keeper(epoch, self.holder.known(now), first, now)
        self._announce(now)

    def _announce(self, now: float) -> None:
        """Tell all members who the keeper is, and find those that are gone."""
        keeper = self.keeper
        if keeper is not None:
            message = Message("keep", self.holder.identity, keeper.epoch)
            message.known, message.forgotten = keeper.absent(now), keeper.forgotten(now)
            self._say(NEWS, message)
            keeper.probe()

    def _keep(self, now: float) -> None:
        """Do what the keeper is to do, if this is the keeper."""
        keeper = self.keeper
        if keeper is None:
            return
        if keeper.outranked_by:
            self._begin(keeper.outranked_by, False, now)
        else:
            keeper.tick(now)
            keeper.flush(self._send)
