"""The keeper of a group's limits: grants permits and token buckets to the members, and takes them back.

One member of the group is the keeper, as the broker says (docs/design/limits.md). A member holds *permits* of a name,
each of which allows one message in hand, and perhaps the *bucket* of the name, which allows messages at the rate. The
keeper knows which member holds how much, grants what is free, and, while members wait, recalls what others have more of
than their part, or have had for a while.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.consumer.group_limits.holder import SILENT
from fairsched.consumer.group_limits.limit_message import (
    Epoch,
    GroupLimit,
    Killed,
    KnownMember,
    Message,
    believed,
    killed_of,
)

__all__ = ["Keeper"]

#: Seconds between two messages in which a member, or the keeper, says that it is here.
BEAT = 0.5
#: Seconds for which a new keeper waits for members that it does not know.
TAKEOVER = 2.0
#: A member that was not heard for so many seconds is granted nothing: it may be cut off, and would keep it for long.
UNHEARD = 2.0
#: Seconds in which a process that lost its connection, and was not silent before, returns if it lives.
RETURN = 3.5
#: Seconds between two looks at the names that members wait for: one that was not heard lately was granted nothing, and
#: that it is heard again changes no name.
LOOK = 0.5
#: Seconds after which a member that is heard should have said what it holds: it is told of the keeper twice a second.
OVERDUE = 4.0
#: Seconds for which members are told that another is forgotten.
TELL_FORGOTTEN = 10.0
#: The limit of a name of which only permits are known.
UNKNOWN = GroupLimit(0, 0, 0)
#: Members that a keeper knows at most.
MOST_MEMBERS = 10_000


@dataclass
class _Member:
    """Another process of the group, or this one."""

    queue: str
    session: int
    heard: float
    lease: float
    #: Whether it said, to this keeper, what it holds; and when it was heard first without having said that.
    reported: bool = False
    owes: float | None = None
    #: When its queue was found gone; None: it is there.
    gone: float | None = None
    #: When its permits are free, once it is gone.
    until: float = float("inf")
    #: When its queue was found gone, if it was not silent for long before: by this process or by another one.
    killed: float | None = None
    #: Number of the last message of its connection.
    serial: int = 0
    #: Whether its buckets were taken back.
    buckets_free: bool = False
    #: What it holds, if it or another member said so to others.
    names: dict[str, int] = field(default_factory=dict)


@dataclass
class _Name:
    """A limit, and what each member holds of it."""

    #: The strictest of its definitions.
    limit: GroupLimit
    full_at: float
    #: The limit as the configurations of members have it that hold or want something of it.
    defined: dict[str, GroupLimit] = field(default_factory=dict)
    permits: Counter[str] = field(default_factory=Counter)
    #: Member that has the bucket; None: the keeper.
    bucket: str | None = None
    bucket_recalled: bool = False
    #: Permits that members wait for, in the order in which they are served.
    waiting: dict[str, int] = field(default_factory=dict)
    #: Members that wait for the bucket.
    waiting_for_bucket: dict[str, None] = field(default_factory=dict)
    #: When the first of a member's permits was granted.
    since: dict[str, float] = field(default_factory=dict)
    recalled: Counter[str] = field(default_factory=Counter)


def strictest(limits: Collection[GroupLimit]) -> GroupLimit:
    """Return the limit with the smallest concurrency and the slowest rate of these."""
    concurrencies = [one.concurrency for one in limits if one.concurrency]
    rates = [(-one.interval, one.burst) for one in limits if one.interval]
    interval, burst = min(rates, default=(0, 1))
    return GroupLimit(min(concurrencies, default=0), -interval, burst)


class Keeper:
    """The knowledge and the decisions of the keeper.

    Parameters
    ----------
    epoch : Epoch
        Its number, larger than that of every keeper before it, and its identity.
    known : mapping of str to KnownMember
        The members that this process has heard of.
    now : float
        Seconds on a clock that stands still while the process is not connected.

    Notes
    -----
    Pure; for one thread. Messages are answered by `send(queue, message)`, which is called by `flush` with one message
    for each member at most. O(members) for each name in a message; `tick` is O(members, for each name that members
    wait for).
    """

    def __init__(self, epoch: Epoch, known: Mapping[str, KnownMember], now: float) -> None:
        self.epoch = epoch
        #: Number of the epoch after which this process has to begin anew; 0: none. Either a member has told of it, or
        #: it is the own one, because a message was lost.
        self.begin_after = 0
        self._since = now
        self._granting = False
        #: When this began to grant, or will at the earliest: buckets that no member has are empty until then.
        self._granting_since = now + TAKEOVER
        self._look_at = now
        self._members: dict[str, _Member] = {}
        self._names: dict[str, _Name] = {}
        #: Names whose members have different definitions of the limit.
        self._differing: dict[str, None] = {}
        #: Names that no member has or wants, and whose bucket was not full; and when it will be, in a heap.
        self._filling: set[str] = set()
        self._full: list[tuple[float, str]] = []
        self._forgotten: dict[str, float] = {}
        self._outbox: dict[str, Message] = {}
        for identity, one in known.items():
            self._learn(identity, one, now)

    @property
    def granting(self) -> bool:
        """Whether all members are accounted for."""
        return self._granting

    def figures(self) -> dict[str, int]:
        """Return the number of members, of names, and of members that are gone and hold permits."""
        gone = sum(one.gone is not None for one in self._members.values())
        return {"members": len(self._members) - gone, "names": len(self._names), "absent": gone}

    def differing(self) -> tuple[str, list[GroupLimit], int] | None:
        """Return a name that members define differently, the definitions, and how many such names there are."""
        for name in self._differing:
            return name, sorted({*self._names[name].defined.values()}), len(self._differing)
        return None

    def absent(self, now: float) -> dict[str, KnownMember]:
        """Return what members should know of those that are gone and hold permits."""
        return {
            identity: KnownMember(one.queue, one.session, now - one.heard, one.lease, self._held_by(identity))
            for identity, one in self._members.items()
            if one.gone is not None
        }

    def killed(self, now: float) -> dict[str, Killed]:
        """Return the members that are gone and were not silent for long before."""
        return killed_of(self._members, now)

    def forgotten(self, now: float) -> list[str]:
        """Return the members that were forgotten lately."""
        self._forgotten = {one: when for one, when in self._forgotten.items() if now - when < TELL_FORGOTTEN}
        return list(self._forgotten)

    # What is heard -----------------------------------------------------------------------------------------------

    def hear(self, message: Message, sent: float, now: float) -> None:
        """Take a message of a member, which was sent at `sent` or later."""
        if message.epoch > self.epoch:
            self.begin_after = max(self.begin_after, message.epoch.number)
            return
        one = self._members.get(message.sender)
        if one is not None and message.session < one.session:
            return  # of a connection that is lost
        if message.kind == "bye":
            self._forget(message.sender, now)
            return
        if one is None:
            if len(self._members) >= MOST_MEMBERS:
                return
            self._forgotten.pop(message.sender, None)
            one = self._members[message.sender] = _Member(message.queue, message.session, sent, message.lease)
        elif message.session > one.session:
            self._returned(message.sender, one, message.queue, message.session)
        one.lease = message.lease
        # A member that stays is not heard any more, and its permits are its own until its lease ends.
        one.heard = min(one.heard, sent - SILENT) if message.kind == "stay" else max(one.heard, sent)
        if message.epoch == self.epoch:
            self._hear_of_this_epoch(message, one, sent, now)
        else:
            one.reported, one.owes = False, None
            if message.kind in ("beat", "stay"):
                one.names = believed(message.counts)
            self._to(one.queue)  # which tells it the epoch
        self._hear_killed(message.killed, now)

    def _hear_killed(self, killed: Mapping[str, Killed], now: float) -> None:
        """Take what a member says of others whose queues it found gone.

        It knows how long they were silent before. This process may not: it began to keep the limits later, or stood
        still.
        """
        for identity, (session, age) in killed.items():
            one = self._members.get(identity)
            if one is not None and one.session == session and one.killed is None:
                self._was_killed(identity, one, now - age, now)

    def _hear_of_this_epoch(self, message: Message, one: _Member, sent: float, now: float) -> None:
        if message.kind == "report":
            one.serial = message.serial
            self._report(message.sender, one, message, sent, now)
        elif one.reported:
            if message.serial != one.serial + 1:  # what was returned is not known
                self.begin_after = max(self.begin_after, self.epoch.number)
            one.serial = message.serial
            if message.kind == "ask":
                self._asked(message.sender, message, now)
        elif one.owes is None:
            one.owes = sent
        elif sent - one.owes >= OVERDUE:  # its report was lost, and it will not repeat it
            self.begin_after = max(self.begin_after, self.epoch.number)

    def undeliverable(self, queue: str, now: float) -> None:
        """Note that the queue of a member is gone."""
        for identity, one in self._members.items():
            if one.queue == queue and one.gone is None:
                if now - one.heard < SILENT:
                    self._was_killed(identity, one, now, now)
                else:
                    one.until = now + one.lease
                    self._is_gone(identity, one, now)

    def _was_killed(self, identity: str, one: _Member, when: float, now: float) -> None:
        """Note that a member was killed, or its connection closed: it is back by then, or its handlers do not run."""
        one.killed, one.until = when, when + RETURN
        if one.gone is None:
            self._is_gone(identity, one, now)

    def _is_gone(self, identity: str, one: _Member, now: float) -> None:
        one.gone = now
        self._wait_no_more(identity)
        self._all_changed(now)

    def _learn(self, identity: str, known: KnownMember, sent: float) -> None:
        """Note what a member says of another, at `sent` or later."""
        one = self._members.get(identity)
        if one is not None and (one.reported or one.session > known.session):
            return
        if identity in self._forgotten or len(self._members) >= MOST_MEMBERS:
            return
        heard = sent - known.age
        if one is None:
            one = self._members[identity] = _Member(known.queue, known.session, heard, known.lease)
        elif one.session < known.session:
            self._returned(identity, one, known.queue, known.session)
        elif one.heard >= heard:
            return
        one.heard, one.lease = heard, known.lease
        one.names = dict(known.held)
        self._to(one.queue)

    def _returned(self, identity: str, one: _Member, queue: str, session: int) -> None:
        """Note that a member has another connection: it says anew what it holds."""
        one.queue, one.session, one.gone, one.until = queue, session, None, float("inf")
        one.killed = one.owes = None
        one.reported = one.buckets_free = False
        self._wait_no_more(identity)

    def _wait_no_more(self, identity: str) -> None:
        for found in self._names.values():
            found.waiting.pop(identity, None)
            found.waiting_for_bucket.pop(identity, None)

    def _report(self, identity: str, one: _Member, message: Message, sent: float, now: float) -> None:
        """Take over what a member holds."""
        self._clear(identity, now)
        one.reported, one.owes, one.names = True, None, {}
        for name, held in message.held.items():
            found = self._name(name)
            self._define(name, found, identity, held.limit, now)
            if held.permits:
                found.permits[identity] = held.permits
                found.since[identity] = now
            if held.full_in is None:
                continue
            if found.bucket is None and not self._granting:
                found.bucket, found.bucket_recalled = identity, False
                found.full_at = now + held.full_in
            else:  # this process did not know of it in time, and the bucket that it has counts
                self._to(one.queue).bucket_recalls.append(name)
        for other, known in message.known.items():
            self._learn(other, known, sent)
        self._all_changed(now)

    def _asked(self, identity: str, message: Message, now: float) -> None:
        changed: dict[str, _Name] = {}
        for name, count in message.returns.items():
            found = self._names.get(name)
            if found is not None:
                self._take_back(found, identity, count)
                changed[name] = found
        for name, full_in in message.buckets.items():
            found = self._names.get(name)
            if found is not None and found.bucket == identity:
                found.bucket, found.full_at = None, now + full_in
                changed[name] = found
        wants = message.wants if self._members[identity].gone is None else {}
        for name, want in wants.items():
            changed[name] = found = self._name(name)
            self._define(name, found, identity, want.limit, now)
            if want.permits:
                found.waiting[identity] = want.permits
            else:
                found.waiting.pop(identity, None)
            if want.full_in is None:
                found.waiting_for_bucket.pop(identity, None)
            elif found.bucket != identity:
                found.waiting_for_bucket[identity] = None
        for name, found in changed.items():
            self._changed(name, found, now)

    # What is granted ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what time brings: free what lost members had, begin to grant, forget names."""
        for identity, one in list(self._members.items()):
            if one.gone is not None and now >= one.until:
                self._forget(identity, now)
            elif one.gone is not None and not one.buckets_free and now - one.heard >= SILENT:
                one.buckets_free = True
                self._free_buckets(identity, now)
                self._all_changed(now)
        if not self._granting and not self._begin_to_grant(now):
            return
        if now >= self._look_at:
            self._look_at = now + LOOK
            for name, found in list(self._names.items()):
                if found.waiting or found.waiting_for_bucket:
                    self._changed(name, found, now)
        while self._full and self._full[0][0] <= now:
            _, name = heapq.heappop(self._full)
            self._filling.discard(name)
            if name in self._names:
                self._changed(name, self._names[name], now)

    def _begin_to_grant(self, now: float) -> bool:
        """Grant from now on if all members are accounted for."""
        members = self._members.values()
        if now - self._since < TAKEOVER or not all(one.reported or one.gone is not None for one in members):
            return False
        self._granting, self._granting_since = True, now
        for identity, one in self._members.items():
            self._adopt(identity, one, now)
        for name, found in list(self._names.items()):
            if found.bucket is None:
                found.full_at = now + found.limit.whole  # it is not known how full it was
            self._changed(name, found, now)
        return True

    def probe(self) -> None:
        """Have every member that is here hear of this keeper; a queue that is gone is noticed by this."""
        for one in self._members.values():
            if one.gone is None:
                self._to(one.queue)

    def has_answers(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._outbox)

    def flush(self, send: Callable[[str, Message], Any]) -> bool:
        """Send what was decided; return whether that was anything."""
        outbox, self._outbox = self._outbox, {}
        for queue, message in outbox.items():
            send(queue, message)
        return bool(outbox)

    def _adopt(self, identity: str, one: _Member, now: float) -> None:
        """Count what a member that is gone was said to hold."""
        if not one.reported:
            for name, count in one.names.items():
                if count:
                    self._name(name).permits[identity] = count
            one.names = {}

    def _name(self, name: str) -> _Name:
        return self._names.setdefault(name, _Name(UNKNOWN, 0.0))

    def _define(self, name: str, found: _Name, identity: str, limit: GroupLimit, now: float) -> None:
        """Note how a member defines a limit."""
        if found.defined.get(identity) != limit:
            found.defined[identity] = limit
            self._agree(name, found, now)

    def _agree(self, name: str, found: _Name, now: float) -> None:
        """Let the strictest definition count of those that members have."""
        limits = {*found.defined.values()}
        if len(limits) > 1:
            self._differing[name] = None
        else:
            self._differing.pop(name, None)
        limit = strictest(limits)
        if found.limit == UNKNOWN:
            # A name that was forgotten had a full bucket; what an earlier keeper knew is not known.
            found.full_at = self._granting_since + limit.whole
        elif limit != found.limit:
            found.full_at = min(found.full_at, now + limit.whole)
        found.limit = limit

    def _drop_definitions(self, name: str, found: _Name, now: float) -> None:
        """Forget the definitions of members that hold and want nothing."""
        for identity in list(found.defined):
            if not (
                identity in found.permits
                or identity in found.waiting
                or identity in found.waiting_for_bucket
                or identity == found.bucket
            ):
                del found.defined[identity]
        if found.defined:
            self._agree(name, found, now)
        else:
            self._differing.pop(name, None)

    def _held_by(self, identity: str) -> dict[str, int]:
        held = {name: found.permits[identity] for name, found in self._names.items() if identity in found.permits}
        return held or self._members[identity].names

    def _changed(self, name: str, found: _Name, now: float) -> None:
        """Grant what is free to those that wait, or recall it; forget a name that no member has or wants."""
        if name in self._differing:
            self._drop_definitions(name, found, now)
        if self._granting:
            self._grant_permits(name, found, now)
            self._grant_bucket(name, found, now)
            self._recall(name, found)
        if not (found.waiting or found.waiting_for_bucket or found.permits) and found.bucket is None:
            if found.full_at <= now:
                self._names.pop(name, None)
                self._differing.pop(name, None)
            elif name not in self._filling:
                self._filling.add(name)
                heapq.heappush(self._full, (found.full_at, name))

    def _grant_permits(self, name: str, found: _Name, now: float) -> None:
        free = found.limit.concurrency - sum(found.permits.values())
        while free > 0:
            waiting = [identity for identity in found.waiting if self._is_heard(identity, now)]
            if not waiting:
                return
            each = max(1, free // len(waiting))
            for identity in sorted(waiting, key=found.permits.__getitem__):  # those that have the least first
                count = min(found.waiting[identity], each, free)
                if count <= 0:
                    break
                free -= count
                self._grant(name, found, identity, count, now)

    def _grant(self, name: str, found: _Name, identity: str, count: int, now: float) -> None:
        left = found.waiting.pop(identity) - count
        if left:  # behind those that wait: otherwise it would come first again when it has had its turn
            found.waiting[identity] = left
        found.permits[identity] += count
        found.since.setdefault(identity, now)
        grants = self._to(self._members[identity].queue).grants
        grants[name] = grants.get(name, 0) + count

    def _grant_bucket(self, name: str, found: _Name, now: float) -> None:
        if found.bucket is not None:
            return
        identity = next((one for one in found.waiting_for_bucket if self._is_heard(one, now)), None)
        if identity is not None:
            del found.waiting_for_bucket[identity]
            found.bucket, found.bucket_recalled = identity, False
            self._to(self._members[identity].queue).buckets[name] = max(0.0, found.full_at - now)

    def _is_heard(self, identity: str, now: float) -> bool:
        return now - self._members[identity].heard < UNHEARD

    def _recall(self, name: str, found: _Name) -> None:
        """Ask for permits of those that have more than their part, or had them first; and for the bucket."""
        holder = found.bucket
        if found.waiting_for_bucket and holder is not None and not found.bucket_recalled and self._is_here(holder):
            found.bucket_recalled = True
            self._to(self._members[holder].queue).bucket_recalls.append(name)
        if not found.waiting:
            return
        present = [identity for identity in found.permits if self._is_here(identity)]
        members = len({*present, *found.waiting})
        part = max(1, found.limit.concurrency // members)
        needed = sum(max(0, min(want, part - found.permits[one])) for one, want in found.waiting.items())
        needed -= sum(found.recalled.values())
        if needed <= 0:
            return
        present.sort(key=lambda one: found.since.get(one, 0.0))
        for identity in present:
            needed -= self._recall_from(name, found, identity, found.permits[identity] - part, needed)
        if members > found.limit.concurrency:  # they take turns
            for identity in present:
                needed -= self._recall_from(name, found, identity, 1, needed)

    def _recall_from(self, name: str, found: _Name, identity: str, most: int, needed: int) -> int:
        """Recall permits of a member, so that at most so many are recalled; return the number that is new."""
        count = min(most - found.recalled[identity], needed)
        if count <= 0:
            return 0
        found.recalled[identity] += count
        recalls = self._to(self._members[identity].queue).recalls
        recalls[name] = recalls.get(name, 0) + count
        return count

    def _is_here(self, identity: str) -> bool:
        one = self._members.get(identity)
        return one is not None and one.gone is None and one.reported

    def _take_back(self, found: _Name, identity: str, count: int) -> None:
        left = found.permits[identity] - count
        found.recalled[identity] = max(0, found.recalled[identity] - count)
        if left > 0:
            found.permits[identity] = left
        else:
            found.permits.pop(identity, None)
            found.since.pop(identity, None)
        if not found.recalled[identity]:
            found.recalled.pop(identity, None)

    def _clear(self, identity: str, now: float) -> None:
        """Forget what a member holds and waits for; its bucket may have been used."""
        self._free_buckets(identity, now)
        for found in self._names.values():
            found.permits.pop(identity, None)
            found.recalled.pop(identity, None)
            found.since.pop(identity, None)
            found.defined.pop(identity, None)
        self._wait_no_more(identity)

    def _free_buckets(self, identity: str, now: float) -> None:
        """Take back the buckets of a member, which may have used all that was in them."""
        for found in self._names.values():
            if found.bucket == identity:
                found.bucket, found.full_at = None, now + found.limit.whole

    def _all_changed(self, now: float) -> None:
        for name, found in list(self._names.items()):
            self._changed(name, found, now)

    def _forget(self, identity: str, now: float) -> None:
        """Free everything that a member has."""
        self._clear(identity, now)
        self._members.pop(identity, None)
        self._forgotten[identity] = now
        self._all_changed(now)

    def _to(self, queue: str) -> Message:
        """Return the message that will be sent to a member."""
        return self._outbox.setdefault(queue, Message("keep", self.epoch.identity, epoch=self.epoch))
