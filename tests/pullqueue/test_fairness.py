"""The share of each slot, the waits of each slot, and that nothing stalls, from one thread."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.queue_engines import Engine, drain, on_both, run


def serve(queue: Any, consumers: dict[str, Any]) -> list[tuple[str, Any]]:
    """Have each notified consumer pull and ack one message, in the order of the list; return which got which."""
    got = []
    while notified := queue.lists()["notified"]:
        entry = consumers[notified[0]].pull()
        if entry is not None:
            got.append((notified[0], entry.item))
            entry.ack()
    return got


@on_both
@pytest.mark.parametrize("burst", [1, 3, 6])
def test_four_equal_consumers_get_a_quarter_each(engine: Engine, burst: int) -> None:
    """Within 1 % over 40 000 messages that come in bursts of up to so many."""
    queue, chance, count = engine(), random.Random(burst), 40_000
    consumers = {name: queue.subscribe(name) for name in "ABCD"}
    got = dict.fromkeys("ABCD", 0)
    put = 0
    while put < count:
        for _ in range(min(chance.randint(1, burst), count - put)):
            queue.put(put)
            put += 1
        for name, _ in serve(queue, consumers):
            got[name] += 1
    assert sum(got.values()) == count
    assert all(abs(share - count // 4) <= count // 400 for share in got.values()), got


@on_both
@pytest.mark.parametrize("consumers", [2, 5, 16])
def test_no_consumer_waits_longer_for_a_notification_than_there_are_consumers(engine: Engine, consumers: int) -> None:
    """Asymptotic fairness: the notified one finds nothing, a thief was faster, and goes to the end of the line."""
    queue, chance = engine(), random.Random(consumers)
    line = [queue.subscribe(f"c{i}") for i in range(consumers)]
    thief = queue.subscribe("thief")
    last = [0] * consumers
    for item in range(1, 50 * consumers):
        counts = [consumer.notified_count for consumer in line]
        queue.put(item)
        woken = [i for i in range(consumers) if line[i].notified_count > counts[i]]
        if chance.random() < 0.7:
            assert [entry.ack() for entry in drain(thief)] == [True]
        for i in woken:
            last[i] = item
            for entry in drain(line[i]):
                entry.ack()
        for entry in drain(thief):
            entry.ack()
        assert queue.depth == 0
        assert item - min(last) <= consumers + 1


def check_quiet(queue: Any, consumers: dict[str, Any]) -> None:
    """No consumer is notified; one that is interested could not get anything."""
    lists = queue.lists()
    assert lists["notified"] == []
    assert sorted(name for names in lists.values() for name in names) == sorted(consumers)
    for name in lists["interested"]:
        assert consumers[name].pull() is None, f"{name} slept beside a message"


class RandomUse:
    """Puts, pulls, flips, releases, cancels and new subscriptions at random."""

    def __init__(self, queue: Any, seed: int) -> None:
        self.queue = queue
        self.chance = random.Random(seed)
        self.consumers: dict[str, Any] = {}
        self.names = self.put = 0
        self.entries: list[Any] = []
        self.done: list[int] = []
        self.steps = [self.subscribe, self.cancel, self.produce, self.flip, self.pull, self.settle]
        self.weights = [2, 2, 25, 10, 40, 21]

    def step(self) -> None:
        self.chance.choices(self.steps, self.weights)[0]()

    def any_consumer(self) -> Any:
        if not self.consumers:
            self.subscribe()
        return self.chance.choice(list(self.consumers.values()))

    def subscribe(self) -> None:
        self.names += 1
        options = {"priority": self.chance.randint(0, 2), "credit": self.chance.choice([None, None, 1, 3])}
        self.consumers[f"c{self.names}"] = self.queue.subscribe(f"c{self.names}", **options)

    def cancel(self) -> None:
        consumer = self.any_consumer()
        del self.consumers[consumer.name]
        consumer.cancel()

    def produce(self) -> None:
        self.queue.put(self.put)
        self.put += 1

    def flip(self) -> None:
        consumer = self.any_consumer()
        consumer.interested = not consumer.interested

    def pull(self) -> None:
        self.entries += filter(None, [self.any_consumer().pull()])

    def settle(self) -> None:
        if not self.entries:
            return
        entry = self.entries.pop(self.chance.randrange(len(self.entries)))
        if self.chance.random() < 0.2:
            assert entry.release()
        else:
            self.done.append(entry.item)
            assert entry.ack()

    def quiesce(self) -> None:
        for taken in run(self.queue, *self.consumers.values()).values():
            self.entries += taken
        check_quiet(self.queue, self.consumers)


@on_both
@pytest.mark.parametrize("seed", range(6))
def test_random_use_loses_nothing_and_does_not_stall(engine: Engine, seed: int) -> None:
    """At every pause all consumers are in the lists, and none sleeps beside a message; in the end each came once."""
    use = RandomUse(engine(), seed)
    for _ in range(12):
        for _ in range(250):
            use.step()
        use.quiesce()
    use.any_consumer()
    for consumer in use.consumers.values():
        consumer.credit = None
        consumer.interested = True
    while use.queue.depth:
        use.quiesce()
        assert use.entries, "messages are left, and no consumer is notified"
        while use.entries:
            use.settle()
    assert sorted(use.done) == list(range(use.put))
