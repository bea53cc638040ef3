"""The waiter that is woken, the event that wakes it, and the list in which each waiter stands then."""

from __future__ import annotations

from typing import Any

import pytest
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled, run_items


def subscribe_all(queue: Any, names: str, **options: Any) -> list[Any]:
    return [queue.subscribe(name, **options) for name in names]


@on_both
def test_three_acquirers(engine: Engine) -> None:
    queue = engine()
    a, b, d = subscribe_all(queue, "ABD")
    before = [consumer.notified_count for consumer in (a, b, d)]
    assert lists_of(queue) == "I[A,B,D]"
    for item, expected in [(1, "I[B,D] N[A]"), (2, "I[D] N[A,B]"), (3, "N[A,B,D]"), (4, "N[A,B,D]")]:
        queue.put(item)
        assert lists_of(queue) == expected
    assert [consumer.notified_count for consumer in (a, b, d)] == [count + 1 for count in before]
    assert pulled(a) == 1
    assert lists_of(queue) == "N[B,D,A]"
    assert [pulled(a) for _ in range(3)] == [2, 3, 4]
    assert pulled(a) is None
    assert lists_of(queue) == "I[A] N[B,D]"
    assert pulled(b) is None
    assert lists_of(queue) == "I[A,B] N[D]"
    queue.put(5)
    assert lists_of(queue) == "I[B] N[D,A]"
    assert [consumer.notified_count for consumer in (a, b, d)] == [before[0] + 2, before[1] + 1, before[2] + 1]


@on_both
def test_credit_hands_over_to_a_lower_priority(engine: Engine) -> None:
    queue = engine()
    high, low = queue.subscribe("H", priority=10, credit=2), queue.subscribe("L")
    queue.put(1)
    assert lists_of(queue) == "I[L] N[H]"
    assert pulled(low) is None
    assert pulled(high) == 1
    queue.put(2)
    assert pulled(high) == 2
    assert lists_of(queue) == "I[L] X[H]"
    queue.put(3)
    assert lists_of(queue) == "N[L] X[H]"
    assert pulled(low) == 3


@on_both
def test_a_filter_decides_before_the_priority(engine: Engine) -> None:
    queue = engine()
    high = queue.subscribe("H", priority=10, filter=lambda item: item != 2)
    low = queue.subscribe("L")
    queue.put(1)
    assert lists_of(queue) == "I[L] N[H]"
    assert pulled(low) is None
    assert items(drain(high)) == [1]
    queue.put(2)
    assert lists_of(queue) == "I[H] N[L]"
    assert pulled(high) is None
    assert items(drain(low)) == [2]


@on_both
@pytest.mark.parametrize("priority", [-(2**31), -1, 0, 2**31 - 1])
def test_a_single_consumer_of_any_priority_gets_messages(engine: Engine, priority: int) -> None:
    queue = engine()
    only = queue.subscribe("L", priority=priority)
    for item in range(3):
        queue.put(item)
    assert items(drain(only)) == [0, 1, 2]


@on_both
def test_spending_the_last_credit_with_a_backlog_does_not_stall(engine: Engine) -> None:
    """The stall of Broker-J: the hand-over judged H by a credit that it had already spent."""
    queue = engine()
    for item in range(1, 6):
        queue.put(item)
    high, low = queue.subscribe("H", priority=10, credit=2), queue.subscribe("L")
    assert run_items(queue, high, low) == {"H": [1, 2], "L": [3, 4, 5]}
    assert lists_of(queue) == "I[L] X[H]"
    assert queue.available == 0


@on_both
def test_the_consumer_that_attached_first(engine: Engine) -> None:
    queue = engine()
    for item in range(1, 6):
        queue.put(item)
    low, high = queue.subscribe("L"), queue.subscribe("H", priority=10, credit=2)
    assert lists_of(queue) == "N[H,L]"
    assert run_items(queue, low, high) == {"H": [1, 2], "L": [3, 4, 5]}


@on_both
@pytest.mark.parametrize("credits", [[1], [1, 1], [3, 2, 1], [2, 0, 2]])
def test_down_a_chain_of_priorities(engine: Engine, credits: list[int]) -> None:
    """Each takes its credit's worth, and the last one the rest."""
    queue, count = engine(), 10
    for item in range(count):
        queue.put(item)
    consumers = [queue.subscribe(f"H{i}", priority=100 - i, credit=credit) for i, credit in enumerate(credits)]
    consumers.append(queue.subscribe("L", priority=-5))
    got = run_items(queue, *consumers)
    assert [len(got[f"H{i}"]) for i in range(len(credits))] == credits
    assert got["L"] == list(range(sum(credits), count))


@on_both
def test_ten_thousand_messages_wake_one_idle_consumer_once(engine: Engine) -> None:
    queue = engine()
    woken: list[Any] = []
    only = queue.subscribe("A", on_work=woken.append)
    before = only.notified_count
    woken.clear()
    for item in range(10_000):
        queue.put(item)
    assert only.notified_count - before == 1
    assert woken == [only]
    entries = only.pull_many(20_000)
    assert items(entries) == list(range(10_000))
    assert only.notified_count - before == 1


@on_both
def test_a_steady_stream_costs_no_wake_up(engine: Engine) -> None:
    """A consumer that got a message stays notified; only a pull that finds nothing ends that."""
    queue = engine()
    only = queue.subscribe("A")
    queue.put(0)
    before = only.notified_count
    for item in range(100):
        queue.put(item + 1)
        only.pull().ack()
    assert only.notified_count == before
    assert lists_of(queue) == "N[A]"


@on_both
def test_a_consumer_that_subscribes_to_a_backlog_is_woken(engine: Engine) -> None:
    queue = engine()
    queue.put(1)
    one = queue.subscribe("A")
    assert (lists_of(queue), one.notified_count) == ("N[A]", 1)
    assert pulled(one) == 1
    two = queue.subscribe("B")
    assert (lists_of(queue), two.notified_count) == ("I[B] N[A]", 0)


@on_both
def test_a_consumer_that_is_not_interested_is_not_woken(engine: Engine) -> None:
    queue = engine()
    one = queue.subscribe("A", interested=False)
    queue.put(1)
    assert (lists_of(queue), one.interested, one.notified_count) == ("X[A]", False, 0)
    assert one.pull() is None
    one.interested = True
    assert (lists_of(queue), one.interested, one.notified_count) == ("N[A]", True, 1)
    one.interested = True  # already: nothing happens
    assert (lists_of(queue), one.notified_count) == ("N[A]", 1)
    one.interested = False
    assert (lists_of(queue), one.interested) == ("X[A]", False)


@on_both
def test_no_consumer_is_woken_for_what_its_filter_refuses(engine: Engine) -> None:
    """notify(consumer) needs next_available != none; "otherwise False and no wake-up". However it comes in."""
    queue = engine()
    queue.put(1)
    only = queue.subscribe("A", filter=lambda item: item % 2 == 0)
    assert (lists_of(queue), only.notified_count) == ("I[A]", 0)
    only.interested = False
    only.interested = True
    assert (lists_of(queue), only.notified_count) == ("I[A]", 0)
    only.credit = 0
    only.credit = 2
    assert (lists_of(queue), only.notified_count) == ("I[A]", 0)
    queue.put(2)
    assert (lists_of(queue), only.notified_count) == ("N[A]", 1)


@on_both
def test_losing_interest_hands_over(engine: Engine) -> None:
    queue = engine()
    one, two, three = subscribe_all(queue, "ABC")
    queue.put(1)
    assert lists_of(queue) == "I[B,C] N[A]"
    one.interested = False
    assert lists_of(queue) == "I[C] N[B] X[A]"
    two.cancel()
    assert lists_of(queue) == "N[C] X[A]"
    assert items(drain(three)) == [1]


@on_both
def test_losing_interest_with_nothing_to_do_wakes_no_other(engine: Engine) -> None:
    queue = engine()
    one, two = subscribe_all(queue, "AB")
    one.interested = False
    assert (lists_of(queue), two.notified_count) == ("I[B] X[A]", 0)


@on_both
def test_an_empty_pull_with_work_for_another_wakes_one_other(engine: Engine) -> None:
    queue = engine()
    odd = queue.subscribe("A", filter=lambda item: item % 2)
    even = queue.subscribe("B", filter=lambda item: item % 2 == 0)
    other = queue.subscribe("C", filter=lambda item: item % 2 == 0)
    queue.put(2)
    assert lists_of(queue) == "I[A,C] N[B]"
    assert odd.pull() is None  # finds nothing; there is something, for C as well
    assert lists_of(queue) == "I[A] N[B,C]"
    assert items(drain(even)) == [2]
    assert drain(other) == []
    assert lists_of(queue) == "I[A,B,C]"


@on_both
def test_a_lower_priority_is_not_woken_while_a_higher_one_takes_it(engine: Engine) -> None:
    queue = engine()
    high, low = queue.subscribe("H", priority=1), queue.subscribe("L")
    for item in range(5):
        queue.put(item)
    assert (lists_of(queue), low.notified_count) == ("I[L] N[H]", 0)
    assert len(drain(high)) == 5
    assert (lists_of(queue), low.notified_count) == ("I[H,L]", 0)


@on_both
def test_a_higher_priority_that_comes_later_goes_first(engine: Engine) -> None:
    queue = engine()
    low = queue.subscribe("L")
    for item in range(3):
        queue.put(item)
    assert pulled(low) == 0
    high = queue.subscribe("H", priority=1)
    assert low.pull() is None  # what there is, is for H
    assert items(drain(high)) == [1, 2]


@on_both
@pytest.mark.parametrize("walks", [False, True])
def test_the_turn_decides_which_consumer_outranks_which(engine: Engine, walks: bool) -> None:
    """L's next message is the one that H has rejected, though another is first of its slot, and its slot the first."""
    queue = engine("fair", quanta={"a": 1, "b": 1})
    high = queue.subscribe("H", priority=1)
    queue.put(1, slot="a")
    first = high.pull()
    queue.put(2, slot="b", size=9)
    first.reject()
    low = queue.subscribe("L", filter=(lambda item: item > 0) if walks else None)
    assert lists_of(queue) == "N[H,L]"
    assert (items(drain(low)), items(drain(high))) == ([1], [2])


@on_both
def test_a_look_that_takes_nothing_uses_up_no_turn(engine: Engine) -> None:
    """L is outranked, and would have passed over what is first for H."""
    queue = engine("fair", quanta={"a": 1, "b": 1})
    high = queue.subscribe("H", priority=1)
    low = queue.subscribe("L", filter=lambda item: item == "b")
    for item in "ab":
        queue.put(item, slot=item)
    assert [low.pull() for _ in range(3)] == [None] * 3
    assert items(drain(high)) == ["a", "b"]


@on_both
@pytest.mark.parametrize("groups", ["standard", "shared"])
def test_a_group_of_a_fair_queue_that_becomes_free_is_another_s(engine: Engine, groups: str) -> None:
    queue = engine("fair", quanta={"a": 1}, groups=groups)
    one = queue.subscribe("A")
    queue.put(1, slot="a", key=7)
    first = one.pull()
    queue.put(2, slot="a", key=7)
    two = queue.subscribe("B")
    one.interested = False
    assert lists_of(queue) == "I[B] X[A]"
    first.ack()
    one.cancel()
    assert lists_of(queue) == "N[B]"
    assert items(drain(two)) == [2]


@on_both
def test_lists_are_by_priority_then_by_arrival(engine: Engine) -> None:
    queue = engine()
    for name, priority in [("A", 0), ("B", 5), ("C", -5), ("D", 5), ("E", 0)]:
        queue.subscribe(name, priority=priority)
    queue.subscribe("F", interested=False, priority=9)
    queue.subscribe("G", acquires=False, priority=9)
    assert lists_of(queue) == "I[B,D,A,E,C] X[F] B[G]"
    for item in range(3):
        queue.put(item)
    assert lists_of(queue) == "I[A,E,C] N[B,D] X[F] B[G]"  # no consumer of less priority
