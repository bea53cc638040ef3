"""Messages that waited too long: which go back, which are kept, and what is reported."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from fairsched import CoDel, ConfigurationError, FairQueue
from fairsched.consumer.requeueing.budget import REMEMBERED, Budget
from fairsched.consumer.requeueing.codel_returns import MAX_RETURNS, Shedding, checked_codel
from fairsched.consumer.requeueing.late_returns import LateReturns
from fairsched.consumer.settings import ConsumerSettings
from fairsched.delivery._counters import Counters
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel

URL = "amqp://guest:guest@localhost/"


class Bench:
    """A worker queue, a law and a clock of its own."""

    def __init__(self, alone: bool = False, **options: Any) -> None:
        codel = checked_codel(CoDel(**{"target": 0.1, "interval": 0.1, **options}), ordered=False)
        assert codel is not None
        self.now = 100.0
        self.alone = alone
        self.counters = Counters()
        self.origin = FakeChannel("q")
        self.worker_queue = FairQueue(default_quantum=1)
        self.tag = 0
        self.late_returns = LateReturns()
        self.shedding = Shedding(
            codel, self.counters, lambda _: self.alone, lambda: "Advice", lambda: self.now,
            late_returns=self.late_returns,
        )  # fmt: skip

    def put(self, count: int = 1, slot: str = "s", body: bytes | None = None, **properties: Any) -> None:
        redelivered = properties.pop("redelivered", False)
        for _ in range(count):
            self.tag += 1
            content = b"%d" % self.tag if body is None else body
            message = Message(
                content, self.tag, redelivered, b"", BasicProperties(**properties), self.origin, arrived=self.now,
            )  # fmt: skip
            self.worker_queue.put(slot, message)

    def pull(self) -> tuple[list[int], int | None]:
        """Take messages until one is to be handled: tags of those that went back, and that one."""
        back = []
        while True:
            try:
                slot, message = self.worker_queue.get(False)
            except queue.Empty:
                return back, None
            if not self.shedding.returns(self.worker_queue, slot, message):
                return back, message.delivery_tag
            back.append(message.delivery_tag)

    def counts(self) -> tuple[int, int, int]:
        found = self.counters.snapshot()
        return found["shed"], found["kept_alone"], found["kept_budget"]


def age(bench: Bench, count: int = 40, **properties: Any) -> None:
    """Let messages wait for so long that the next pull returns some."""
    bench.put(count, **properties)
    bench.now += 1.0
    assert bench.pull() == ([], 1)
    bench.now += 0.5


def test_messages_that_waited_go_back_and_the_rest_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO, "fairsched.consumer"):
        age(bench)
        assert bench.pull() == ([2], 3)
        bench.now += 1.0
        back, handled = bench.pull()
    assert back == list(range(4, 4 + MAX_RETURNS))
    assert handled == 4 + MAX_RETURNS
    assert bench.counts() == (1 + MAX_RETURNS, 0, 0)
    assert bench.origin.settled == [(tag, 1) for tag in [2, *back]]  # requeued
    (said,) = [record.getMessage() for record in caplog.records]
    assert "waited 1.5 s here" in said
    assert "is returned to its queue" in said
    stats = bench.shedding.stats()
    assert stats["dropping"] == ["s"]
    assert stats["slots"]["s"].returned == 1 + MAX_RETURNS


@pytest.mark.parametrize("requeue", [True, False])
def test_a_queue_that_delays_what_is_returned_is_noticed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, requeue: bool
) -> None:
    """What is dead-lettered does not come back: an equal message is another one."""
    bench = Bench(requeue=requeue)
    clock = 1000.0
    monkeypatch.setattr("fairsched.consumer.requeueing.late_returns.time.monotonic", lambda: clock)
    age(bench)
    for _ in range(2):
        [tag, *_], _ = bench.pull()
        counted = BasicProperties(headers={"x-acquired-count": 1})
        bench.late_returns.look(Message(b"%d" % tag, 1000, True, b"", counted, bench.origin, arrived=clock + 5.0))
        clock += 10.0
        bench.now += 1.0
    said = [record.getMessage() for record in caplog.records if "delays messages" in record.getMessage()]
    assert len(said) == requeue


def test_young_messages_are_left_alone() -> None:
    bench = Bench()
    for _ in range(50):
        bench.put(2)
        bench.now += 0.09
        assert bench.pull()[0] == []
        assert bench.pull()[0] == []
    assert bench.counts() == (0, 0, 0)


def test_the_last_of_a_slot_is_never_returned() -> None:
    bench = Bench()
    bench.put(2)
    for _ in range(5):
        bench.now += 10.0
        back, handled = bench.pull()
        assert back == []
        if handled is None:
            bench.put(2)
    assert bench.counts() == (0, 0, 0)


def test_every_slot_has_a_law_of_its_own() -> None:
    bench = Bench()
    bench.put(20, "slow")
    bench.now += 1.0
    assert bench.pull() == ([], 1)
    bench.put(20, "quick")
    bench.now += 0.05
    taken = [bench.pull() for _ in range(2)]
    assert [back for back, _ in taken] == [[], []]
    bench.now += 0.06
    slow = [tag for back, _ in (bench.pull() for _ in range(2)) for tag in back]
    assert slow
    assert max(slow) <= 20


def test_alone_it_returns_nothing_and_says_what_would_help(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(alone=True)
    with caplog.at_level(logging.INFO, "fairsched.consumer"):
        age(bench)
        assert bench.pull() == ([], 2)
        bench.now += 5.0
        assert bench.pull() == ([], 3)
        bench.now += 5.0
        assert bench.pull() == ([], 4)
    shed, alone, budget = bench.counts()
    assert (shed, budget) == (0, 0)
    assert alone >= 2
    assert bench.origin.settled == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert "this queue has no other consumer" in said
    assert "Advice" in said
    bench.alone = False  # another consumer joins
    bench.now += 5.0
    assert len(bench.pull()[0]) == MAX_RETURNS


def test_alone_but_asked_to_it_returns_all_the_same() -> None:
    bench = Bench(alone=True, when_alone=True)
    age(bench)
    assert bench.pull() == ([2], 3)


def test_dead_letters_need_no_company_and_no_budget() -> None:
    bench = Bench(alone=True, requeue=False, budget=0)
    age(bench, redelivered=True)
    assert bench.pull() == ([2], 3)
    assert bench.origin.settled == [(2, 2)]  # not requeued


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({}, False),
        ({"redelivered": True}, True),
        ({"redelivered": True, "headers": {"x-delivery-count": 1}}, False),
        ({"redelivered": True, "headers": {"x-delivery-count": 2}}, False),
        ({"redelivered": True, "headers": {"x-delivery-count": 3}}, True),
        ({"redelivered": True, "headers": {"x-delivery-count": 0, "x-acquired-count": 3}}, True),
        ({"redelivered": True, "headers": {"x-delivery-count": "many"}}, True),
    ],
)
def test_a_budget_for_each_message(properties: dict[str, Any], kept: bool) -> None:
    bench = Bench()
    age(bench, **properties)
    assert bench.pull() == (([], 2) if kept else ([2], 3))
    assert bench.counts() == (0 if kept else 1, 0, 1 if kept else 0)


def message(body: bytes, redelivered: bool = True, queue: str = "q") -> Message:
    return Message(body, 1, redelivered, b"", BasicProperties(message_id="m"), FakeChannel(queue))


def test_a_classic_queue_does_not_count_so_we_do() -> None:
    budget = Budget(3)
    assert not budget.grant(message(b"a"))  # another consumer returned it, and it is not known how often
    assert budget.grant(message(b"a", redelivered=False))
    assert budget.grant(message(b"a"))
    assert budget.grant(message(b"a"))
    assert not budget.grant(message(b"a"))
    assert not budget.grant(message(b"b"))
    assert not budget.grant(message(b"a", queue="other"))


def test_properties_as_they_were_received() -> None:
    raw = bytes(12) + b"".join(BasicProperties(message_id="m", headers={"k": 1}).encode())
    budget = Budget(3)
    for redelivered in (False, True, True):
        assert budget.grant(Message(b"a", 1, redelivered, b"", raw, FakeChannel("q")))
    assert not budget.grant(Message(b"a", 1, True, b"", raw, FakeChannel("q")))
    other = bytes(12) + b"".join(BasicProperties(message_id="n", headers={"k": 1}).encode())
    assert not budget.grant(Message(b"a", 1, True, b"", other, FakeChannel("q")))


def test_a_count_that_never_grows_does_not_grant_for_ever() -> None:
    budget = Budget(3)
    forged = [Message(b"a", tag, True, b"", BasicProperties(headers={"x-delivery-count": 1}), FakeChannel("q"))
              for tag in range(9)]  # fmt: skip
    assert [budget.grant(one) for one in forged] == [True] * 3 + [False] * 6


def test_headers_that_cannot_be_decoded_grant_nothing() -> None:
    broken = bytes(12) + b"\x20\x00" + b"\x00\x00\x00\x04\x01k?!"
    assert not Budget(3).grant(Message(b"a", 1, True, b"", broken, FakeChannel("q")))


def test_only_the_latest_returns_are_remembered() -> None:
    budget = Budget(3)
    assert budget.grant(message(b"first", redelivered=False))
    for number in range(REMEMBERED):
        assert budget.grant(message(b"%d" % number, redelivered=False))
    assert not budget.grant(message(b"first"))
    assert budget.grant(message(b"0"))


def test_no_budget_no_returns() -> None:
    assert not Budget(0).grant(message(b"a", redelivered=False))


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_no_message_is_granted_more_than_its_budget(limit: int, events: list[tuple[int, bool]]) -> None:
    """Messages come and go back, in any order; another consumer may have returned them before they first come here."""
    budget = Budget(limit)
    returns: dict[int, int] = {}
    for number, elsewhere in events:
        if elsewhere and number not in returns:
            returns[number] = limit  # there it had all of its returns
        before = returns.get(number, 0)
        granted = budget.grant(message(b"%d" % number, redelivered=before > 0))
        assert granted == (before < limit)
        returns[number] = before + granted


def test_an_object_for_properties_is_remembered_as_well_as_bytes() -> None:
    one, other = message(b"a"), message(b"a")
    assert one.raw_properties == other.raw_properties != b""
    assert Message(b"", 1, False, b"", b"raw", FakeChannel("q")).raw_properties == b"raw"


def test_many_tenants_leave_no_laws_behind() -> None:
    bench = Bench()
    for number in range(3000):
        bench.put(1, f"tenant-{number}")
        assert bench.pull()[0] == []
    assert len(bench.shedding.stats()["slots"]) <= 1025


def test_workers_side_by_side_lose_no_message() -> None:
    bench = Bench()
    bench.put(4000)
    bench.now += 10.0
    handled: list[int] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        while True:
            bench.now += 0.001
            _, tag = bench.pull()
            if tag is None and not bench.worker_queue.qsize():
                return
            if tag is not None:
                handled.append(tag)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    back = [tag for tag, _ in bench.origin.settled]
    assert sorted(handled + back) == list(range(1, 4001))
    assert len(back) == bench.counts()[0] > 0


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"codel": 0.1}, "codel must be a fairsched.CoDel or None, got 0.1"),
        ({"ordering_key": "header:k"}, "codel with an ordering_key would break the order"),
    ],
)
def test_refused_options(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        ConsumerSettings(URL, ["q"], **{"codel": CoDel(), **options})


def test_settings() -> None:
    assert ConsumerSettings(URL, ["q"]).codel is None
    law = CoDel(0.2, 0.4, min_backlog=2, law="linux")
    settings = ConsumerSettings(URL, ["q"], codel=law)
    assert settings.codel is not None
    assert repr(settings.codel) == repr(law)[:-1] + f", max_returns={MAX_RETURNS})"
    assert settings.asked == ("q",)
    own = ConsumerSettings(URL, ["q"], codel=CoDel(max_returns=2, budget=1, when_alone=True))
    assert repr(own.codel) == repr(CoDel(max_returns=2, budget=1, when_alone=True))
    assert own.asked == ()
    final = CoDel(requeue=False)
    ordered = ConsumerSettings(URL, ["q"], codel=final, ordering_key="header:k", workers=4)
    assert ordered.codel is not None
    assert not ordered.codel.requeue
    assert ordered.asked == ()


def test_worker_queues_of_one_slot_are_judged_apart_and_added_up() -> None:
    bench = Bench(requeue=False)
    other = FairQueue(default_quantum=1)
    judge: Callable[..., bool] = bench.shedding.returns
    for worker_queue in (bench.worker_queue, other):
        waiting = message(b"x", redelivered=False)
        waiting.arrived = bench.now
        assert not judge(worker_queue, "s", waiting)
    assert bench.shedding.stats()["slots"]["s"].asked == 2
