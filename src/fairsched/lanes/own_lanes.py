"""Own lanes of tenants as a worker sees them: found, consumed, given up by agreement, or consumed again."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairsched.lanes.announcement import ACTIVE, CLOSE, GONE, KEPT, NEW

#: Seconds without a message after which a worker proposes to delete a lane; each draws up to this part more, lest all
#: propose at once. A worker agrees after half of them.
IDLE, JITTER = 600.0, 0.25
#: Seconds from a proposal to the deletion: the other workers leave meanwhile.
NOTICE = 0.5
#: Seconds after which a worker that left a lane consumes it again unless it hears that the lane is gone: the worker
#: that proposed it may have died.
PATIENCE = 3.0
#: Seconds without a consumer after which it is looked whether a lane still exists.
ABSENCE = 1.0
#: Seconds between two looks at the lanes after which no lane is deleted but all are kept: this process may have been
#: stopped, and publishers use a lane so long after they announced it, whether a worker has heard that or not.
STALE = 2 * NOTICE
#: Seconds until a lane that the consumer refused is tried again.
RETRY = 10.0


class Do(enum.Enum):
    """An action at the broker or the consumer."""

    #: Does the lane exist?
    LOOK = enum.auto()
    #: Consume the lane. Was it accepted?
    CONSUME = enum.auto()
    #: Consume the lane no more: its channel is closed, and what is unsettled returns to it.
    LEAVE = enum.auto()
    #: Delete the lane if it has no message and no consumer. Was it deleted?
    DELETE = enum.auto()
    #: Announce to all workers.
    SAY = enum.auto()


class Action(NamedTuple):
    """Something to do with a lane; `key` is what to say."""

    do: Do
    lane: str
    tenant: Any
    key: str = ""


class Activity(NamedTuple):
    """A lane at the consumer: whether the broker confirmed its consumer, its deliveries so far, those unsettled."""

    subscribed: bool
    delivered: int
    unsettled: int


_NOTHING = Activity(False, 0, 0)


@dataclass(slots=True)
class _Lane:
    """A lane that exists, as far as is known."""

    tenant: Any
    consumed: bool = False
    #: If it is not consumed: when to look again, or, after an own proposal, to delete it.
    until: float = 0.0
    proposed: bool = False
    #: Since when no message came, and no publisher was heard of; and when that has lasted long enough.
    quiet_since: float = 0.0
    due: float = 0.0
    absent_since: float | None = None
    activity: Activity = _NOTHING


class OwnLanes:
    """The own lanes that a worker knows, and what it does about them.

    Parameters
    ----------
    keeps : bool
        Whether no lane is given up, because the broker cannot delete one only if it is empty.
    jitter : callable
        Returns a number from 0 to 1.

    Notes
    -----
    Does nothing itself: a method returns what is to be done, in this order, and `answered` is told the result of each
    LOOK, CONSUME and DELETE before anything else is. The caller passes the time. O(1) for each lane concerned. For one
    thread.

    Nothing is lost: only DELETE removes a queue, and the broker does it in one step, only if the queue has neither
    messages nor consumers. What a consumer has unsettled counts as neither once the consumer is cancelled; so a worker
    leaves a lane by closing its channel, which returns these messages in one step with the end of the consumer; and one
    that has such messages in spite of that, as while it stops, says that the lane is active.

    No lane is forgotten: a lane that is not consumed has a time at which it is looked for again. It is forgotten if it
    does not exist, or another worker says so; a publisher that declares it again announces it afterwards.
    """

    def __init__(self, *, keeps: bool = False, jitter: Callable[[], float] = random.random) -> None:
        self.keeps = keeps
        self._jitter = jitter
        self._lanes: dict[str, _Lane] = {}
        self._observed_at = 0.0

    @property
    def consumed(self) -> dict[str, Any]:
        """The tenant of each lane that is consumed; safe from any thread."""
        return {name: lane.tenant for name, lane in list(self._lanes.items()) if lane.consumed}

    @property
    def known(self) -> list[str]:
        """The lanes that exist, as far as is known."""
        return list(self._lanes)

    def is_consumed(self, name: str) -> bool:
        """Whether a lane is consumed."""
        lane = self._lanes.get(name)
        return lane is not None and lane.consumed

    def wait(self, now: float) -> float:
        """Return the seconds until a lane that is not consumed is due; infinite if there is none."""
        return min((lane.until - now for lane in self._lanes.values() if not lane.consumed), default=float("inf"))

    # What happens ------------------------------------------------------------------------------------------------

    def heard(self, key: str, name: str, tenant: Any, now: float) -> list[Action]:
        """Take an announcement, an own one too. `observed` should have been called just before."""
        lane = self._lanes.get(name)
        if key in (NEW, ACTIVE, KEPT):
            if lane is None or not lane.consumed:
                return self._look_again(name, tenant, lane, now)
            if key != KEPT:
                self._stir(lane, now)
        elif key == CLOSE and lane is not None:
            return self._asked_to_leave(name, lane, now)
        elif key == GONE and lane is not None and not lane.consumed:
            del self._lanes[name]
        return []

    def _look_again(self, name: str, tenant: Any, lane: _Lane | None, now: float) -> list[Action]:
        if lane is not None:
            lane.proposed, lane.until = False, now + PATIENCE
            tenant = lane.tenant
        return [Action(Do.LOOK, name, tenant)]

    def _asked_to_leave(self, name: str, lane: _Lane, now: float) -> list[Action]:
        if lane.activity.unsettled:
            return [Action(Do.SAY, name, lane.tenant, ACTIVE)]
        if lane.consumed and now - lane.quiet_since >= 0.5 * IDLE:
            lane.consumed, lane.proposed, lane.until = False, False, now + PATIENCE
            return [Action(Do.LEAVE, name, lane.tenant)]
        return []

    def observed(self, activities: Mapping[str, Activity], now: float) -> list[Action]:
        """Take how lanes stand at the consumer, and do what is due.

        Parameters
        ----------
        activities : mapping of str to Activity
            Of the lanes that the consumer has.
        now : float
            Seconds.
        """
        found: list[Action] = []
        is_stale, self._observed_at = now - self._observed_at > STALE, now
        for name, lane in self._lanes.items():
            before, lane.activity = lane.activity, activities.get(name, _NOTHING)
            if lane.activity.unsettled or lane.activity.delivered != before.delivered:
                self._stir(lane, now)
            found += self._if_consumed(name, lane, now) if lane.consumed else self._if_left(name, lane, now, is_stale)
        return found

    def _if_consumed(self, name: str, lane: _Lane, now: float) -> list[Action]:
        if lane.activity.subscribed:
            lane.absent_since = None
        elif lane.absent_since is None:
            lane.absent_since = now
        elif now - lane.absent_since >= ABSENCE:
            lane.absent_since = now
            return [Action(Do.LOOK, name, lane.tenant)]
        if now < lane.due or self.keeps:
            return []
        lane.consumed, lane.proposed, lane.until = False, True, now + NOTICE
        return [Action(Do.SAY, name, lane.tenant, CLOSE), Action(Do.LEAVE, name, lane.tenant)]

    def _if_left(self, name: str, lane: _Lane, now: float, is_stale: bool) -> list[Action]:
        if lane.activity.unsettled:
            return [Action(Do.SAY, name, lane.tenant, ACTIVE), *self._look_again(name, None, lane, now)]
        if now < lane.until:
            return []
        if lane.proposed and is_stale:
            return [Action(Do.SAY, name, lane.tenant, KEPT), *self._look_again(name, None, lane, now)]
        if lane.proposed and lane.activity is not _NOTHING:
            # Its channel is not closed yet: a message that it has would not count at the broker.
            if now < lane.until + PATIENCE:
                return []
            return [Action(Do.SAY, name, lane.tenant, KEPT), *self._look_again(name, None, lane, now)]
        proposed, lane.proposed, lane.until = lane.proposed, False, now + PATIENCE
        return [Action(Do.DELETE if proposed else Do.LOOK, name, lane.tenant)]

    def answered(self, action: Action, yes: bool, now: float) -> list[Action]:
        """Take the result of an action."""
        lane = self._lanes.get(action.lane)
        if action.do is Do.LOOK:
            return self._seen(action, lane, now) if yes else self._not_there(action, lane)
        if action.do is Do.DELETE:
            if yes:
                self._lanes.pop(action.lane, None)
                return [action._replace(do=Do.SAY, key=GONE)]
            return [action._replace(do=Do.SAY, key=KEPT), action._replace(do=Do.LOOK)]
        if action.do is Do.CONSUME and lane is not None and not yes:
            lane.consumed, lane.until = False, now + RETRY
        return []

    def _seen(self, action: Action, lane: _Lane | None, now: float) -> list[Action]:
        """Consume a lane that exists, unless the consumer has it."""
        if lane is None:
            lane = self._lanes[action.lane] = _Lane(action.tenant)
        elif lane.consumed and lane.activity is not _NOTHING:
            return []
        return [self._consume(action.lane, lane, now)]

    def _consume(self, name: str, lane: _Lane, now: float) -> Action:
        lane.consumed, lane.proposed, lane.absent_since = True, False, None
        self._stir(lane, now)
        return Action(Do.CONSUME, name, lane.tenant)

    def _not_there(self, action: Action, lane: _Lane | None) -> list[Action]:
        """Forget a lane."""
        if lane is None:
            return []
        del self._lanes[action.lane]
        return [action._replace(do=Do.LEAVE)] if lane.consumed else []

    def _stir(self, lane: _Lane, now: float) -> None:
        """Begin to count again how long a lane has been idle."""
        lane.quiet_since, lane.due = now, now + IDLE * (1.0 + JITTER * self._jitter())

    def deaf(self, now: float) -> list[Action]:
        """Consume everything that was left: no announcement is heard any more, and nothing can be looked at."""
        return [self._consume(name, lane, now) for name, lane in self._lanes.items() if not lane.consumed]
