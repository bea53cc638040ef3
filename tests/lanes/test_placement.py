"""Which lane a message goes to, and which tenants are hot, against a plain model that keeps every message."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairsched.config.lanes import Lanes
from fairsched.lanes import Placement

LANES = Lanes("orders", key="header:tenant", buckets=4)


class Model:
    """All messages, and the hot tenants in the order in which they became hot."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, float]] = []
        self.lasts: dict[str, float] = {}
        self.hot: dict[str, bool] = {}  # tenant -> opened
        self.fresh: list[str] = []
        self.now = -math.inf

    def count(self, tenant: str) -> int:
        return sum(1 for name, at in self.messages[-2048:] if name == tenant and at >= self.now - 10)

    def last(self, tenant: str) -> float:
        return self.lasts.get(tenant, -math.inf)

    def add(self, tenant: str, now: float) -> None:
        del self.messages[:-2048]
        self.now = max(self.now, now)
        if tenant in self.hot and self.now - self.last(tenant) > 300:
            del self.hot[tenant]
        self.messages.append((tenant, self.now))
        self.lasts[tenant] = self.now

    def heat(self, tenant: str) -> None:
        if tenant in self.hot or self.count(tenant) < 32:
            return
        if len(self.hot) >= 64:
            idle = min(self.hot, key=self.last)
            if self.count(idle) >= 16:
                return
            del self.hot[idle]
        self.hot[tenant] = False
        self.fresh.append(tenant)

    def lane(self, tenant: str) -> str:
        return LANES.own_lane_of(tenant) if self.hot.get(tenant) else LANES.bucket_of(tenant)


NAMES = st.integers(0, 80).map(lambda number: f"tenant {number}")


class Placing(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.model = Model()
        self.placement = Placement(LANES)

    @rule(tenant=NAMES, times=st.integers(1, 33), pause=st.sampled_from([0, 0, 0.25]))
    def place(self, tenant: str, times: int, pause: float) -> None:
        for _ in range(times):
            self.now += pause
            self.model.add(tenant, self.now)
            expected = self.model.lane(tenant)
            self.model.heat(tenant)
            assert self.placement.place(tenant, self.now) == expected

    @rule(first=st.integers(0, 80), count=st.integers(1, 80), times=st.integers(1, 34))
    def place_many(self, first: int, count: int, times: int) -> None:
        tenants = [f"tenant {number}" for number in range(first, first + count)] * times
        for tenant in tenants:
            self.model.add(tenant, self.now)
        found = self.placement.place_many(tenants, self.now)
        for tenant in dict.fromkeys(tenants):
            self.model.heat(tenant)
        assert found == [self.model.lane(tenant) for tenant in tenants]

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0, 10.5, 59.0, 61.0, -3.0, math.nan]))
    def let_time_pass(self, seconds: float) -> None:
        if seconds > 0:
            self.now += seconds

    @rule()
    def open_what_is_fresh(self) -> None:
        expected = [(name, LANES.own_lane_of(name)) for name in self.model.fresh if name in self.model.hot]
        self.model.fresh = []
        found = self.placement.take_fresh()
        assert found == expected
        for name, lane in found:
            assert self.placement.opened(lane)
            self.model.hot[str(name)] = True

    @rule(tenant=NAMES)
    def close(self, tenant: str) -> None:
        assert self.placement.closed(LANES.own_lane_of(tenant)) == (tenant in self.model.hot)
        if tenant in self.model.hot:
            self.model.hot[tenant] = False

    @invariant()
    def active_lanes(self) -> None:
        expected = [
            (name, LANES.own_lane_of(name))
            for name, opened in self.model.hot.items()
            if opened and self.model.last(name) >= self.now - 10
        ]
        assert self.placement.active(self.now) == expected

    @invariant()
    def memory(self) -> None:
        assert self.placement.known_tenants <= 2048 + 64


TestPlacing = Placing.TestCase
TestPlacing.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_a_flood_is_hot_with_its_32nd_message_and_goes_to_its_own_lane_once_it_is_opened() -> None:
    placement = Placement(LANES)
    for _ in range(31):
        assert placement.place("acme", 0.0) == LANES.bucket_of("acme")
    assert placement.take_fresh() == []
    placement.place("acme", 0.0)
    assert placement.take_fresh() == [("acme", "orders.tenant.acme")]
    assert placement.place("acme", 0.0) == LANES.bucket_of("acme")
    assert placement.opened("orders.tenant.acme")
    assert placement.place("acme", 0.0) == "orders.tenant.acme"
    assert placement.place("other", 0.0) == LANES.bucket_of("other")
    assert placement.place("acme", 300.0) == "orders.tenant.acme"
    assert placement.place("acme", 600.5) == LANES.bucket_of("acme")
    assert not placement.opened("orders.tenant.acme")


@pytest.mark.parametrize("settle", ["opened", "closed", "lanes_of"])
def test_a_lane_is_being_opened_until_it_is_settled(settle: str) -> None:
    placement = Placement(LANES)
    for _ in range(32):
        assert not placement.is_opening("acme")
        placement.place("acme", 0.0)
    assert placement.is_opening("acme")
    assert placement.is_opening(b"acme")
    assert not placement.is_opening("other")
    assert placement.opening == 1
    getattr(placement, settle)(["acme"] if settle == "lanes_of" else "orders.tenant.acme")
    assert not placement.is_opening("acme")
    assert placement.opening == 0
    # It is never opened a second time while it is hot, and again when it has become hot again.
    placement.place("acme", 1.0)
    assert placement.opening == 0
    for _ in range(33):
        placement.place("acme", 400.0)
    assert placement.opening == 1


def test_messages_of_more_than_ten_seconds_ago_do_not_count() -> None:
    placement = Placement(LANES)
    for number in range(1000):
        placement.place("acme", number / 3)
    assert placement.take_fresh() == []


def test_a_batch_counts_before_its_first_message_is_placed() -> None:
    placement = Placement(LANES)
    tenants = ["acme"] * 40 + ["other"]
    assert placement.place_many(tenants, 0.0) == [LANES.bucket_of(tenant) for tenant in tenants]
    for _, lane in placement.take_fresh():
        placement.opened(lane)
    assert placement.lanes_of(tenants) == ["orders.tenant.acme"] * 40 + [LANES.bucket_of("other")]
    assert placement.lanes_of(["a stranger", b"acme"]) == [LANES.bucket_of("a stranger"), "orders.tenant.acme"]


def test_ordered_lanes_have_no_hot_tenants() -> None:
    placement = Placement(Lanes("orders", key="header:tenant", ordered=True))
    placement.place_many(["acme"] * 5000, 0.0)
    assert placement.take_fresh() == []


def test_a_million_tenants_take_no_more_memory_than_the_latest_messages() -> None:
    placement = Placement(LANES)
    for begin in range(0, 1_000_000, 10_000):
        tenants = [f"tenant {number}" for number in range(begin, begin + 10_000)]
        placement.place_many(tenants, begin / 10_000)
        assert placement.known_tenants <= 2048 + 64
    # Each is hot for a moment: 64 of them stay.
    for number in range(10_000):
        placement.place_many([f"hot {number}"] * 32, 100.0)
        placement.take_fresh()
    assert placement.known_tenants <= 2048 + 64


def test_hot_tenants_that_nobody_takes_are_not_kept() -> None:
    placement = Placement(LANES)
    for number in range(10_000):
        placement.place_many([f"hot {number}"] * 32, number)
    assert len(placement.take_fresh()) <= 64


class Odd(str):
    """A text that refuses to be compared."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise AssertionError("no tenant is hashed by its own code")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("no tenant is compared by its own code")


@pytest.mark.parametrize(
    "tenant",
    [
        None, "", "x" * 300, "\ud800", "\N{SNOWMAN}", b"\xff\0", bytearray(b"a"), 0, True, -(2**70), 1.0, 1.5, math.nan,
        math.inf, Decimal("1.50"), Decimal("sNaN"), [1, [2]], {"a": []}, (1, 2), Odd("acme"), object,
    ],
    ids=ascii,
)  # fmt: skip
def test_every_tenant_has_the_lanes_that_lanes_names(tenant: Any) -> None:
    placement = Placement(LANES)
    for _ in range(32):
        assert placement.place(tenant, 0.0) == LANES.bucket_of(tenant)
    [(name, lane)] = placement.take_fresh()
    assert lane == LANES.own_lane_of(tenant) == LANES.own_lane_of(name)
    placement.opened(lane)
    assert placement.place_many([tenant], 0.0) == placement.lanes_of([tenant]) == [lane]


@given(tenant=st.text() | st.binary() | st.integers() | st.floats(), buckets=st.integers(1, 1024))
def test_buckets_are_those_of_lanes(tenant: object, buckets: int) -> None:
    lanes = Lanes("n", key="header:tenant", buckets=buckets)
    assert Placement(lanes).place(tenant, 0.0) == lanes.bucket_of(tenant)


def test_many_threads_may_place_messages() -> None:
    placement = Placement(LANES)
    begin = threading.Barrier(5)
    problems: list[str] = []

    def place(which: int) -> None:
        begin.wait()
        for number in range(20_000):
            tenant = f"tenant {which if number % 2 else number}"
            if placement.place(tenant, number / 1000) not in {LANES.bucket_of(tenant), LANES.own_lane_of(tenant)}:
                problems.append(tenant)

    def serve() -> None:
        begin.wait()
        while any(thread.is_alive() for thread in threads[:4]):
            for _tenant, lane in placement.take_fresh():
                placement.opened(lane)
                placement.closed(lane)
                placement.opened(lane)
            placement.active(20.0)

    threads = [threading.Thread(target=place, args=(which,)) for which in range(4)]
    threads.append(threading.Thread(target=serve))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert placement.known_tenants <= 2048 + 64
    placement.place_many(["the last"] * 2048, 20.0)  # each count was exact: those that are gone are forgotten
    assert placement.known_tenants <= 1 + 64
