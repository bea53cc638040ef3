"""The part of the limits of its group that one process holds, and its requests to the keeper.

The fair queue says which slots are short of permits; the holder asks for as many as there are messages, and sets what
the keeper grants. A limit of several slots is held like that of a slot. Permits that the keeper recalls are returned as
soon as nothing in hand needs them, and so are those that were not used for a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fairsched.consumer.group_limits.limit_message import (
    NO_EPOCH,
    Epoch,
    GroupLimit,
    HeldName,
    Killed,
    KnownMember,
    Message,
    believed,
    killed_of,
)
from fairsched.scheduling.limit import JointName
from fairsched.stats import PermitUse

__all__ = ["Holder", "Slots"]

#: Seconds for which permits stay here while there are messages for them and other members wait.
SLICE = 0.25
#: Seconds after which permits go back that were not used, so that a tenant with a message now and then costs no message
#: to the keeper for each.
IDLE = 2.0
#: Seconds in which a worker takes the message for which a permit or a bucket came, if a worker is free. Until then, the
#: message of a limit of several slots does not count as waiting for it any more. Twice the time between two looks
#: (`member.LOOK`): what waited at the last look may be allowed since then.
TAKEN = 0.1
#: The same as SLICE of a bucket, which serves nothing while it is under way.
BUCKET_SLICE = 2.0
#: A member uses no bucket when it has not heard the keeper for so many seconds. `sweep` finds that half a second later
#: at most, which is sooner than the keeper takes the bucket back (keeper.SILENT).
QUIET = 2.5
#: Names of which a process has or asks for something at a time, at most: others wait, so that messages stay small
#: enough to be believed (limit_message.MOST_NAMES). While some wait, permits go back that were not used for so long.
MOST_HELD, CROWDED_IDLE = 10_000, 0.5
#: Other members that are remembered at most.
MOST_PEERS = 10_000
#: A member whose queue is gone was silent before for so many seconds if its connection failed in silence: then its
#: handlers may still run. A process that was killed, or whose connection was closed, spoke until then. Less than the
#: heartbeat of the connection, after which the broker notices the silence at the earliest.
SILENT = 4.0
#: While the keeper was not heard for so many seconds, members look themselves whether others are gone that were not
#: heard for so long: at most so many at a time.
SUSPECT, MOST_SUSPECTS = 1.0, 10


class Slots(Protocol):
    """The permits of a fair queue, as the holder uses them; of limits of several slots by their `JointName`."""

    def grant(self, slot: Hashable, permits: int, full_in: float | None = None, /) -> PermitUse | None:
        """Set what a slot may do."""

    def use(self, slot: Hashable, /) -> PermitUse | None:
        """Return the figures of a slot."""


@dataclass
class _Held:
    """The part of a name's limit that this process has."""

    slot: Hashable
    limit: GroupLimit
    #: Permits that count as this process's at the keeper.
    granted: int = 0
    #: Of these, permits to return as soon as no message in hand needs them.
    owed: int = 0
    #: Of these, permits of which the other members do not know yet, so that they are not used.
    unsaid: int = 0
    #: Number of the message that tells them of all these; 0: it is not sent yet.
    telling: int = 0
    #: Seconds, on the clock of the calls, when the bucket is full; None: it is not here.
    full_at: float | None = None
    #: Permits that the keeper recalled, which are not owed yet: there are messages for them.
    recalled: int = 0
    #: Permits that the keeper was asked for, and whether it was asked for the bucket: said again with each sweep.
    asked: int = 0
    asked_bucket: bool = False
    #: When permits came while there were none, and when the bucket came.
    granted_at: float = 0.0
    bucket_at: float = 0.0
    #: When permits could be used first, or when they last waited for a limit of several slots before any was used.
    usable_at: float = 0.0
    #: Messages that were served until these came.
    served_when_granted: int = 0
    served_at_bucket: int = 0
    #: Whether the bucket is set in the slot.
    bucket_set: bool = False
    #: Messages served when the name was last swept, and since when it is so many.
    served: int = -1
    served_at: float = 0.0

    @property
    def kept(self) -> int:
        """Permits that are not to be returned."""
        return max(0, self.granted - self.owed)

    @property
    def allowed(self) -> int:
        """Permits that may be used."""
        return max(0, self.kept - self.unsaid)


@dataclass
class _Peer:
    queue: str
    session: int
    heard: float
    lease: float
    #: Permits by name, as it said: not checked yet.
    held: Mapping[str, Any]
    #: When its queue was found gone, if it was not silent for long before; None: that is not known.
    killed: float | None = None


class Holder:
    """The part of a process in the limits of its group.

    Parameters
    ----------
    identity : str
        Of this process, which keeps it when it connects again.
    lease : float
        Seconds for which its handlers may run after its connection failed in silence.
    slots : Slots
        The fair queue.
    name_of : callable
        Returns the name of a slot in messages.
    limit_of : callable
        Returns the limit of a slot; None: it has none of the group.

    Notes
    -----
    Pure but for the fair queue; for one thread. O(names) for what is called with all, O(1) for each name otherwise.
    """

    def __init__(
        self,
        identity: str,
        lease: float,
        slots: Slots,
        name_of: Callable[[Hashable], str],
        limit_of: Callable[[Hashable], GroupLimit | None],
    ) -> None:
        self.identity = identity
        self.epoch: Epoch = NO_EPOCH
        self.peers: dict[str, _Peer] = {}
        self._lease = lease
        self._slots, self._name_of, self._limit_of = slots, name_of, limit_of
        self._session, self._queue = 0, ""
        #: Whether the keeper was told, by this connection, what is held.
        self._reported = False
        self._held: dict[str, _Held] = {}
        #: Slots that wait until fewer names are held.
        self._later: list[Hashable] = []
        #: Names of which others wait for permits or for the bucket that are here.
        self._recalled: set[str] = set()
        self._recalled_buckets: set[str] = set()
        #: Names of which the others have to be told that permits came; and those of which they were told, with the
        #: number of the message, until it comes back: then every other member has it before what is sent later.
        self._got: set[str] = set()
        self._told: deque[tuple[int, set[str]]] = deque()
        self._tellings = 0
        self._heard = -math.inf
        #: When the connection began: what was heard before says nothing about the silence of others.
        self._since = 0.0
        self._ask = self._message("ask")

    # The connection ----------------------------------------------------------------------------------------------

    def joined(self, queue: str, now: float) -> None:
        """Note that this process has a connection, and a queue by which the keeper reaches it."""
        self._session += 1
        self._queue, self._reported = queue, False
        self._ask = self._message("ask")
        self._heard = self._since = now

    def lost(self) -> None:
        """Begin no more messages: only permits of those in hand are kept, and are returned with each of them."""
        self._recalled.clear()
        self._recalled_buckets.clear()
        self._got.clear()
        self._told.clear()
        for name, one in list(self._held.items()):
            one.full_at, one.bucket_set, one.recalled, one.unsaid = None, False, 0, 0
            use = self._slots.grant(one.slot, 0)
            one.granted = one.owed = 0 if use is None else use.in_hand
            if not one.granted and not (use is not None and use.queued):
                del self._held[name]

    @property
    def session(self) -> int:
        """Number of the connection."""
        return self._session

    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not any(one.granted for one in self._held.values())

    def figures(self) -> dict[str, int]:
        """Return the number of names held, and of permits."""
        held = list(self._held.values())
        return {"held": len(held), "permits": sum(one.granted for one in held)}

    def contended(self) -> bool:
        """Whether others wait for something that is here."""
        return bool(self._recalled or self._recalled_buckets)

    # What is said ------------------------------------------------------------------------------------------------

    def _message(self, kind: str) -> Message:
        return Message(kind, self.identity, self.epoch, self._session, self._queue, self._lease)

    def beat(self, now: float) -> Message:
        """Return what is said to all."""
        found = self._inventory("beat")
        found.killed = self.killed(now)
        return found

    def got(self) -> Message | None:
        """Return what is said to all after permits came, which are used when the message has come back; None: nothing.

        So whichever member keeps the limits next knows what this one uses, also if this one cannot tell it any more.
        """
        if not self._got:
            return None
        self._tellings += 1
        self._told.append((self._tellings, self._got))
        found = self._message("got")
        found.serial = self._tellings
        for name in self._got & self._held.keys():
            found.counts[name], self._held[name].telling = self._held[name].granted, self._tellings
        self._got = set()
        return found

    def stay(self) -> Message:
        """Return what is said when the connection will be closed while handlers go on."""
        return self._inventory("stay")

    def _inventory(self, kind: str) -> Message:
        """Return a message that says which permits are here."""
        found = self._message(kind)
        found.counts = {name: one.granted for name, one in self._held.items() if one.granted}
        return found

    def bye(self) -> Message:
        """Return what is said when nothing is held and nothing will be."""
        return self._message("bye")

    def report(self, now: float) -> Message:
        """Return what is said to a new keeper: all."""
        self._ask = self._message("ask")  # what was to be said to the keeper before
        found = self._message("report")
        for name, one in self._held.items():
            full_in = None if one.full_at is None else max(0.0, self._full_at(one, now) - now)
            found.held[name] = HeldName(one.limit, one.granted, full_in)
        found.known, found.killed = self.known(now), self.killed(now)
        return found

    def known(self, now: float) -> dict[str, KnownMember]:
        """Return what is known of other members."""
        return {
            identity: KnownMember(one.queue, one.session, max(0.0, now - one.heard), one.lease, believed(one.held))
            for identity, one in self.peers.items()
            if now - one.heard <= one.lease
        }

    def killed(self, now: float) -> dict[str, Killed]:
        """Return the other members that ended without a silence before, as far as this one knows."""
        return killed_of(self.peers, now)

    def suspects(self, now: float) -> list[str]:
        """Return queues of members that may be gone, which the keeper does not find out; different ones in each member.

        Of a member that was silent for longer, it says nothing that its queue is gone.
        """
        if now - self._heard < SUSPECT:
            return []
        found = [
            identity
            for identity, one in self.peers.items()
            if one.killed is None and one.heard >= self._since and SUSPECT <= now - one.heard < SILENT
        ]
        found.sort(key=lambda identity: (identity < self.identity, identity))
        return [self.peers[identity].queue for identity in found[:MOST_SUSPECTS]]

    def undeliverable(self, queue: str, now: float) -> None:
        """Note that the queue of another member is gone."""
        for one in self.peers.values():
            if one.queue == queue and one.killed is None and one.heard >= self._since and now - one.heard < SILENT:
                one.killed = now

    def hear_killed(self, killed: Mapping[str, Killed], now: float) -> None:
        """Take what others say of members that are gone."""
        for identity, (session, age) in killed.items():
            one = self.peers.get(identity)
            if one is not None and one.session == session and one.killed is None:
                one.killed = now - age

    def has_to_ask(self) -> bool:
        """Whether `asked` has something to say."""
        return self._reported and bool(self._ask.returns or self._ask.wants or self._ask.buckets)

    def asked(self) -> Message | None:
        """Return what is to be said to the keeper; None: nothing."""
        if not self.has_to_ask():
            return None
        found, self._ask = self._ask, self._message("ask")
        return found

    # What is heard -----------------------------------------------------------------------------------------------

    def hear_peer(self, message: Message, sent: float) -> None:
        """Take what another member says to all, and said at `sent` or later."""
        if message.sender == self.identity:
            return
        before = self.peers.get(message.sender)
        if before is not None and message.session < before.session:
            return
        if message.kind == "bye":
            self.peers.pop(message.sender, None)
        elif message.kind == "got" and before is not None and message.session == before.session:
            before.held = {**before.held, **message.counts}
        elif before is not None or len(self.peers) < MOST_PEERS:
            self.peers[message.sender] = _Peer(message.queue, message.session, sent, message.lease, message.counts)

    def hear_keeper(self, message: Message, now: float) -> bool:
        """Take what a keeper says; return whether this process has to report to it: it is new, or the connection is."""
        if message.epoch < self.epoch:
            return False
        self._heard = now
        self._hear_of_others(message)
        if message.epoch > self.epoch or not self._reported:
            self.epoch, self._reported = message.epoch, True
            return True
        for name, count in message.grants.items():
            self._granted(name, count, now)
        for name, full_in in message.buckets.items():
            self._got_bucket(name, full_in, now)
        for name, count in message.recalls.items():
            self._note_recall(name, count)
        self._recalled_buckets.update(message.bucket_recalls)
        self.give_way(now)
        return False

    def _hear_of_others(self, message: Message) -> None:
        """Forget other members that the keeper has forgotten, and note what absent ones hold."""
        for identity in message.forgotten:
            if identity != self.identity:
                self.peers.pop(identity, None)
        for identity, known in message.known.items():
            if identity != self.identity and identity in self.peers:
                self.peers[identity].held = dict(known.held)

    def _granted(self, name: str, count: int, now: float) -> None:
        one = self._held.get(name)
        if one is None:  # nothing is left that wants it
            self._ask.returns[name] = self._ask.returns.get(name, 0) + count
            return
        if not one.granted:
            one.granted_at, one.served_when_granted = now, self._served(one)
        one.granted += count
        one.unsaid, one.telling = one.unsaid + count, 0
        one.asked = max(0, one.asked - count)
        self._got.add(name)

    def came_back(self, number: int, now: float) -> None:
        """Use the permits of which the others have been told by the message of that number."""
        while self._told and self._told[0][0] <= number:
            of, names = self._told.popleft()
            for name in names:
                one = self._held.get(name)
                if one is not None and one.telling == of:  # else more came, of which another message tells
                    one.unsaid, one.usable_at = 0, now
                    self._want(name, one, self._set(name, one, now))

    def _got_bucket(self, name: str, full_in: float, now: float) -> None:
        one = self._held.get(name)
        if one is None:
            self._ask.buckets[name] = full_in
            return
        one.full_at, one.bucket_at, one.bucket_set, one.asked_bucket = now + full_in, now, False, False
        one.served_at_bucket = self._served(one)
        self._want(name, one, self._set(name, one, now))

    def give_way(self, now: float) -> None:
        """Return what others wait for and is not needed here, or was here for a while. O(names that they wait for)."""
        for name in list(self._recalled):
            one = self._held.get(name)
            if one is None or not one.recalled:
                self._recalled.discard(name)
            elif count := self._spare(one, now):
                one.owed, one.recalled = min(one.granted, one.owed + count), one.recalled - count
                self._want(name, one, self._set(name, one, now))
        for name in list(self._recalled_buckets):
            one = self._held.get(name)
            if one is None or one.full_at is None:
                self._recalled_buckets.discard(name)
            elif self._is_bucket_spare(one, now):
                self._return_bucket(name, one, now)

    def _served(self, one: _Held) -> int:
        use = self._slots.use(one.slot)
        return 0 if use is None else use.served

    def _spare(self, one: _Held, now: float) -> int:
        """Return how many of the permits that others wait for may go now.

        If its messages wait for another limit, which their slots have together with others, one permit stays until a
        message was served: processes that only hand it on would all lose their places there. Who wants the permit has
        to wait for that limit, too.
        """
        use = self._slots.use(one.slot)
        if use is not None and use.reserved and use.served == one.served_when_granted:
            one.usable_at = now  # the turn has not begun
        since = max(one.granted_at, one.usable_at)
        if use is None or self._had_turn(use, since, SLICE, one.served_when_granted, now):
            return one.recalled
        return min(one.recalled, max(0, one.allowed - use.in_hand - 1)) if use.reserved else 0

    def _is_bucket_spare(self, one: _Held, now: float) -> bool:
        use = self._slots.use(one.slot)
        if use is not None and use.reserved and use.served == one.served_at_bucket:
            one.bucket_at = now
        return use is None or self._had_turn(use, one.bucket_at, BUCKET_SLICE, one.served_at_bucket, now)

    def _had_turn(self, use: PermitUse, since: float, slice_: float, served: int, now: float) -> bool:
        """Return whether nothing waits that could be served, or the time is over in which it is."""
        if use.served == served and (use.reserved or now < since + TAKEN):
            return False
        return now >= since + slice_ or not (use.queued or use.reserved)

    def _note_recall(self, name: str, count: int) -> None:
        one = self._held.get(name)
        if one is not None:
            one.recalled = min(one.granted, one.recalled + count)
            self._recalled.add(name)

    # Slots -------------------------------------------------------------------------------------------------------

    def short(self, slots: Iterable[Hashable], now: float) -> None:
        """Ask for what slots are short of, and return what they no longer need."""
        for slot in slots:
            limit = self._limit_of(slot)
            if limit is None:
                continue
            name = self._name_of(slot)
            one = self._held.get(name)
            # A limit of several slots does not wait: their permits may be here, and wait for it.
            if one is None and len(self._held) >= MOST_HELD and not isinstance(slot, JointName):
                self._later.append(slot)
                continue
            if one is None:
                one = self._held[name] = _Held(slot, limit)
            one.slot, one.limit = slot, limit
            self._want(name, one, self._set(name, one, now))

    def ask_again(self) -> None:
        """Ask a new keeper for what is short."""
        for name, one in self._held.items():
            self._want_again(name, one, self._slots.use(one.slot))

    def _want_again(self, name: str, one: _Held, use: PermitUse | None) -> None:
        """Ask as though the keeper had not been asked: it may be another one, or may not have read it."""
        one.asked, one.asked_bucket = 0, False
        self._want(name, one, use)

    def _want(self, name: str, one: _Held, use: PermitUse | None) -> None:
        """Ask for what a slot lacks and the keeper was not asked for.

        `use` is what `grant` returned: the slot is not listed as short again for what it lacked then.
        """
        if use is None or not use.queued:
            return
        permits = 0
        if use.in_hand >= one.allowed:
            permits = max(0, min(use.queued - one.unsaid, one.limit.concurrency - one.kept))
        bucket = bool(one.limit.interval) and one.full_at is None
        if permits > one.asked or (bucket and not one.asked_bucket):
            one.asked, one.asked_bucket = max(permits, one.asked), bucket
            self._ask.wants[name] = HeldName(one.limit, one.asked, 0.0 if bucket else None)

    def _set(self, name: str, one: _Held, now: float) -> PermitUse | None:
        """Set what the slot may do, and return the permits that are owed and not needed."""
        bucket = None if one.full_at is None or now - self._heard >= QUIET else max(0.0, one.full_at - now)
        use = self._slots.grant(one.slot, one.allowed, bucket)
        if use is None:
            in_hand = 0  # the slot was forgotten, so nothing of it is in hand
        else:
            in_hand = use.in_hand
            if bucket is None and one.bucket_set:
                one.full_at = now + use.full_in
        one.bucket_set = bucket is not None and use is not None
        keeps = max(one.kept, in_hand)
        if one.granted > keeps:
            count = one.granted - keeps
            one.granted, one.owed = keeps, max(0, one.owed - count)
            one.recalled, one.unsaid = min(one.recalled, keeps), min(one.unsaid, keeps)
            self._ask.returns[name] = self._ask.returns.get(name, 0) + count
        return use

    def _full_at(self, one: _Held, now: float) -> float:
        """Return when the bucket is full that is here."""
        if one.bucket_set:
            use = self._slots.use(one.slot)
            return now if use is None else now + use.full_in
        return now if one.full_at is None else one.full_at

    def _return_bucket(self, name: str, one: _Held, now: float) -> None:
        self._recalled_buckets.discard(name)
        full_at = self._full_at(one, now)
        use = self._slots.grant(one.slot, one.allowed)
        if one.bucket_set and use is not None:
            full_at = now + use.full_in  # as it was at the moment in which the slot lost it
        one.full_at, one.bucket_set = None, False
        self._ask.buckets[name] = max(0.0, full_at - now)
        self._want(name, one, use)

    def sweep(self, now: float) -> None:
        """Return what was not used for a while, ask again, and use buckets while the keeper is heard. O(names)."""
        for name, one in list(self._held.items()):
            use = self._slots.use(one.slot)
            if use is not None and (use.queued or use.reserved or use.served != one.served):
                one.served, one.served_at = use.served, now
            idle = use is None or now - one.served_at >= (CROWDED_IDLE if self._later else IDLE)
            if idle:
                one.owed = max(one.owed, one.granted - (0 if use is None else use.in_hand))
                if one.full_at is not None:
                    self._return_bucket(name, one, now)
            if idle or one.full_at is not None:
                use = self._set(name, one, now)
            if one.asked or one.asked_bucket:
                self._ask_anew(name, one, now)
            elif idle and not one.granted and one.full_at is None and not (use is not None and use.queued):
                del self._held[name]
        room = max(0, MOST_HELD - len(self._held))
        waiting, self._later = self._later[:room], self._later[room:]
        self.short(waiting, now)

    def _ask_anew(self, name: str, one: _Held, now: float) -> None:
        """Ask the keeper again, or tell it that nothing is needed any more."""
        use = self._set(name, one, now)
        if use is not None and use.queued:
            self._want_again(name, one, use)
        else:
            one.asked, one.asked_bucket = 0, False
            self._ask.wants[name] = HeldName(one.limit, 0, None)
