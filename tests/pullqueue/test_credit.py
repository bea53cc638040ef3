"""Credit: what a consumer may still take, spent by pulls and given back by settlements."""

from __future__ import annotations

from typing import Any

import pytest
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled, run_items


def filled(engine: Engine, count: int, **options: Any) -> tuple[Any, Any]:
    queue = engine()
    for item in range(count):
        queue.put(item)
    return queue, queue.subscribe("A", **options)


@on_both
def test_credit_comes_back_with_each_settlement(engine: Engine) -> None:
    queue = engine()
    only = queue.subscribe("A", credit=2)
    for item in range(6):
        queue.put(item)
    first, second = only.pull(), only.pull()
    assert (only.credit, only.interested, only.pull(), lists_of(queue)) == (0, False, None, "X[A]")
    before = only.notified_count
    first.ack()
    assert (only.credit, only.interested, lists_of(queue)) == (1, True, "N[A]")
    assert only.notified_count == before + 1
    third = only.pull()
    assert (third.item, lists_of(queue)) == (2, "X[A]")
    second.release()
    assert items(drain(only)) == [1]
    third.reject()
    assert items(drain(only)) == [3]


@on_both
def test_new_credit_wakes(engine: Engine) -> None:
    queue, only = filled(engine, 3)
    only.credit = 0
    assert (lists_of(queue), only.pull()) == ("X[A]", None)
    only.credit = 1
    assert lists_of(queue) == "N[A]"
    assert (pulled(only), pulled(only)) == (0, None)
    only.credit = None
    assert (only.credit, lists_of(queue)) == (None, "N[A]")
    assert items(drain(only)) == [1, 2]


@on_both
@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("credit", [None, 1])
def test_a_settlement_gives_back_what_was_taken(engine: Engine, size: int, credit: int | None) -> None:
    """Credit that was used is restored, whatever was set meanwhile; sizes count where there is a limit in bytes."""
    queue = engine()
    only = queue.subscribe("A", credit=credit)
    for item in range(3):
        queue.put(item, size=size)
    first = only.pull()  # without a limit, it takes no credit
    only.credit = 1
    second = only.pull()
    assert (only.credit, lists_of(queue)) == (0, "X[A]")
    back = int(credit is not None)
    assert (first.ack(), only.credit, lists_of(queue)) == (True, back, "N[A]" if back else "X[A]")
    assert (second.ack(), only.credit, lists_of(queue)) == (True, back + 1, "N[A]")


@on_both
def test_credit_does_not_make_a_consumer_interested(engine: Engine) -> None:
    queue = engine()
    only = queue.subscribe("A", credit=1)
    queue.put(0)
    queue.put(1)
    entry = only.pull()
    only.interested = False
    entry.ack()
    assert (lists_of(queue), only.pull()) == ("X[A]", None)
    only.interested = True
    assert (lists_of(queue), pulled(only)) == ("N[A]", 1)


@on_both
def test_pull_many_stops_at_the_credit(engine: Engine) -> None:
    queue = engine()
    only = queue.subscribe("A", credit=3)
    for item in range(5):
        queue.put(item)
    assert items(only.pull_many(10)) == [0, 1, 2]
    assert lists_of(queue) == "X[A]"


@on_both
def test_the_last_credit_wakes_another_of_the_same_priority(engine: Engine) -> None:
    """A backlog goes on to the sleeping consumers, one after the other."""
    queue = engine()
    for item in range(7):
        queue.put(item)
    consumers = [queue.subscribe(name, credit=2) for name in "ABC"]
    consumers.append(queue.subscribe("D", interested=False))
    got = run_items(queue, *consumers)
    assert sorted(item for taken in got.values() for item in taken) == list(range(6))
    assert (lists_of(queue), queue.available) == ("X[D,A,B,C]", 1)
    consumers[3].interested = True
    assert run_items(queue, *consumers)["D"] == [6]


@on_both
def test_a_release_wakes_one_even_if_it_gives_back_credit(engine: Engine) -> None:
    """The credit comes first: the releaser is one of those that may be woken, and none is woken in vain."""
    queue = engine()
    one, two = queue.subscribe("A", credit=1), queue.subscribe("B")
    queue.put(0)
    entry = one.pull()
    assert lists_of(queue) == "I[B] X[A]"
    entry.release()
    assert lists_of(queue) == "I[A] N[B]"
    assert (pulled(two), one.notified_count) == (0, 1)


@on_both
@pytest.mark.parametrize("credit", [1, 2, 7])
def test_a_window_is_never_exceeded(engine: Engine, credit: int) -> None:
    queue, only = filled(engine, 50, credit=credit)
    held: list[Any] = []
    done = []
    while len(done) < 50:
        held += drain(only)
        assert len(held) == min(credit, 50 - len(done))
        entry = held.pop(0)
        done.append(entry.item)
        entry.ack()
    assert (done, only.credit, queue.depth) == (list(range(50)), credit, 0)
