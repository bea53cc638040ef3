"""The order of service of each kind of queue, and of the engine's own, the fair one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled


def put_all(queue: Any, **columns: list[Any]) -> None:
    """Put 1, 2, 3 ... with the options of each."""
    for number, options in enumerate(zip(*columns.values(), strict=True), 1):
        queue.put(number, **dict(zip(columns, options, strict=True)))


@on_both
def test_three_levels(engine: Engine) -> None:
    queue = engine("priority", levels=3)
    put_all(queue, priority=[10, 4, 0, 0, 4, 10, 4, 10, 0])
    assert items(drain(queue.subscribe("A"))) == [1, 6, 8, 2, 5, 7, 3, 4, 9]


@on_both
def test_ten_levels(engine: Engine) -> None:
    queue = engine("priority")
    put_all(queue, priority=[i % 10 for i in range(50)])
    expected = sorted(range(50), key=lambda i: (-(i % 10), i))
    assert [item - 1 for item in items(drain(queue.subscribe("A")))] == expected


@on_both
@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (1, {-5: 0, 0: 0, 4: 0, 5: 0, 9: 0, 255: 0}),
        (2, {0: 0, 4: 0, 5: 1, 9: 1}),
        (3, {-1: 0, 3: 0, 4: 1, 5: 2, 9: 2}),
        (10, {0: 0, 1: 1, 8: 8, 9: 9, 10: 9, 255: 9}),
        (20, {0: 5, 4: 9, 9: 14, 14: 19, 255: 19, -5: 0, -9: 0}),
    ],
)
def test_the_level_of_a_priority(engine: Engine, levels: int, expected: dict[int, int]) -> None:
    """clamp(priority - (5 - floor((levels + 1) / 2)), 0, levels - 1): by the order in which all come out."""
    queue = engine("priority", levels=levels)
    for priority in expected:
        queue.put(priority, priority=priority)
    by_level = sorted(expected, key=lambda priority: -expected[priority])
    assert items(drain(queue.subscribe("A"))) == by_level


@on_both
def test_a_more_urgent_message_overtakes(engine: Engine) -> None:
    queue = engine("priority")
    only = queue.subscribe("A")
    put_all(queue, priority=[4, 4, 4])
    assert pulled(only) == 1
    queue.put("urgent", priority=9)
    assert items(drain(only)) == ["urgent", 2, 3]


@on_both
def test_a_released_message_keeps_its_place_in_its_level(engine: Engine) -> None:
    queue = engine("priority")
    only = queue.subscribe("A")
    put_all(queue, priority=[1, 9, 5, 5])
    entries = only.pull_many(4)
    assert items(entries) == [2, 3, 4, 1]
    for entry in entries:
        entry.release()
    assert items(drain(only)) == [2, 3, 4, 1]


@on_both
def test_newer_values_replace_older_ones(engine: Engine) -> None:
    queue = engine("last-value")
    only = queue.subscribe("A")
    put_all(queue, key=["A", "B", "A", "B"])
    assert (queue.depth, items(drain(only))) == (2, [3, 4])


@on_both
def test_four_hundred_messages_of_ten_keys(engine: Engine) -> None:
    queue = engine("last-value", key=lambda item: item % 10)
    for item in range(400):
        queue.put(item)
    assert (queue.depth, queue.available) == (10, 10)
    assert items(drain(queue.subscribe("A"))) == list(range(390, 400))


@on_both
def test_an_acquired_older_value_lives_until_it_is_released(engine: Engine) -> None:
    queue = engine("last-value")
    only = queue.subscribe("A")
    queue.put(1, key="k")
    entry = only.pull()
    queue.put(2, key="k")
    assert (queue.depth, queue.available) == (2, 1)
    entry.release()
    assert (queue.depth, queue.available) == (1, 1)
    assert items(drain(only)) == [2]


@on_both
def test_a_superseded_value_stays_superseded_when_the_newer_one_is_gone(engine: Engine) -> None:
    queue = engine("last-value")
    only = queue.subscribe("A")
    queue.put(1, key="k")
    older = only.pull()
    queue.put(2, key="k")
    only.pull().ack()
    older.release()
    assert (queue.depth, only.pull()) == (0, None)
    queue.put(3, key="k")
    assert items(drain(only)) == [3]


@on_both
def test_an_acquired_newest_value_comes_back(engine: Engine) -> None:
    queue = engine("last-value")
    only = queue.subscribe("A")
    queue.put(1, key="k")
    only.pull().release()
    assert (queue.depth, items(drain(only))) == (1, [1])


@on_both
def test_the_oldest(engine: Engine) -> None:
    queue, oldest = engine("last-value"), []
    for number, key in enumerate("ABAB"):
        queue.put(f"e{number + 1}" if number else "e1", key=key)
        browser = queue.subscribe("B", acquires=False)
        oldest.append(pulled(browser))
        browser.cancel()
    assert oldest == ["e1", "e1", "e2", "e3"]


@on_both
def test_without_a_key_nothing_is_replaced(engine: Engine) -> None:
    queue = engine("last-value")
    put_all(queue, key=[None, None, "k", None, "k"])
    assert items(drain(queue.subscribe("A"))) == [1, 2, 4, 5]


@on_both
def test_sorted(engine: Engine) -> None:
    queue = engine("sorted")
    for key in "BDCA":
        queue.put(key, key=key)
    assert items(drain(queue.subscribe("A"))) == ["A", "B", "C", "D"]


@on_both
@pytest.mark.parametrize("key", ["same", None])
def test_equal_and_missing_keys_keep_their_order(engine: Engine, key: str | None) -> None:
    queue = engine("sorted")
    put_all(queue, key=[key] * 200)
    assert items(drain(queue.subscribe("A"))) == list(range(1, 201))


@on_both
def test_missing_keys_come_first_and_numbers_compare_as_text(engine: Engine) -> None:
    queue = engine("sorted")
    put_all(queue, key=["b", 10, 9, None, "", None, "a", "é"])
    assert items(drain(queue.subscribe("A"))) == [4, 6, 5, 2, 3, 7, 1, 8]


@on_both
def test_a_smaller_key_overtakes_and_a_released_one_comes_first_again(engine: Engine) -> None:
    queue = engine("sorted", key=lambda item: item)
    only = queue.subscribe("A")
    for item in "mxz":
        queue.put(item)
    first = only.pull()
    queue.put("a")
    assert pulled(only) == "a"
    first.release()
    queue.put("n")
    assert items(drain(only)) == ["m", "n", "x", "z"]


@on_both
def test_a_fair_queue_serves_by_quanta(engine: Engine) -> None:
    queue = engine("fair", quanta={"gold": 3, "free": 1})
    for item in range(8):
        queue.put(("gold", item), slot="gold")
        queue.put(("free", item), slot="free")
    only = queue.subscribe("A")
    slots = [item[0] for item in items(drain(only))]
    assert slots[:12] == ["gold", "gold", "gold", "free"] * 2 + ["gold", "gold", "free", "free"]
    assert slots[12:] == ["free"] * 4


@on_both
def test_a_fair_queue_charges_the_size(engine: Engine) -> None:
    queue = engine("fair", quanta={"light": 10, "heavy": 10})
    for _ in range(200):
        queue.put("light", slot="light", size=1)
        queue.put("heavy", slot="heavy", size=5)
    served = items(queue.subscribe("A").pull_many(120))
    assert (served.count("light"), served.count("heavy")) == (100, 20)


@on_both
def test_a_fair_queue_serves_a_released_message_first_of_its_slot(engine: Engine) -> None:
    queue = engine("fair", quanta={"a": 1, "b": 1})
    for item in range(3):
        queue.put(("a", item), slot="a")
        queue.put(("b", item), slot="b")
    only = queue.subscribe("A")
    entries = only.pull_many(2)
    entries[0].release()
    assert [item for item in items(drain(only)) if item[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]


@on_both
def test_a_look_does_not_change_whose_turn_it_is(engine: Engine) -> None:
    """The order of service is that of DWRR's pushes and pops, whenever a consumer subscribes, and is told."""
    orders = []
    for subscribes_at in range(3):
        queue = engine("fair", quanta={"a": 1, "b": 1})
        for step, (slot, size) in enumerate([("b", 2), ("a", 1), ("", 0)]):
            if step == subscribes_at:
                only = queue.subscribe("A")
            if slot:
                queue.put(slot, slot=slot, size=size)
        orders.append(items(drain(only)))
    assert orders == [["a", "b"]] * 3


@on_both
def test_consumers_share_a_fair_queue(engine: Engine) -> None:
    queue = engine("fair", quanta={"a": 1, "b": 3})
    for _ in range(40):
        queue.put("a", slot="a")
        queue.put("b", slot="b")
    one, two = queue.subscribe("A"), queue.subscribe("B")
    served = [pulled(consumer) for _ in range(10) for consumer in (one, two)]
    assert (served.count("a"), served.count("b")) == (5, 15)
    assert lists_of(queue) == "N[A,B]"


@on_both
def test_a_slot_that_is_passed_over_saves_up_nothing(engine: Engine) -> None:
    """Two consumers take turns, each at its own slot; one that then takes all gets at most two quanta and a message."""
    queue = engine("fair", quanta={"a": 10, "b": 10})
    for _ in range(100):
        queue.put("a", slot="a")
        queue.put("b", slot="b")
    picky = [queue.subscribe(slot, filter=lambda item, slot=slot: item == slot) for slot in "ab"]
    assert [pulled(consumer) for _ in range(50) for consumer in picky] == ["a", "b"] * 50
    for consumer in picky:
        consumer.cancel()
    served = items(queue.subscribe("C").pull_many(100))
    assert max(len(list(turn)) for _, turn in itertools.groupby(served)) <= 21


@on_both
@pytest.mark.parametrize("kind", ["standard", "priority", "sorted", "last-value"])
def test_equals_are_first_in_first_out(engine: Engine, kind: str) -> None:
    queue = engine(kind)
    for item in range(20):
        queue.put(item)
    assert items(drain(queue.subscribe("A"))) == list(range(20))
