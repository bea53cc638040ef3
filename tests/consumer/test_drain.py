"""The time to drain: its arithmetic, the page that answers with it, and what is asked of the embedded broker."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually

from fairsched import Broker, ConnectionFailed, Consumer, Lanes, Publisher, Queue, QueueSource, Tenant
from fairsched.cli.broker import Session
from fairsched.cli.scalepage import described, scale_pages
from fairsched.consumer.drain_time import drain_watch, queue_counts
from fairsched.consumer.drain_time.drain import (
    MOST_TENANTS,
    Drain,
    HandlerTimes,
    Standing,
    TenantDrain,
    drain_seconds,
    listed_tenants,
    queue_drain,
    tenant_backlogs,
    total_seconds,
)

DOCS = Path(__file__).parents[2] / "docs"
NOWHERE = "amqp://127.0.0.1:9"


# Arithmetic ------------------------------------------------------------------------------------------------------


def test_the_printed_example() -> None:
    """What the page prints is what comes of the numbers that it names."""
    orders = queue_drain("orders", Standing(ready=1180, consumers=2, unsettled=20), 0.1, 4)
    backlogs = tenant_backlogs({"acme": 12, "gold": 4}, {}, shared_ready=1180, consumers=2)
    tenants = [TenantDrain(name, drain_seconds(count, 0.1, 8), count, 0.1) for name, count in backlogs.items()]
    found = Drain(total_seconds([orders]), orders.backlog, 0.002, (orders,), tuple(tenants))
    [printed] = re.findall(r"```json\n(.*?)```", (DOCS / "howto/scaling.md").read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(printed) == described(found)


def test_every_field_is_documented_and_no_other() -> None:
    page = (DOCS / "reference/scale.md").read_text(encoding="utf-8")
    tables = [re.findall(r"(?m)^\| `(\w+)` \|", table) for table in page.split("| field")[1:]]
    unknown = queue_drain("orders", Standing(1, 1, 0), None, 1)
    found = described(Drain(None, 1, 0.0, (unknown,), (TenantDrain("acme", None, 1, None),)))
    assert [sorted(table) for table in tables] == [
        sorted(one) for one in (found, found["queues"][0], found["tenants"][0])
    ]


def test_no_handler_time_is_no_number_unless_there_is_no_backlog() -> None:
    assert drain_seconds(1, None, 1) is None
    assert drain_seconds(0, None, 1) == 0.0
    known, unknown = queue_drain("a", Standing(10, 2, 5), 3.0, 4), queue_drain("b", Standing(1, 1, 0), None, 4)
    assert (known.seconds, known.backlog, known.workers) == (20 * 3.0 / 8, 20, 8)
    assert total_seconds([known, unknown]) is None
    assert total_seconds([known, queue_drain("b", Standing(0, 1, 0), None, 4), known]) == 15.0
    assert total_seconds([]) == 0.0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(0, 10_000), st.floats(0.001, 100))
def test_the_mean_over_all_processes_is_exact(unsettled: list[int], ready: int, seconds: float) -> None:
    """Each process takes the others to have as much as itself; on the average that is right."""
    answers = [queue_drain("q", Standing(ready, len(unsettled), own), seconds, 3) for own in unsettled]
    mean = sum(one.seconds or 0.0 for one in answers) / len(answers)
    assert mean == pytest.approx((ready + sum(unsettled)) * seconds / (3 * len(unsettled)))


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 50), max_size=20),
    st.dictionaries(st.integers(0, 20), st.integers(0, 500), max_size=5),
    st.integers(0, 100_000),
    st.integers(1, 9),
)
def test_what_is_ready_is_divided_among_tenants(
    buffered: dict[int, int], own: dict[int, int], shared: int, consumers: int
) -> None:
    own_ready: dict[Any, int] = {tenant: own[tenant] for tenant in own if tenant in buffered}
    found = tenant_backlogs({**buffered}, own_ready, shared, consumers)
    assert found.keys() == buffered.keys()
    for tenant, ready in own_ready.items():
        assert found[tenant] == consumers * buffered[tenant] + ready
    others = {tenant: count for tenant, count in buffered.items() if tenant not in own_ready}
    ready = sum(found[tenant] - consumers * buffered[tenant] for tenant in others)
    assert abs(ready - (shared if sum(others.values()) else 0)) <= len(others)  # each is rounded
    for one, count in others.items():  # in proportion
        assert all(found[one] >= found[other] for other, less in others.items() if less <= count)


def test_named_tenants_are_always_listed() -> None:
    backlogs: dict[Any, int] = {number: number for number in range(MOST_TENANTS + 50)}
    found = listed_tenants(backlogs, {3, 149})
    assert len(found) == MOST_TENANTS + 2
    assert found[0] == 149
    assert found[-1] == 3
    assert found == sorted(found, key=lambda tenant: -backlogs[tenant])


def test_handler_times_follow_the_last_hundred_messages() -> None:
    times = HandlerTimes()
    assert times.note("q", 0, 0.0) is None
    assert times.note("q", 10, 1.0) == pytest.approx(0.1)
    assert times.note("q", 10, 1.0) == pytest.approx(0.1)
    assert times.note("q", 20, 4.0) == pytest.approx(0.2)  # half of the first 20 took 0.3 s
    assert times.note("q", 220, 204.0) == pytest.approx(1.0)  # more than a hundred: what was before does not count
    assert times.note("q", 230, 204.0) == pytest.approx(0.9)  # ten of a hundred
    assert times.note("other", 1, 7.0) == pytest.approx(7.0)


def test_handler_times_of_a_queue_that_was_removed_and_added_again() -> None:
    times = HandlerTimes()
    times.note("q", 100, 100.0)
    assert times.note("q", 5, 10.0) == pytest.approx(1.0 + (2.0 - 1.0) * 1.0)
    times.note("r", 1, 1.0)
    times.keep({"r"})
    assert times.note("q", 0, 0.0) is None


# The page --------------------------------------------------------------------------------------------------------


def page(drain: Callable[[], Drain]) -> tuple[HTTPStatus, dict[str, Any]]:
    found = scale_pages(drain)["/scale"]()
    assert found.kind == "application/json"
    return found.code, json.loads(found.text)


def test_names_need_no_escapes_in_a_path() -> None:
    """Keys are fixed words: what KEDA's paths give a meaning to stands in values only."""
    names = ["a.b", "a*|#@!?", 'quoted "x"', "back\\slash", "\ud800 lone", "ünïcode", ""]
    queues = tuple(queue_drain(name, Standing(1, 1, 0), 1.0, 1) for name in names)
    tenants = tuple(TenantDrain(name, 1.0, 1, 1.0) for name in (*names, 7, b"\xff", ("a", 1), None))
    code, found = page(lambda: Drain(7.0, 7, 0.0, queues, tenants))
    assert code == HTTPStatus.OK
    keys = {key for one in (found, *found["queues"], *found["tenants"]) for key in one}
    assert all(re.fullmatch("[a-z_]+", key) for key in keys)
    assert [one["name"] for one in found["queues"]][:4] == names[:4]
    assert [one["name"] for one in found["tenants"]][-4:] == ["7", "\\xff", "('a', 1)", "None"]


def test_an_unknown_time_is_an_error_for_keda() -> None:
    unknown = queue_drain("q", Standing(1, 1, 0), None, 1)
    code, found = page(lambda: Drain(None, 1, 0.0, (unknown,)))
    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert found["seconds"] is None
    assert "no handler time is known" in found["problem"]


@pytest.mark.parametrize("error", [ConnectionFailed("the broker is away"), RuntimeError("no consumer is running")])
def test_a_reason_is_given(error: Exception) -> None:
    def fail() -> Drain:
        raise error

    assert page(fail) == (HTTPStatus.SERVICE_UNAVAILABLE, {"seconds": None, "problem": str(error)})


# A consumer ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the broker asked for each request."""
    monkeypatch.setattr(queue_counts, "FRESH", 0.0)


class Worker:
    """A consumer that runs in a thread; its handler waits for the gate."""

    def __init__(self, url: str, queues: Any, **options: Any) -> None:
        self.consumer = Consumer(url, queues, **options)
        self.gate = threading.Semaphore(0)
        self._thread = threading.Thread(target=self.consumer.run, args=(self.handle,))

    def handle(self, message: Any) -> None:
        self.gate.acquire(timeout=60)

    def let_go(self, count: int) -> None:
        """Let handlers of so many messages return, and wait until they are counted."""
        client = self.consumer._client
        done = client.handled_count + count
        for _ in range(count):
            self.gate.release()
        eventually(lambda: client.handled_count >= done)

    def drain(self) -> Drain:
        return self.consumer._client.drain()

    def __enter__(self) -> Worker:
        self._thread.start()
        eventually(lambda: self.consumer.state.ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop(now=True)
        for _ in range(100_000):
            self.gate.release()
        self._thread.join(30)
        assert not self._thread.is_alive()


def filled(url: str, queues: dict[str, int], **values: Any) -> None:
    with Session(url) as session:
        for queue in queues:
            session.declare(queue, {})
    with Publisher(url) as publisher:
        for queue, count in queues.items():
            for _ in range(count):
                publisher.publish(b"x", queue, **values)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_consumer_that_was_not_started_or_is_closed(url: str) -> None:
    consumer = Consumer(NOWHERE, ["nothing"])
    with pytest.raises(RuntimeError, match="was not started"):
        consumer._client.drain()
    filled(url, {"closing": 0})
    with Consumer(url, ["closing"]) as consumer:
        assert consumer._client.drain().seconds == 0.0
        assert "fairsched-counts" in threads()
    assert "fairsched-counts" not in threads()
    with pytest.raises(RuntimeError, match="closed"):
        consumer._client.drain()


def test_a_consumer_that_is_dropped_takes_its_connection_along(url: str) -> None:
    filled(url, {"dropped": 0})
    consumer = Consumer(url, ["dropped"])
    consumer.__enter__()
    assert consumer._client.drain().seconds == 0.0
    with pytest.warns(ResourceWarning, match="was dropped"):  # noqa: PT031
        del consumer
        gc.collect()
    eventually(lambda: "fairsched-counts" not in threads())


def test_nothing_is_asked_or_measured_before_the_first_request(url: str) -> None:
    filled(url, {"unasked": 1})
    with Worker(url, ["unasked"]) as worker:
        worker.let_go(1)
        assert "fairsched-counts" not in threads()
        counts, _ = worker.consumer._client.counters.durations("unasked").snapshot()["service"]
        assert not any(counts)


def test_the_backlog_is_all_that_is_not_settled(url: str, at_once: None) -> None:
    filled(url, {"slow": 30, "fast": 0})
    with Worker(url, {"slow": 1, "fast": 1}, workers=2, prefetch={"slow": 5, "fast": 5}) as worker:
        eventually(lambda: worker.consumer.state.in_hand == 2)
        found = worker.drain()
        assert (found.seconds, found.backlog) == (None, 30)
        worker.let_go(10)
        eventually(lambda: worker.drain().backlog == 20)
        found = worker.drain()
        slow, fast = found.queues
        assert (slow.name, slow.backlog, slow.ready, slow.workers) == ("slow", 20, 15, 2)
        assert slow.handler_seconds is not None
        assert found.seconds == slow.seconds == 20 * slow.handler_seconds / 2
        assert (fast.backlog, fast.seconds, fast.workers) == (0, 0.0, 2)
        assert found.tenants == ()


def test_processes_count_as_many_as_the_broker_says(url: str, at_once: None) -> None:
    filled(url, {"shared": 40})
    with Worker(url, ["shared"], workers=3, prefetch=6) as one, Worker(url, ["shared"], workers=3, prefetch=6) as two:
        eventually(lambda: one.consumer.state.buffered == two.consumer.state.buffered == 3)
        for worker in (one, two):
            found = worker.drain().queues[0]
            assert (found.workers, found.ready, found.backlog) == (6, 28, 40)


def test_queues_with_one_active_consumer_and_streams(url: str, at_once: None) -> None:
    single = Queue("single", durable=True, arguments={"x-single-active-consumer": True})
    with Worker(url, [single], workers=2), Worker(url, [single], workers=2) as second:
        assert second.drain().queues[0].workers == 2
        settings = second.consumer._client.settings
        settings.queues["single"] = Queue("single", offset="first", prefetch=10)
        counts = {"single": queue_counts.Count(ready=1000, consumers=2)}
        assert drain_watch._standings(settings, counts, second.consumer._client)["single"] == Standing(0, 2, 0)


def test_a_missing_queue_costs_the_others_nothing(url: str, at_once: None) -> None:
    names = [f"part-{number}" for number in range(queue_counts._BATCH + 20)]
    filled(url, dict.fromkeys(names, 1))
    counts = queue_counts.QueueCounts([url])
    counts.start(lambda: False)
    try:
        asked = ["gone-0", *names[:3], "gone-1", "gone-2", *names[3:], "gone-3"]
        found, age = counts.get(asked, 30.0)
        assert found == dict.fromkeys(names, queue_counts.Count(1, 0))
        assert age < 30
        assert counts.get(["gone-0"], 30.0)[0] == {}
    finally:
        counts.end(10.0)


def test_the_broker_is_asked_every_five_seconds_at_most(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(url, {"rarely": 0})
    now = [1000.0]
    monkeypatch.setattr(queue_counts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counts = queue_counts.QueueCounts([url])
    counts.start(lambda: False)
    try:
        assert counts.get(["rarely"], 30.0) == ({"rarely": queue_counts.Count(0, 0)}, 0.0)
        filled(url, {"rarely": 3})
        now[0] += 4.9
        assert counts.get(["rarely"], 30.0) == ({"rarely": queue_counts.Count(0, 0)}, pytest.approx(4.9))
        now[0] += 0.1
        assert counts.get(["rarely"], 30.0) == ({"rarely": queue_counts.Count(3, 0)}, 0.0)
        counts.end(10.0)
        now[0] += 59.9  # the broker does not answer: what it said last is used for a minute
        assert counts.get(["rarely"], 0.0) == ({"rarely": queue_counts.Count(3, 0)}, pytest.approx(59.9))
        now[0] += 0.1
        with pytest.raises(ConnectionFailed, match="has not counted the messages of queues"):
            counts.get(["rarely"], 0.0)
    finally:
        counts.end(10.0)


def test_a_broker_that_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    counts = queue_counts.QueueCounts(["amqp://guest:secret@127.0.0.1:9"])
    counts.start(lambda: False)
    try:
        eventually(lambda: "are not counted until" in caplog.text)
        with pytest.raises(ConnectionFailed, match=r"has not counted .*: 127\.0\.0\.1:9") as refusal:
            counts.get(["q"], 0.0)
        assert "secret" not in str(refusal.value) + caplog.text
    finally:
        counts.end(10.0)


def test_many_requests_at_a_time_ask_once(url: str) -> None:
    filled(url, {"crowd": 2})
    with Worker(url, ["crowd"]) as worker:
        worker.let_go(1)
        found: list[Drain] = []
        asking = [threading.Thread(target=lambda: found.append(worker.drain())) for _ in range(20)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(30)
        assert len(found) == 20
        assert sum(thread.name == "fairsched-counts" for thread in threading.enumerate()) == 1


def test_a_consumer_without_queues(url: str) -> None:
    with Consumer(url, QueueSource(list)) as consumer:
        assert consumer._client.drain() == Drain(0.0, 0, 0.0, ())


def test_a_deferred_message_makes_the_time_unknown(url: str, at_once: None) -> None:
    filled(url, {"deferred": 5})
    kept: list[Any] = []

    def handle(message: Any) -> None:
        kept.append(message.defer())

    consumer = Consumer(url, ["deferred"], prefetch=5)
    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    try:
        eventually(lambda: len(kept) == 5)
        found = consumer._client.drain()
        assert (found.seconds, found.backlog) == (None, 5)
    finally:
        consumer.stop(now=True)
        thread.join(30)


def test_tenants_by_what_is_buffered_of_them(url: str, at_once: None) -> None:
    with Session(url) as session:
        session.declare("tenants", {})
    with Publisher(url) as publisher:
        for tenant in ("acme", "acme", "acme", "other") * 25:
            publisher.publish(b"x", "tenants", headers={"tenant": tenant})
    tenants = {"gold": Tenant(weight=3)}
    with Worker(url, ["tenants"], key="header:tenant", tenants=tenants, prefetch=20, cost="time") as worker:
        eventually(lambda: worker.consumer.state.buffered == 19)
        worker.let_go(4)
        eventually(lambda: worker.drain().queues[0].backlog == 96)
        eventually(lambda: worker.consumer.state.buffered == 19)
        found = worker.drain()
        by_name = {one.name: one for one in found.tenants}
        assert by_name.keys() == {"acme", "other", "gold"}
        assert by_name["gold"].backlog == 0
        assert by_name["acme"].backlog + by_name["other"].backlog == pytest.approx(95, abs=1)  # one is in hand
        assert by_name["acme"].backlog > 2 * by_name["other"].backlog
        for tenant in ("acme", "other"):
            one = by_name[tenant]
            measured = worker.consumer._client.settings.cost.handler_seconds(tenant)
            assert one.handler_seconds == measured
            assert measured is not None
            assert one.seconds == pytest.approx(one.backlog * measured)


def test_a_tenant_has_what_is_in_its_own_lane(url: str, at_once: None) -> None:
    lanes = Lanes("spread", key="header:tenant", buckets=2)
    own = lanes.own_lane_of("hot")
    filled(url, {own: 50}, headers={"tenant": "hot"})
    filled(url, {lanes.bucket_of("cold"): 30}, headers={"tenant": "cold"})
    with Worker(url, lanes, prefetch=10) as worker:
        client = worker.consumer._client
        client.add_queues({own: Queue(own)})[own].result(30)
        eventually(lambda: client.occupied()[own].messages > 1 and worker.consumer.state.buffered > 5)
        worker.let_go(1)
        eventually(lambda: worker.drain().backlog == 79)
        found = worker.drain()
        assert [one.name for one in found.queues] == lanes.bucket_names
        by_name = {one.name: one for one in found.tenants}
        here = {tenant: slot.queued for tenant, slot in client.worker_queues.stats().items()}
        counts = client._drain_watch._counts.get([own], 0.0)[0]  # type: ignore[union-attr]
        assert by_name["hot"].backlog == here["hot"] + counts[own].ready
        assert by_name["cold"].backlog == here["cold"] + counts[lanes.bucket_of("cold")].ready


def test_each_process_answers_for_the_ordered_lanes_that_it_consumes(url: str, at_once: None) -> None:
    lanes = Lanes("ordered", key="header:tenant", buckets=4, ordered=True)
    with Worker(url, lanes, prefetch=8) as one, Worker(url, lanes, prefetch=8) as two:
        eventually(lambda: sorted(len(worker.drain().queues) for worker in (one, two)) == [2, 2])
        eventually(lambda: one.consumer.state.ready and two.consumer.state.ready)
        with Publisher(url) as publisher:
            for bucket in lanes.bucket_names:
                for _ in range(10):
                    publisher.publish(b"x", bucket, headers={"tenant": bucket})
        eventually(lambda: [worker.drain().backlog for worker in (one, two)] == [20, 20])
        answers = [worker.drain() for worker in (one, two)]
        assert {queue.name for answer in answers for queue in answer.queues} == set(lanes.bucket_names)
        assert {queue.workers for answer in answers for queue in answer.queues} == {1}


def test_a_thousand_queues_are_asked_about_beside_the_work(url: str) -> None:
    names = [f"many-{number}" for number in range(1000)]
    with Session(url) as session:
        for name in names:
            session.declare(name, {})
    counts = queue_counts.QueueCounts([url])
    counts.start(lambda: False)
    try:
        began = time.thread_time()
        found, _ = counts.get(names, 60.0)
        assert len(found) == 1000
        # The thread that asks waits: the work is in the thread of the connection.
        assert time.thread_time() - began < 0.1
    finally:
        counts.end(10.0)


def test_a_request_after_the_end_has_an_error_and_does_not_wait_for_long() -> None:
    counts = queue_counts.QueueCounts([NOWHERE])
    counts.start(lambda: False)
    counts.end(10.0)
    with pytest.raises(ConnectionFailed, match="has not counted"):
        counts.get(["q"], 0.01)
