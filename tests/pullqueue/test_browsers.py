"""Consumers that look and do not take."""

from __future__ import annotations

import pytest
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled


@on_both
def test_a_browser_sees_everything_once_and_takes_nothing(engine: Engine) -> None:
    queue = engine()
    for item in range(3):
        queue.put(item)
    browser = queue.subscribe("B", acquires=False)
    assert lists_of(queue) == "B[B]"
    assert items(drain(browser)) == [0, 1, 2]
    assert (browser.pull(), queue.depth, queue.available) == (None, 3, 3)
    queue.put(3)
    assert items(drain(browser)) == [3]
    assert items(drain(queue.subscribe("A"))) == [0, 1, 2, 3]


@on_both
def test_every_browser_is_told_and_one_consumer(engine: Engine) -> None:
    queue = engine()
    browsers = [queue.subscribe(name, acquires=False) for name in "BC"]
    consumers = [queue.subscribe(name) for name in "DE"]
    before = [s.notified_count for s in (*browsers, *consumers)]
    queue.put(0)
    assert [s.notified_count - b for s, b in zip((*browsers, *consumers), before, strict=True)] == [1, 1, 1, 0]
    assert lists_of(queue) == "I[E] N[D] B[B,C]"


@on_both
def test_a_browser_is_told_of_what_its_filter_accepts(engine: Engine) -> None:
    queue = engine()
    browser = queue.subscribe("B", acquires=False, filter=lambda item: item % 2)
    before = browser.notified_count
    for item in range(4):
        queue.put(item)
    assert browser.notified_count - before == 2
    assert items(drain(browser)) == [1, 3]


@on_both
def test_a_browser_that_is_not_interested(engine: Engine) -> None:
    queue = engine()
    browser = queue.subscribe("B", acquires=False, interested=False)
    queue.put(0)
    assert (lists_of(queue), browser.notified_count, browser.pull()) == ("X[B]", 0, None)
    browser.interested = True
    assert (lists_of(queue), browser.notified_count) == ("B[B]", 1)
    assert pulled(browser) == 0
    browser.interested = False
    assert lists_of(queue) == "X[B]"


@on_both
@pytest.mark.parametrize("settlement", ["ack", "release", "reject"])
def test_settling_what_was_only_seen_gives_back_credit_alone(engine: Engine, settlement: str) -> None:
    queue = engine()
    browser = queue.subscribe("B", acquires=False, credit=1)
    queue.put(0)
    queue.put(1)
    entry = browser.pull()
    assert (entry.item, browser.pull(), lists_of(queue)) == (0, None, "X[B]")
    getattr(entry, settlement)()
    assert lists_of(queue) == "B[B]"
    assert pulled(browser) == 1
    assert (queue.depth, queue.available) == (2, 2)


@on_both
@pytest.mark.parametrize("sees_requeues", [False, True])
def test_a_browser_sees_a_requeue_if_it_wants_to(engine: Engine, sees_requeues: bool) -> None:
    queue = engine()
    browser = queue.subscribe("B", acquires=False, sees_requeues=sees_requeues)
    only = queue.subscribe("A")
    queue.put(0)
    assert items(drain(browser)) == [0]
    only.pull().release()
    assert items(drain(browser)) == ([0] if sees_requeues else [])


@on_both
@pytest.mark.parametrize("sees_requeues", [False, True])
def test_a_browser_sees_later_what_is_acquired_as_it_comes_by(engine: Engine, sees_requeues: bool) -> None:
    """It has not seen it yet; and it is told of it."""
    queue = engine()
    only = queue.subscribe("A")
    for item in range(3):
        queue.put(item)
    entries = only.pull_many(2)
    browser = queue.subscribe("B", acquires=False, sees_requeues=sees_requeues)
    assert items(drain(browser)) == [2]
    told = browser.notified_count
    entries[1].release()
    assert browser.notified_count == told + 1
    assert items(drain(browser)) == [1]
    [again] = only.pull_many(1)
    entries[0].release()
    assert items(drain(browser)) == [0]
    again.release()
    assert items(drain(browser)) == ([1] if sees_requeues else [])


@on_both
def test_a_browser_sees_what_is_acquired_again_before_it_has_looked(engine: Engine) -> None:
    queue = engine()
    only = queue.subscribe("A")
    queue.put(0)
    entry = only.pull()
    browser = queue.subscribe("B", acquires=False)
    assert browser.pull() is None
    for _ in range(2):
        entry.release()
        entry = only.pull()
        assert browser.pull() is None
    entry.release()
    assert items(drain(browser)) == [0]


@on_both
def test_a_browser_sees_what_expires_no_more(engine: Engine) -> None:
    now = [0.0]
    queue = engine(clock=lambda: now[0])
    queue.put("early", ttl=1)
    queue.put("late")
    now[0] = 2.0
    assert items(drain(queue.subscribe("B", acquires=False))) == ["late"]


@on_both
def test_a_browser_sees_a_held_message_when_it_is_let_go(engine: Engine) -> None:
    now = [0.0]
    queue = engine(clock=lambda: now[0])
    browser = queue.subscribe("B", acquires=False)
    queue.put("held", not_before=1)
    queue.put("free")
    assert items(drain(browser)) == ["free"]
    now[0] = 2.0
    queue.expire()
    assert items(drain(browser)) == ["held"]


@on_both
@pytest.mark.parametrize("looked", [False, True])
def test_a_browser_is_told_of_a_message_that_is_let_go(engine: Engine, looked: bool) -> None:
    """Broker-J notifies when a "message becomes available again (released, un-held ...)": it would sleep on."""
    now = [0.0]
    queue = engine(clock=lambda: now[0])
    browser = queue.subscribe("B", acquires=False)
    assert browser.pull() is None
    queue.put("held", not_before=1)
    if looked:
        assert browser.pull() is None
    before = browser.notified_count
    now[0] = 2.0
    queue.expire()
    assert browser.notified_count == before + 1
    assert items(drain(browser)) == ["held"]


@on_both
@pytest.mark.parametrize("kind", ["standard", "priority", "sorted", "last-value"])
def test_a_browser_of_any_kind_sees_the_order_of_service(engine: Engine, kind: str) -> None:
    queue = engine(kind)
    for item in range(12):
        queue.put(item, priority=item % 3, key=str(item % 5))
    seen = items(drain(queue.subscribe("B", acquires=False)))
    assert seen == items(drain(queue.subscribe("A")))
    assert len(seen) == (5 if kind == "last-value" else 12)
