"""The consumers that may subscribe, and those that are live; callbacks that fail; closing; and what is refused."""

from __future__ import annotations

import logging
import queue as queues
from typing import Any

import pytest
from support.clock import ManualClock
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled

from fairsched import FairschedError, ShutDown


@on_both
def test_an_exclusive_consumer_stays_alone(engine: Engine) -> None:
    queue = engine()
    one = queue.subscribe("A", exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(FairschedError, match="exclusive") as caught:
            queue.subscribe("B", exclusive=exclusive)
        assert "A" in str(caught.value)
    assert lists_of(queue) == "I[A]"
    one.cancel()
    queue.subscribe("B")
    assert lists_of(queue) == "I[B]"


@on_both
def test_no_consumer_becomes_exclusive_beside_others(engine: Engine) -> None:
    queue = engine()
    one = queue.subscribe("A")
    with pytest.raises(FairschedError, match="exclusive"):
        queue.subscribe("B", exclusive=True)
    assert lists_of(queue) == "I[A]"
    one.cancel()
    queue.subscribe("B", exclusive=True)


@on_both
def test_a_single_active_consumer(engine: Engine) -> None:
    queue = engine(live_consumers=1)
    c1, c2, c3, c4 = (queue.subscribe(name) for name in ("c1", "c2", "c3", "c4"))
    assert (lists_of(queue), c2.interested) == ("I[c1] X[c2,c3,c4]", False)
    for item in range(5):
        queue.put(item)
    entries = c1.pull_many(3)
    assert items(entries) == [0, 1, 2]
    assert [c.pull() for c in (c2, c3, c4)] == [None] * 3
    for entry in entries:
        entry.ack()
    c1.cancel()
    assert lists_of(queue) == "N[c2] X[c3,c4]"
    assert items(drain(c2)) == [3, 4]
    assert (c3.notified_count, c4.notified_count) == (0, 0)
    queue.put(5)
    c2.cancel()
    assert lists_of(queue) == "N[c3] X[c4]"
    assert items(drain(c3)) == [5]


@on_both
def test_the_next_live_one_is_the_first_that_joined(engine: Engine) -> None:
    """Whatever its priority, which decides only among those that are live."""
    queue = engine(live_consumers=2)
    consumers = {
        name: queue.subscribe(name, priority=priority) for name, priority in zip("ABCDE", [0, 0, 0, 5, 5], strict=True)
    }
    assert lists_of(queue) == "I[A,B] X[C,D,E]"
    consumers["A"].cancel()
    assert lists_of(queue) == "I[B,C] X[D,E]"
    consumers["D"].cancel()  # was not live
    assert lists_of(queue) == "I[B,C] X[E]"
    consumers["B"].cancel()
    assert lists_of(queue) == "I[E,C]"


@on_both
def test_a_browser_takes_no_live_one_s_place(engine: Engine) -> None:
    queue = engine(live_consumers=1)
    browser = queue.subscribe("browser", acquires=False)
    worker, _spare = queue.subscribe("worker"), queue.subscribe("spare")
    queue.put(1)
    assert lists_of(queue) == "N[worker] X[spare] B[browser]"
    assert (items(drain(browser)), items(drain(worker))) == ([1], [1])
    browser.cancel()
    assert lists_of(queue) == "I[worker] X[spare]"
    worker.cancel()
    assert lists_of(queue) == "I[spare]"
    assert items(drain(queue.subscribe("browser", acquires=False))) == []


@on_both
def test_a_consumer_that_is_not_live_stays_so_whatever_it_wishes(engine: Engine) -> None:
    queue = engine(live_consumers=1)
    one, two = queue.subscribe("A"), queue.subscribe("B", interested=False)
    two.interested = True
    assert lists_of(queue) == "I[A] X[B]"
    two.interested = False
    one.cancel()
    assert lists_of(queue) == "X[B]"
    two.interested = True
    assert lists_of(queue) == "I[B]"


@on_both
def test_a_filter_that_raises_means_no_interest(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def picky(item: Any) -> bool:
        if item == "bad":
            raise RuntimeError("cannot say")
        return True

    queue = engine()
    one, two = queue.subscribe("A", filter=picky), queue.subscribe("B")
    with caplog.at_level(logging.DEBUG, "fairsched"):
        queue.put("bad")
        assert lists_of(queue) == "I[A] N[B]"
        assert one.pull() is None
    assert "cannot say" in caplog.text
    assert items(drain(two)) == ["bad"]
    queue.put("good")
    assert items(drain(one)) == ["good"]


@on_both
def test_on_work_that_raises_loses_nothing(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no time")

    queue = engine(max_depth=2, overflow="ring")
    one = queue.subscribe("A", on_work=broken)
    with caplog.at_level(logging.DEBUG, "fairsched"):
        for item in range(3):
            queue.put(item)
    assert "no time" in caplog.text
    assert (lists_of(queue), queue.depth, one.notified_count) == ("N[A]", 2, 1)
    assert items(drain(one)) == [1, 2]


@on_both
def test_on_work_may_pull(engine: Engine) -> None:
    queue, got = engine(), []

    def take(subscription: Any) -> None:
        for entry in drain(subscription):
            got.append(entry.item)
            entry.ack()

    queue.subscribe("A", on_work=take)
    queue.subscribe("B", on_work=take)
    for item in range(10):
        queue.put(item)
    assert (got, queue.depth) == (list(range(10)), 0)
    assert sorted(name for names in queue.lists().values() for name in names) == ["A", "B"]


@on_both
def test_on_work_may_put_and_subscribe(engine: Engine) -> None:
    queue = engine()
    later: list[Any] = []

    def more(subscription: Any) -> None:
        if not later:
            later.append(queue.subscribe("later"))
            queue.put("more")

    only = queue.subscribe("A", on_work=more)
    queue.put("first")
    assert items(drain(only)) + items(drain(later[0])) == ["first", "more"]


@on_both
def test_a_closed_queue(engine: Engine) -> None:
    queue = engine()
    one = queue.subscribe("A")
    queue.put(0)
    queue.put(1)
    queue.close()
    queue.close()
    with pytest.raises(ShutDown):
        queue.put(2)
    with pytest.raises(ShutDown):
        queue.subscribe("B")
    assert (pulled(one), one.get(timeout=0).item, one.pull()) == (0, 1, None)
    with pytest.raises(ShutDown):
        one.get(timeout=0)


@on_both
def test_what_is_released_into_a_closed_queue_goes_to_the_alternate(engine: Engine) -> None:
    dead: list[tuple[Any, str]] = []
    queue = engine(alternate=lambda item, reason: dead.append((item, reason)))
    one = queue.subscribe("A")
    queue.put(0)
    entry = one.pull()
    queue.close()
    assert entry.release() is True
    assert (dead, queue.depth) == ([(0, "closed")], 0)


@on_both
def test_get_takes_what_there_is_or_gives_up(engine: Engine) -> None:
    queue = engine()
    one = queue.subscribe("A")
    with pytest.raises(queues.Empty):
        one.get(timeout=0)
    queue.put(0)
    assert one.get(timeout=0).item == 0
    one.cancel()
    with pytest.raises(ShutDown):
        one.get(timeout=0)


@on_both
def test_names_of_ones_own(engine: Engine) -> None:
    queue = engine()
    names = [queue.subscribe().name for _ in range(3)]
    assert len(set(names)) == 3
    assert queue.lists()["interested"] == names


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "stack"}, r"standard.*priority.*sorted.*last-value.*fair.*'stack'"),
    ({"overflow": "drop"}, r"none.*ring.*reject.*flow.*'drop'"),
    ({"groups": "own"}, r"standard.*shared.*'own'"),
    ({"levels": 0}, r"levels.*0"),
    ({"levels": "3"}, r"levels.*'3'"),
    ({"max_depth": -1}, r"max_depth.*-1"),
    ({"max_depth": 1.5}, r"max_depth.*1\.5"),
    ({"max_bytes": -7}, r"max_bytes.*-7"),
    ({"live_consumers": -1}, r"live_consumers.*-1"),
    ({"max_deliveries": -2}, r"max_deliveries.*-2"),
    ({"ttl": -1}, r"ttl.*-1"),
    ({"ttl": "soon"}, r"ttl.*'soon'"),
    ({"ttl": float("nan")}, r"ttl.*nan"),
    ({"key": "name"}, r"key.*'name'"),
    ({"clock": 3}, r"clock.*3"),
    ({"alternate": 5}, r"alternate.*5"),
    ({"kind": "fair"}, r"quanta"),
    ({"kind": "fair", "quanta": {"a": 0}}, r"quantum.*0"),
    ({"kind": "standard", "quanta": {"a": 1}}, r"quanta"),
]


@on_both
@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[str(options) for options, _ in BAD_OPTIONS])
def test_bad_options_are_named(engine: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        engine(**options)


@on_both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit": -1}, r"credit.*-1"),
        ({"credit": 1.5}, r"credit.*1\.5"),
        ({"priority": 2**31}, r"priority.*2147483648"),
        ({"priority": "high"}, r"priority.*'high'"),
        ({"filter": "x > 1"}, r"filter.*'x > 1'"),
        ({"on_work": 1}, r"on_work.*1"),
    ],
    ids=str,
)
def test_bad_subscriptions_are_named(engine: Engine, options: dict[str, Any], message: str) -> None:
    queue = engine()
    with pytest.raises((ValueError, OverflowError), match=message):
        queue.subscribe("A", **options)
    assert lists_of(queue) == ""


@on_both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": -1}, r"size.*-1"),
        ({"ttl": -0.5}, r"ttl.*-0\.5"),
        ({"priority": "4"}, r"priority.*'4'"),
        ({"not_before": "noon"}, r"not_before.*'noon'"),
        ({"slot": "a"}, r"slot.*'a'"),
    ],
    ids=str,
)
def test_bad_messages_are_named(engine: Engine, options: dict[str, Any], message: str) -> None:
    queue = engine(clock=ManualClock())
    with pytest.raises(ValueError, match=message):
        queue.put("m", **options)
    assert queue.depth == 0


@on_both
def test_a_fair_queue_knows_its_slots(engine: Engine) -> None:
    queue = engine("fair", quanta={"a": 1})
    with pytest.raises(KeyError, match="b"):
        queue.put("m", slot="b")
    assert queue.depth == 0


@on_both
def test_bad_credit_and_counts_later(engine: Engine) -> None:
    queue = engine()
    only = queue.subscribe("A", credit=2)
    with pytest.raises(ValueError, match=r"credit.*-3"):
        only.credit = -3
    assert only.credit == 2
    with pytest.raises(ValueError, match=r"-1"):
        only.pull_many(-1)
