"""The own lanes of a worker: found, left by agreement, deleted, consumed again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairsched.lanes.announcement import ACTIVE, CLOSE, GONE, KEPT, KEYS, NEW
from fairsched.lanes.own_lanes import ABSENCE, IDLE, JITTER, NOTICE, PATIENCE, RETRY, Action, Activity, Do, OwnLanes

LANE, TENANT = "orders.tenant.x", "x"
QUIET = Activity(True, 0, 0)


class Worker:
    """Own lanes with a broker and a consumer that answer as told."""

    def __init__(self, exists: bool = True, deletes: bool = True, accepts: bool = True, **options: Any) -> None:
        self.own = OwnLanes(jitter=lambda: 0.0, **options)
        self.exists, self.deletes, self.accepts = exists, deletes, accepts
        self.now = 0.0
        self.activities: dict[str, Activity] = {}
        self.done: list[str] = []

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            self.done.append(action.key or action.do.name)
            if action.do is Do.CONSUME and self.accepts:
                self.activities[action.lane] = QUIET
            if action.do is Do.LEAVE:
                self.activities.pop(action.lane, None)
            if action.do in (Do.LOOK, Do.CONSUME, Do.DELETE):
                yes = {Do.LOOK: self.exists, Do.CONSUME: self.accepts, Do.DELETE: self.deletes}[action.do]
                self.do(self.own.answered(action, yes, self.now))

    def hear(self, key: str) -> list[str]:
        self.done.clear()
        self.do(self.own.heard(key, LANE, TENANT, self.now))
        return [*self.done]

    def wait(self, seconds: float) -> list[str]:
        """Let time pass in small steps."""
        self.done.clear()
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.do(self.own.observed(self.activities, self.now))
        return [*self.done]


@pytest.mark.parametrize("key", [NEW, ACTIVE, KEPT])
def test_a_lane_is_consumed_once_when_it_is_announced(key: str) -> None:
    worker = Worker()
    assert worker.hear(key) == ["LOOK", "CONSUME"]
    assert worker.own.consumed == {LANE: TENANT}
    assert worker.hear(key) == []
    assert worker.wait(IDLE / 2) == []


def test_a_lane_that_does_not_exist_is_not_consumed() -> None:
    worker = Worker(exists=False)
    assert worker.hear(NEW) == ["LOOK"]
    assert worker.own.consumed == {}
    assert worker.wait(2 * IDLE) == []


def test_an_idle_lane_is_deleted() -> None:
    worker = Worker()
    worker.hear(NEW)
    assert worker.wait(IDLE - 1) == []
    assert worker.wait(2) == [CLOSE, "LEAVE", "DELETE", GONE]
    assert worker.own.consumed == {}
    assert worker.wait(2 * IDLE) == []


def test_the_own_proposal_is_heard_and_changes_nothing() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE)
    assert worker.done == [CLOSE, "LEAVE"]
    assert worker.hear(CLOSE) == []
    assert worker.wait(NOTICE) == ["DELETE", GONE]
    assert worker.hear(GONE) == []


def test_a_lane_that_the_broker_keeps_is_consumed_again() -> None:
    worker = Worker(deletes=False)
    worker.hear(NEW)
    assert worker.wait(IDLE + 1) == [CLOSE, "LEAVE", "DELETE", KEPT, "LOOK", "CONSUME"]
    assert worker.wait(IDLE - 2) == []


def test_deliveries_and_publishers_keep_a_lane() -> None:
    worker = Worker()
    worker.hear(NEW)
    for count in range(1, 5):
        assert worker.wait(IDLE - 10) == []
        worker.activities[LANE] = Activity(True, count, 0)
        worker.wait(1)
    assert worker.wait(IDLE - 10) == []
    assert worker.hear(ACTIVE) == []
    assert worker.wait(IDLE - 10) == []
    worker.activities[LANE] = Activity(True, 4, 1)  # one is in hand, for an hour
    assert worker.wait(3600) == []


def test_each_worker_proposes_at_another_time() -> None:
    times = []
    for draw in (0.0, 0.5, 1.0):
        worker = Worker()
        worker.own._jitter = lambda draw=draw: draw
        worker.hear(NEW)
        worker.wait(IDLE * (1 + JITTER * draw) - 1)
        assert worker.done == []
        assert worker.wait(2)[:1] == [CLOSE]
        times.append(worker.now)
    assert len({*times}) == 3


def test_an_idle_worker_leaves_when_another_proposes() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE / 2)
    assert worker.hear(CLOSE) == ["LEAVE"]
    assert worker.wait(PATIENCE - 1) == []
    assert worker.hear(GONE) == []
    assert worker.wait(2 * IDLE) == []


def test_a_worker_with_messages_stays() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE / 2 - 1)
    assert worker.hear(CLOSE) == []
    worker.wait(IDLE / 2 - 2)
    worker.activities[LANE] = Activity(True, 1, 1)
    worker.wait(0.25)
    assert worker.hear(CLOSE) == [ACTIVE]
    assert worker.own.consumed


@pytest.mark.parametrize("key", [NEW, ACTIVE, KEPT])
def test_a_lane_that_was_left_is_consumed_again_when_it_is_announced(key: str) -> None:
    for proposer in (True, False):
        worker = Worker()
        worker.hear(NEW)
        worker.wait(IDLE if proposer else IDLE / 2)
        worker.hear(CLOSE)
        assert worker.hear(key) == ["LOOK", "CONSUME"]
        assert worker.wait(IDLE / 2) == []  # and it is not deleted


def test_a_lane_that_was_left_is_consumed_again_if_the_proposer_died() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE / 2)
    worker.hear(CLOSE)
    assert worker.wait(PATIENCE) == ["LOOK", "CONSUME"]
    worker.wait(IDLE / 2)
    worker.hear(CLOSE)
    worker.exists = False  # it died after it had deleted the lane
    assert worker.wait(PATIENCE) == ["LOOK"]
    assert worker.wait(2 * IDLE) == []


def test_a_late_message_makes_a_worker_come_back() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE / 2)
    worker.hear(CLOSE)
    worker.activities[LANE] = Activity(False, 1, 1)
    assert worker.wait(0.25) == [ACTIVE, "LOOK", "CONSUME"]


def test_a_lane_is_not_deleted_before_its_channel_is_closed() -> None:
    worker = Worker()
    worker.hear(NEW)
    assert worker.wait(IDLE) == [CLOSE, "LEAVE"]
    worker.activities[LANE] = Activity(False, 0, 0)
    assert worker.wait(NOTICE + PATIENCE - 0.25) == []
    assert worker.wait(0.25) == [KEPT, "LOOK", "CONSUME"]
    worker.wait(IDLE)
    worker.activities[LANE] = Activity(False, 0, 0)
    assert worker.wait(NOTICE) == []
    worker.activities.clear()
    assert worker.wait(0.25) == ["DELETE", GONE]


def test_a_process_that_was_stopped_deletes_nothing() -> None:
    """A publisher may have announced the lane meanwhile, and have begun to use it."""
    worker = Worker()
    worker.hear(NEW)
    assert worker.wait(IDLE) == [CLOSE, "LEAVE"]
    worker.now += 600.0
    assert worker.wait(0.25) == [KEPT, "LOOK", "CONSUME"]
    assert worker.wait(IDLE - 1) == []
    assert worker.wait(2) == [CLOSE, "LEAVE", "DELETE", GONE]


def test_a_lane_that_was_deleted_under_its_consumer_is_forgotten() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.activities[LANE] = Activity(False, 0, 0)
    assert worker.wait(ABSENCE + 0.25) == ["LOOK"]  # it exists: the consumer is about to have it again
    assert worker.own.consumed
    worker.exists = False
    assert worker.wait(ABSENCE + 0.25) == ["LOOK", "LEAVE"]
    assert not worker.own.consumed
    assert worker.wait(2 * IDLE) == []


def test_a_lane_that_the_user_removed_is_consumed_again() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.activities.clear()
    assert worker.wait(ABSENCE + 0.25) == ["LOOK", "CONSUME"]


def test_news_of_lanes_that_are_not_known() -> None:
    worker = Worker()
    assert worker.hear(CLOSE) == worker.hear(GONE) == []
    worker.hear(NEW)
    assert worker.hear(GONE) == []  # it was declared again before this was heard
    assert worker.own.consumed


def test_a_consumer_that_refuses_is_asked_again() -> None:
    worker = Worker(accepts=False)
    assert worker.hear(NEW) == ["LOOK", "CONSUME"]
    assert worker.own.consumed == {}
    assert worker.wait(RETRY) == ["LOOK", "CONSUME"]
    worker.accepts = True
    assert worker.wait(RETRY) == ["LOOK", "CONSUME"]
    assert worker.own.consumed


def test_without_a_connection_nothing_stays_left() -> None:
    worker = Worker()
    worker.hear(NEW)
    worker.wait(IDLE / 2)
    worker.hear(CLOSE)
    worker.done.clear()
    worker.do(worker.own.deaf(worker.now))
    assert worker.done == ["CONSUME"]
    assert worker.own.deaf(worker.now) == []


def test_lanes_that_cannot_be_deleted_safely_are_kept() -> None:
    worker = Worker(keeps=True)
    worker.hear(NEW)
    assert worker.wait(3 * IDLE) == []


def test_time_until_something_is_due() -> None:
    worker = Worker()
    worker.hear(NEW)
    assert worker.own.wait(worker.now) == float("inf")
    worker.wait(IDLE)
    assert worker.own.wait(worker.now) == NOTICE


class Checked(Worker):
    """A worker whose every deletion is checked."""

    def __init__(self) -> None:
        super().__init__()
        #: When it proposed to delete the lane, unless it has heard since that this must not be.
        self.proposed: float | None = None

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if action.key == CLOSE:
                self.proposed = self.now
            if action.do is Do.DELETE:
                assert self.proposed is not None
                assert self.now - self.proposed >= NOTICE
                assert LANE not in self.activities
                self.proposed = None
            super().do([action])

    def hear(self, key: str) -> list[str]:
        if key in (NEW, ACTIVE, KEPT):
            self.proposed = None
        return super().hear(key)


class AnyWorker(RuleBasedStateMachine):
    """Random announcements, deliveries, answers and times, against what must always hold."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Checked()

    @rule(key=st.sampled_from(KEYS))
    def hear(self, key: str) -> None:
        worker = self.worker
        known = worker.own.is_consumed(LANE)
        worker.hear(key)
        if key in (NEW, ACTIVE, KEPT):
            assert worker.own.is_consumed(LANE) == (known or (worker.exists and worker.accepts))

    @rule(seconds=st.sampled_from([0.25, NOTICE, PATIENCE, RETRY, IDLE / 2, IDLE * 1.5]))
    def wait(self, seconds: float) -> None:
        self.worker.wait(seconds)

    @rule(exists=st.booleans(), deletes=st.booleans(), accepts=st.booleans())
    def change(self, exists: bool, deletes: bool, accepts: bool) -> None:
        self.worker.exists, self.worker.deletes, self.worker.accepts = exists, deletes, accepts

    @rule(count=st.integers(0, 2), unsettled=st.integers(0, 2), subscribed=st.booleans())
    def deliver(self, count: int, unsettled: int, subscribed: bool) -> None:
        before = self.worker.activities.get(LANE)
        if before is not None:
            self.worker.activities[LANE] = Activity(subscribed, before.delivered + count, unsettled)

    @rule()
    def lose_the_connection(self) -> None:
        self.worker.proposed = None
        self.worker.do(self.worker.own.deaf(self.worker.now))

    @rule()
    def be_left_alone(self) -> None:
        """A lane that exists and is known is consumed after a while, whatever was before."""
        worker = self.worker
        worker.exists, worker.accepts, worker.deletes = True, True, False
        known = LANE in worker.own._lanes
        worker.wait(RETRY + PATIENCE)
        assert not known or worker.own.is_consumed(LANE) or worker.own.wait(worker.now) <= NOTICE

    @invariant()
    def what_is_consumed_is_what_the_consumer_has(self) -> None:
        assert self.worker.own.is_consumed(LANE) == (LANE in self.worker.activities)


AnyWorker.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestAnyWorker = AnyWorker.TestCase
