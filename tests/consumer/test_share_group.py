"""Shares across workers: charges for what was served elsewhere, and where they lead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock

from fairsched import ConfigurationError, FairQueue, Limit, Queue
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.sharing import share_group, share_message
from fairsched.consumer.sharing.share_group import GroupBalance, ShareGroup
from fairsched.consumer.worker_queues import WorkerQueues
from fairsched.errors import LONGEST_THROTTLE


class Worker:
    """A worker with a backlog of every queue that it consumes, which serves so much a second."""

    def __init__(self, weights: Mapping[str, int], speed: int) -> None:
        self.queue = FairQueue(weights)
        self.weights, self.speed = weights, speed
        self.balance = GroupBalance()
        self.rates: dict[str, float] = {}
        self.part = speed // share_group.PARTS
        for name in weights:
            self.queue.put_many(name, range(self.part + 1))  # one is left whichever slot is served

    def serve(self) -> None:
        served = dict.fromkeys(self.weights, 0)
        for _part in range(share_group.PARTS):
            for name, rate in self.balance.charges.items():
                self.queue.charge(
                    name, max(1, round(rate / share_group.PARTS)), max(1, round(self.balance.limits[name]))
                )
            for name, count in Counter(self.queue.get_many(self.part).slots).items():
                self.queue.put_many(name, range(count))
                served[name] += count
        self.rates = {name: float(count) for name, count in served.items()}


def run(workers: list[Worker], seconds: int, begin: int = 0) -> dict[str, float]:
    """Let workers serve, and tell each other; return what was served of each queue in the last quarter, per second."""
    total: dict[str, float] = {}
    for second in range(begin, begin + seconds):
        for worker in workers:
            worker.serve()
        for worker in workers:
            for number, other in enumerate(workers):
                if other is not worker:
                    worker.balance.hear(str(number), other.rates, other.weights, share_group.LOST_AFTER, second)
        for worker in workers:
            worker.balance.update(
                worker.rates, {name: float(weight) for name, weight in worker.weights.items()}, second
            )
        if second >= begin + seconds * 3 // 4:
            for worker in workers:
                for name, rate in worker.rates.items():
                    total[name] = total.get(name, 0.0) + rate
    return {name: rate / (seconds - seconds * 3 // 4) for name, rate in total.items()}


def max_min(workers: list[Worker]) -> dict[str, float]:
    """Return the max-min fair service of each queue, by filling up in small steps: an oracle."""
    weights = {name: weight for worker in workers for name, weight in worker.weights.items()}
    served = dict.fromkeys(weights, 0.0)
    given = [dict.fromkeys(worker.weights, 0.0) for worker in workers]
    # Each worker in turn divides its service anew, so that those that are furthest behind have it, until nothing moves.
    for _ in range(300):
        before = dict(served)
        for worker, mine in zip(workers, given, strict=True):
            others = {name: served[name] - mine[name] for name in mine}
            low, high = 0.0, 2.0 * sum(one.speed for one in workers)
            for _ in range(60):
                level = (low + high) / 2
                need = sum(max(0.0, level * weights[name] - others[name]) for name in mine)
                low, high = (level, high) if need < worker.speed else (low, level)
            for name in mine:
                served[name] -= mine[name]
                mine[name] = max(0.0, low * weights[name] - others[name])
                served[name] += mine[name]
        if served == before:
            break
    return served


def test_the_oracle() -> None:
    found = max_min([Worker({"gold": 3, "free": 1}, 400), Worker({"free": 1}, 400)])
    assert found == pytest.approx({"gold": 400, "free": 400})
    found = max_min(
        [Worker({"gold": 3, "free": 1}, 400), Worker({"gold": 3, "free": 1}, 400), Worker({"free": 1}, 100)]
    )
    assert found == pytest.approx({"gold": 675, "free": 225})


def test_without_others_nothing_is_charged() -> None:
    one = Worker({"gold": 3, "free": 1}, 400)
    assert run([one], 8) == pytest.approx({"gold": 300, "free": 100}, rel=0.02)
    assert one.balance.charges == {}


def test_a_queue_that_another_worker_serves_stands_back() -> None:
    workers = [Worker({"gold": 1, "free": 1}, 400), Worker({"free": 1}, 400)]
    alone = {name: sum(worker.speed for worker in workers) / 2 for name in ("gold", "free")}
    assert run(workers, 40) == pytest.approx(alone, rel=0.03)


def test_shares_come_back_when_a_worker_is_gone() -> None:
    workers = [Worker({"gold": 1, "free": 1}, 400), Worker({"free": 1}, 400)]
    run(workers, 40)
    assert workers[0].balance.charges["free"] > 0
    found = run(workers[:1], 12, begin=40)
    assert found == pytest.approx({"gold": 200, "free": 200}, rel=0.03)
    assert workers[0].balance.charges == {}


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=2),
    st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.integers(1, 4)), min_size=2, max_size=4),
)
def test_the_whole_is_max_min_fair(weights: dict[str, int], plans: list[tuple[set[str], int]]) -> None:
    workers = []
    for names, speed in plans:
        mine = {name: weights[name] for name in sorted(names) if name in weights}
        if mine:
            workers.append(Worker(mine, 400 * speed))
    found, wanted = run(workers, 120), max_min(workers)
    whole = sum(worker.speed for worker in workers)
    assert sum(found.values()) == pytest.approx(whole)
    for name in wanted:
        assert abs(found[name] - wanted[name]) <= 0.05 * whole, (found, wanted)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 10**6)), max_size=20), st.integers(1, 100))
def test_a_charge_is_bounded_and_idles_no_consumer(charges: list[tuple[str, int]], most: int) -> None:
    queue = FairQueue({"a": 1, "b": 1, "c": 1})
    queue.put_many("a", range(3 * most + 10))
    queue.put_many("c", range(3 * most + 10))
    for name, cost in charges:
        assert queue.charge(name, cost, most)
        assert queue.stats()[name].deficit >= -most
    before = queue.stats()["a"].work
    assert before == 0  # it is no work of here
    # Of a, no more than the debt is missing in a run of service; b has nothing, and is not charged.
    served = [queue.get(False)[0] for _ in range(2 * most + 8)]
    assert served.count("a") >= len(served) // 2 - most - 1
    assert queue.stats()["b"].deficit == 0
    for _ in range(queue.qsize()):
        queue.get(False)


def test_what_a_charge_refuses() -> None:
    queue = FairQueue({"a": 1})
    assert queue.charge("nobody", 1, 1) is False
    with pytest.raises(ValueError, match="cost"):
        queue.charge("a", 0, 1)
    with pytest.raises(ValueError, match="most"):
        queue.charge("a", 1, -1)


# Messages of the group ----------------------------------------------------------------------------------------------


def group(**options: Any) -> ShareGroup:
    settings = ConsumerSettings("amqp://localhost", {"gold": 3, "free": 1}, share_group="g", **options)
    return ShareGroup("g", settings, WorkerQueues(settings))


GOOD = {"from": "other", "cost": "constant", "lasts": 3.5, "rates": {"'gold'": 5.0}, "wanted": ["'gold'"]}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, b'{"from": 1}',
        *(json.dumps({**GOOD, **wrong}).encode() for wrong in (
            {"rates": {"'gold'": -1}}, {"rates": {"'gold'": float("nan")}}, {"rates": {"'gold'": float("inf")}},
            {"rates": {"'gold'": 10**30}}, {"rates": []}, {"rates": {"'gold'": None}}, {"lasts": "long"}, {"wanted": 5},
            {"lasts": -1}, {"lasts": 10**400}, {"rates": {"'gold'": 10**400}},
            {"rates": {str(number): 1 for number in range(share_message.MOST_SLOTS + 1)}},
            {"wanted": ["x"] * (share_message.MOST_SLOTS + 1)},
            {"rates": {"'gold'": 1e18}}, {"rates": {"'gold'": True}}, {"rates": {"'gold'": "5"}}, {"rates": {"": 1}},
            {"rates": {"x" * 1_000: 1}}, {"wanted": ["x" * 1_000]}, {"wanted": [{}]}, {"from": 1},
            {"from": "x" * 1_000}, {"cost": "x" * 10**6}, {"cost": "dearly"}, {"cost": None}, {"lasts": "x" * 10**6},
            {"more": "x" * share_message.MOST_BYTES},
        )),
    ],
)  # fmt: skip
def test_a_message_that_is_not_understood_is_left_alone(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    found = group()
    found._on_message(None, None, None, body)
    assert found._balance._peers == {}
    assert "message ignored" in caplog.text
    assert len(caplog.text) < 500


def test_names_that_are_too_long_are_compared_by_their_digest() -> None:
    long, other = "x" * 10**6, "x" * 10**6 + "y"
    assert share_message.slot_name(long) == share_message.slot_name("x" * 10**6) != share_message.slot_name(other)
    assert share_message.slot_name("gold") == "'gold'"


@given(
    st.dictionaries(st.text(), st.floats(0, 1e300), max_size=30),
    st.sampled_from(sorted(share_message.MOST_RATE)),
    st.floats(0, 1e9),
    st.dictionaries(st.text(), st.floats(0, LONGEST_THROTTLE), max_size=30),
)
def test_every_message_of_ours_is_believed(
    slots: dict[str, float], cost: str, lasts: float, throttles: dict[str, float]
) -> None:
    rates = {share_message.slot_name(slot): rate for slot, rate in slots.items()}
    throttled = {share_message.slot_name(slot): seconds for slot, seconds in throttles.items()}
    claim = share_message.Claim("me", cost, lasts, rates, list(rates), throttled)
    most = share_message.MOST_RATE[cost]
    capped = {name: min(rate, most) for name, rate in rates.items()}
    assert share_message.decode(share_message.encode(claim)) == ("me", cost, lasts, capped, list(rates), throttled)


@given(st.one_of(st.text(max_size=30), st.integers(), st.tuples(st.text(max_size=10), st.integers())))
def test_the_name_of_a_slot_says_which_it_is(slot: object) -> None:
    assert share_message.slot_of(share_message.slot_name(slot)) == slot


def test_the_longest_message_of_ours_is_believed() -> None:
    names = [share_message.slot_name("\0" * 48 + chr(number)) for number in range(0x4E00, 0x4E00 + 3_000)]
    assert {len(name) for name in names} == {share_message.LONGEST_NAME}
    claim = share_message.Claim("s" * 32, "function", 1e-7 / 3, dict.fromkeys(names, 1e17 / 3), names)
    assert len(share_message.decode(share_message.encode(claim)).rates) == share_message.MOST_SLOTS
    assert len(share_message.encode(claim)) <= share_message.MOST_BYTES


def test_what_another_worker_says_of_other_slots_is_not_kept() -> None:
    found = group()
    found._measure(0.0, found._worker_queues.stats())
    said = {**GOOD, "rates": {"'gold'": 5.0, **{f"'{number}'": 1.0 for number in range(1_000)}}}
    found._on_message(None, None, None, json.dumps(said).encode())
    assert found._balance._peers["other"].rates == {"'gold'": 5.0}


def lie(rate: float, lasts: float, times: list[float]) -> list[float]:
    """Return what a worker serves of a queue each second, of which another one says at `times` that it serves it."""
    worker, found = Worker({"gold": 1, "free": 1}, 400), []
    for second in range(60):
        worker.serve()
        found.append(worker.rates["gold"])
        if second in times:
            worker.balance.hear("liar", {"gold": rate}, ["gold", "free"], lasts, second)
        worker.balance.update(worker.rates, {"gold": 1.0, "free": 1.0}, second)
    return found


def test_a_claim_holds_no_queue_back_for_long() -> None:
    """One message, of the highest rate that is believed, is forgotten as a worker that is lost."""
    served = lie(share_message.MOST_RATE["constant"], 60.0, [10])
    assert min(served[11:16]) < 20, "the claim was not counted at all"
    assert min(served[20:]) > 180, served


def test_longer_periods_are_believed_of_a_worker_that_has_them() -> None:
    balance = GroupBalance()
    balance.hear("slow", {"gold": 1.0}, [], 28.0, 0.0)
    assert [balance.peers(now) for now in (3.0, 4.0)] == [1, 0]
    balance.hear("slow", {"gold": 1.0}, [], 28.0, 8.0)
    assert [balance.peers(now) for now in (35.0, 37.0)] == [1, 0]
    balance.hear("slow", {"gold": 1.0}, [], 1e9, 100.0)
    assert [balance.peers(now) for now in (160.0, 160.1)] == [1, 0]
    balance.hear("quick", {"gold": 1.0}, [], 1e9, 100.0)
    balance.hear("quick", {"gold": 1.0}, [], 1e9, 101.0)
    assert [balance.peers(now) for now in (104.0, 105.0)] == [2, 1]


def test_workers_beyond_the_most_do_not_count_until_others_are_gone() -> None:
    balance = GroupBalance()
    for number in range(share_group.MOST_PEERS + 5):
        balance.hear(str(number), {}, [], 3.5, 0.0)
    assert balance.peers(0.0) == share_group.MOST_PEERS
    balance.hear("late", {}, [], 3.5, 4.0)
    assert balance.peers(4.0) == 1
    balance.update({}, {}, 70.0)
    assert balance._peers == {}


def test_those_with_another_cost_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    found = group()
    found._on_message(None, None, None, json.dumps({**GOOD, "cost": "bytes"}).encode())
    assert found._balance._peers == {}
    assert "cost='bytes'" in caplog.text
    found._on_message(None, None, None, json.dumps(GOOD).encode())
    assert found._balance._peers.keys() == {"other"}


# From what a queue shows to what it is charged ----------------------------------------------------------------------


class ManualTime(ManualClock):
    """Replaces the module `time`."""

    monotonic = ManualClock.__call__

    def thread_time(self) -> float:
        return 0.0


class Exchange:
    """Brings what one member publishes to all, at once."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def basic_publish(self, _exchange: str, _key: str, body: bytes) -> None:
        for member in self.members:
            member.group._on_message(None, None, None, body)


class Member:
    """A member of a group that serves so many messages a second, and always has more of each queue."""

    def __init__(self, exchange: Exchange, queues: list[Queue | str], speed: int) -> None:
        settings = ConsumerSettings("amqp://localhost", queues, share_group="g")
        self.worker_queues = WorkerQueues(settings)
        self.queue = self.worker_queues.queues[0]
        self.group = ShareGroup("g", settings, self.worker_queues)
        self.part = speed // share_group.PARTS
        self.names = list(settings.queues)
        for name in self.names:
            self.queue.put_many(name, range(2 * self.part))
        self.in_hand: list[str] = []
        self.exchange = exchange
        exchange.members.append(self)

    def serve(self) -> Counter[str]:
        """Serve for a part of a period: what is in hand meanwhile is put down in the next one."""
        for name in self.in_hand:
            self.queue.release(name)
        self.in_hand = self.queue.get_many(self.part).slots
        for name in self.in_hand:
            self.queue.put(name, 0)
        self.group._step(self.exchange, share_group.PERIOD / share_group.PARTS)
        return Counter(self.in_hand)


def together(plans: list[tuple[list[Queue | str], int]], seconds: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what members with these queues and speeds serve together, in a second of the last quarter."""
    clock, exchange = ManualTime(), Exchange()
    monkeypatch.setattr(share_group, "time", clock)
    members = [Member(exchange, *plan) for plan in plans]
    total: Counter[str] = Counter()
    for number in range(seconds * share_group.PARTS):
        clock.now += share_group.PERIOD / share_group.PARTS
        for member in members:
            found = member.serve()
            if number >= seconds * 3 // 4 * share_group.PARTS:
                total += found
    return Counter({name: round(count / (seconds - seconds * 3 // 4)) for name, count in total.items()})


def test_the_others_are_in_step_though_one_is_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is behind the one that stands back for it; the others are not to be held back alike for that."""
    gold = Queue("gold", limit=Limit(10))  # a part: 40 a second
    found = together([([gold, "a", "b"], 400), (["a"], 400)], 80, monkeypatch)
    assert found == pytest.approx({"gold": 40, "a": 400, "b": 360}, abs=20)


def test_a_slot_at_its_limit_stands_back_for_what_others_serve_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gold = Queue("gold", limit=Limit(60))  # a part: 240 a second, more than it is to have
    found = together([([gold, "a", "b"], 400), (["gold"], 400)], 80, monkeypatch)
    assert found == pytest.approx({"gold": 400, "a": 200, "b": 200}, abs=20)


def test_every_band_is_in_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot served after the others is always behind them."""
    late = Queue("late", band=7)
    found = together([([late, "a", "b"], 400), (["a"], 400)], 80, monkeypatch)
    assert found == pytest.approx({"a": 400, "b": 400}, abs=20)


class PrioritisedMember(Member):
    """A member whose queues have endless messages of given priorities."""

    def __init__(self, exchange: Exchange, queues: dict[str, list[int]], speed: int) -> None:
        settings = ConsumerSettings("amqp://localhost", list(queues), share_group="g", band="property:priority")
        self.worker_queues = WorkerQueues(settings)
        self.queue = self.worker_queues.queues[0]
        self.group = ShareGroup("g", settings, self.worker_queues)
        self.part = speed // share_group.PARTS
        self.exchange = exchange
        for name, priorities in queues.items():
            for priority in priorities:
                count = 2 * self.part
                self.queue.put_many(name, [priority] * count, priorities=[priority] * count)
        exchange.members.append(self)

    def account(self, refill: Collection[int]) -> Counter[tuple[str, int]]:
        """Serve for a part of a period, and replace what was served of these priorities."""
        found = self.queue.get_many(self.part)
        for name, priority in zip(found.slots, found.items, strict=True):
            if priority in refill:
                self.queue.put(name, priority, priority=priority)
        self.group._step(self.exchange, share_group.PERIOD / share_group.PARTS)
        return Counter(zip(found.slots, found.items, strict=True))


def accounts(
    plans: list[tuple[dict[str, list[int]], int]], seconds: int, clock: ManualTime
) -> Counter[tuple[str, int]]:
    """Return what members serve of each queue and priority together, in a second of the last quarter."""
    exchange = Exchange()
    members = [PrioritisedMember(exchange, *plan) for plan in plans]
    total: Counter[tuple[str, int]] = Counter()
    for number in range(seconds * share_group.PARTS):
        clock.now += share_group.PERIOD / share_group.PARTS
        for member in members:
            found = member.account(range(10))
            if number >= seconds * 3 // 4 * share_group.PARTS:
                total += found
    return Counter({name: round(count / (seconds - seconds * 3 // 4)) for name, count in total.items()})


def test_each_priority_is_in_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a queue is served of one priority does not hold its messages of another one back."""
    clock = ManualTime()
    monkeypatch.setattr(share_group, "time", clock)
    same = accounts([({"a": [3], "b": [3]}, 400), ({"a": [3]}, 400)], 80, clock)
    assert same == pytest.approx({("a", 3): 400, ("b", 3): 400}, abs=20)
    other = accounts([({"a": [3], "b": [3]}, 400), ({"a": [5]}, 400)], 80, clock)
    assert other == pytest.approx({("a", 5): 400, ("a", 3): 200, ("b", 3): 200}, abs=20)
    strict = accounts([({"a": [3, 5], "b": [3, 5]}, 400), ({"a": [5]}, 400)], 80, clock)
    assert strict == pytest.approx({("a", 5): 400, ("b", 5): 400}, abs=20)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["put", "get", "charge"])), max_size=60
    )
)
def test_priorities_are_strict_and_work_is_kept_whatever_is_charged(steps: list[tuple[str, int, str]]) -> None:
    queue = FairQueue({"a": 1, "b": 2}, priorities=True)
    waiting: Counter[tuple[str, int]] = Counter()
    served: Counter[tuple[str, int]] = Counter()
    for name, priority, what in steps:
        if what == "put":
            queue.put(name, priority, priority=priority)
            waiting[name, priority] += 1
        elif what == "charge":
            assert queue.charge(name, 7, 9, priority)
        elif waiting.total():
            slot, found = queue.get()
            assert found == max(one for (_, one), count in waiting.items() if count)
            waiting[slot, found] -= 1
            served[slot, found] += 1
        figures = queue.stats(by_priority=True)
        assert {key: one.work for key, one in figures.items() if one.work} == {k: n for k, n in served.items() if n}
        assert {key: one.queued for key, one in figures.items() if one.queued} == {
            k: n for k, n in waiting.items() if n
        }
        assert {slot: one.work for slot, one in queue.stats().items()} == {
            slot: sum(n for (of, _), n in served.items() if of == slot) for slot in "ab"
        }


def test_a_slot_at_its_limit_is_charged() -> None:
    queue = FairQueue({"gold": 1, "free": 1})
    queue.set_limit("gold", Limit(1))
    queue.put_many("gold", range(3))
    queue.put_many("free", range(10))
    assert {queue.get()[0], queue.get()[0]} == {"gold", "free"}
    assert queue.charge("gold", 4, 4)
    assert queue.stats()["gold"].at_limit
    assert queue.stats()["gold"].deficit == -4
    queue.release("gold")
    assert [queue.get()[0] for _ in range(5)] == ["free"] * 4 + ["gold"]
    assert queue.stats()["free"].at_limit is False


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ConfigurationError, match="share_group must be at most"):
        ShareGroup("g" * 240, group()._settings, None)  # type: ignore[arg-type]
