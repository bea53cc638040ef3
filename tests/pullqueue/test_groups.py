"""Message groups: standard ones stick to a consumer, shared ones while it has something unsettled.

Groups are named by small integers, whose hashes do not collide.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.queue_engines import Engine, drain, items, lists_of, on_both, pulled, run

ONE, TWO, THREE = 1, 2, 3
both_modes = pytest.mark.parametrize("groups", ["standard", "shared"])


def grouped(engine: Engine, groups: str, keys: list[Any]) -> tuple[Any, Any, Any]:
    """A queue of messages 1, 2, 3 ... of these groups, and two consumers."""
    queue = engine(groups=groups)
    for number, key in enumerate(keys, 1):
        queue.put(number, key=key)
    return queue, queue.subscribe("c1"), queue.subscribe("c2")


@on_both
@both_modes
def test_a_consumer_keeps_its_group(engine: Engine, groups: str) -> None:
    _, c1, c2 = grouped(engine, groups, [ONE, TWO, ONE, TWO])
    first, second = c1.pull(), c2.pull()
    assert (first.item, second.item) == (1, 2)
    second.ack()
    assert pulled(c2) == 4
    first.ack()
    assert pulled(c1) == 3


@on_both
@both_modes
def test_a_closed_consumer_frees_its_groups(engine: Engine, groups: str) -> None:
    _, c1, c2 = grouped(engine, groups, [ONE, ONE, TWO, ONE])
    assert (pulled(c1), pulled(c2), c2.pull()) == (1, 3, None)
    c1.cancel()  # keeps what it has
    assert items(drain(c2)) == [2, 4]


@on_both
@both_modes
def test_a_closed_session_gives_back_what_it_had(engine: Engine, groups: str) -> None:
    _, c1, c2 = grouped(engine, groups, [ONE, ONE, TWO, ONE])
    entry = c1.pull()
    assert (entry.item, pulled(c2), c2.pull()) == (1, 3, None)
    c1.cancel()
    entry.release()
    assert [(e.item, e.redelivered) for e in drain(c2)] == [(1, True), (2, False), (4, False)]


@on_both
@pytest.mark.parametrize(("groups", "then"), [("shared", 4), ("standard", None)])
def test_an_idle_group_is_free_if_shared(engine: Engine, groups: str, then: int | None) -> None:
    _, c1, c2 = grouped(engine, groups, [ONE, TWO, THREE, ONE])
    one, two = c1.pull(), c2.pull()
    assert (one.item, two.item) == (1, 2)
    one.ack()
    three = c1.pull()
    assert three.item == 3
    two.ack()
    assert pulled(c2) == then
    three.ack()
    assert pulled(c1) == (None if then else 4)


@on_both
def test_a_shared_group_is_never_active_twice(engine: Engine) -> None:
    queue, chance = engine(groups="shared"), random.Random(13)
    consumers = [queue.subscribe(f"c{i}") for i in range(4)]
    held: dict[Any, list[Any]] = {consumer: [] for consumer in consumers}
    got, put = [], 0
    while len(got) < 100:
        if put < 100:
            queue.put(put, key="group")
            put += 1
        consumer = chance.choice(consumers)
        entry = consumer.pull()
        if entry is not None:
            held[consumer].append(entry)
        assert sum(1 for entries in held.values() if entries) <= 1
        if held[consumer] and chance.random() < 0.7:
            entry = held[consumer].pop(0)
            got.append(entry.item)
            assert entry.ack()
    assert got == list(range(100))


@on_both
@both_modes
def test_messages_without_a_key(engine: Engine, groups: str) -> None:
    """Standard: of no group. Shared: of one group, all together."""
    _, c1, c2 = grouped(engine, groups, [None, None, ONE])
    assert pulled(c1) == 1
    assert pulled(c2) == (2 if groups == "standard" else 3)


@on_both
@both_modes
def test_the_queues_key_names_the_group(engine: Engine, groups: str) -> None:
    queue = engine(groups=groups, key=lambda item: item % 2)
    for item in range(4):
        queue.put(item)
    c1, c2 = queue.subscribe("c1"), queue.subscribe("c2")
    assert (pulled(c1), pulled(c2), items(drain(c1)), items(drain(c2))) == (0, 1, [2], [3])


@on_both
def test_a_group_that_becomes_free_wakes_one(engine: Engine) -> None:
    queue, c1, c2 = grouped(engine, "shared", [ONE, ONE])
    entry = c1.pull()
    assert drain(c2) == []
    c1.interested = False
    assert lists_of(queue) == "I[c2] X[c1]"
    entry.ack()
    assert lists_of(queue) == "N[c2] X[c1]"
    assert pulled(c2) == 2


@on_both
@both_modes
def test_a_consumer_of_a_group_that_goes_away_wakes_one(engine: Engine, groups: str) -> None:
    queue, c1, c2 = grouped(engine, groups, [ONE, ONE])
    assert pulled(c1) == 1
    assert drain(c2) == []
    c1.cancel()
    assert lists_of(queue) == "N[c2]"
    assert pulled(c2) == 2


@on_both
@both_modes
def test_a_message_settled_late_does_not_free_the_new_owners_group(engine: Engine, groups: str) -> None:
    queue, c1, c2 = grouped(engine, groups, [ONE, ONE, ONE])
    old = c1.pull()
    c1.cancel()
    assert pulled(c2) == 2  # the group is c2's now
    c3 = queue.subscribe("c3")
    old.ack()
    assert c3.pull() is None
    assert pulled(c2) == 3


@on_both
@both_modes
def test_browsers_see_all_groups(engine: Engine, groups: str) -> None:
    queue, c1, _ = grouped(engine, groups, [ONE, TWO, ONE])
    assert pulled(c1) == 1
    assert items(drain(queue.subscribe("B", acquires=False))) == [2, 3]


@on_both
@both_modes
def test_many_groups_and_consumers_run_dry(engine: Engine, groups: str) -> None:
    """A woken consumer takes all it may; nothing stays, and each group is in order."""
    queue = engine(groups=groups)
    consumers = [queue.subscribe(f"c{i}") for i in range(5)]
    served: dict[int, list[int]] = {}
    for item in range(300):
        queue.put(item, key=item % 17)
        if item % 7 == 0:
            for entries in run(queue, *consumers).values():
                for entry in entries:
                    served.setdefault(entry.item % 17, []).append(entry.item)
                    entry.ack()
    for entries in run(queue, *consumers).values():
        for entry in entries:
            served.setdefault(entry.item % 17, []).append(entry.item)
            entry.ack()
    assert queue.depth == 0
    assert all(group == sorted(group) for group in served.values())
    assert sorted(item for group in served.values() for item in group) == list(range(300))
