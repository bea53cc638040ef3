"""Worker queues: which messages share one, and that one key's messages keep their order."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import ConfigurationError
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.worker_queues import WorkerQueues

URL = "amqp://guest:guest@localhost/"


class Delivery:
    """The attributes of a message that worker queues read."""

    def __init__(self, key: object, number: int = 0, queue: str = "a") -> None:
        self.key = key
        self.number = number
        self.queue = queue


def make_worker_queues(workers: int, queues: object = ("a",), **options: object) -> WorkerQueues:
    options.setdefault("ordering_key", lambda message: message.key)
    return WorkerQueues(
        ConsumerSettings(URL, queues if isinstance(queues, dict) else list(queues), workers=workers, **options)
    )


def placement(workers: int, keys: list[object]) -> list[int]:
    worker_queues = make_worker_queues(workers)
    return [worker_queues.queues.index(worker_queues.place(Delivery(key))) for key in keys]


def fill(worker_queues: WorkerQueues, messages: list[Delivery], costs: list[int] | None = None) -> list[Delivery]:
    return worker_queues.put_many([message.queue for message in messages], messages, costs)


KEYS = [f"account-{number}" for number in range(10_000)]


def test_placement_is_the_same_in_every_consumer() -> None:
    assert placement(8, KEYS) == placement(8, KEYS)


def test_every_worker_queue_gets_its_part_of_the_keys() -> None:
    counts = Counter(placement(8, KEYS))
    assert set(counts) == set(range(8))
    assert max(counts.values()) <= 1.15 * len(KEYS) / 8


@pytest.mark.parametrize(("before", "after"), [(7, 8), (8, 9), (8, 16)])
def test_another_worker_takes_its_own_keys_and_moves_no_others(before: int, after: int) -> None:
    moves = [(old, new) for old, new in zip(placement(before, KEYS), placement(after, KEYS), strict=True) if old != new]
    assert all(new >= before for _, new in moves)
    assert len(moves) / len(KEYS) == pytest.approx((after - before) / after, abs=0.03)


@pytest.mark.parametrize(
    "key",
    ["text", "", b"bytes", 7, -1, 2**70, 1.5, True, None, ("a", 1), dt.datetime(2026, 11, 21), "\ud800", {"a": 1}, [1]],
)
def test_equal_keys_of_any_type_share_a_worker_queue(key: object) -> None:
    worker_queues = make_worker_queues(8)
    assert worker_queues.place(Delivery(key)) is worker_queues.place(Delivery(key))


def test_messages_without_a_key_share_a_worker_queue(caplog: pytest.LogCaptureFixture) -> None:
    worker_queues = make_worker_queues(8)
    assert worker_queues.place(Delivery(None)) is worker_queues.place(Delivery(""))
    failing = make_worker_queues(8, ordering_key=lambda message: 1 // 0)
    with caplog.at_level(logging.ERROR, "fairsched.consumer"):
        assert len({failing.queues.index(failing.place(Delivery(key))) for key in KEYS[:100]}) == 1
    assert caplog.text.count("ordering_key function failed") == 1


@given(
    keys=st.lists(st.integers(0, 20), max_size=200),
    workers=st.integers(1, 9),
    batch=st.integers(1, 50),
    data=st.data(),
)
def test_messages_of_one_key_come_out_in_order(keys: list[int], workers: int, batch: int, data: st.DataObject) -> None:
    worker_queues = make_worker_queues(workers, {"a": 3, "b": 1})
    # A key lives in one queue: between queues a broker knows no order.
    messages = [Delivery(key, number, "ab"[key % 2]) for number, key in enumerate(keys)]
    costs = data.draw(st.lists(st.integers(1, 9), min_size=len(keys), max_size=len(keys)))
    seen: list[Delivery] = []
    for begin in range(0, len(messages), batch):
        fill(worker_queues, messages[begin : begin + batch], costs[begin : begin + batch])
        worker_queue = data.draw(st.sampled_from(worker_queues.queues))
        taken = min(worker_queue.qsize(), data.draw(st.integers(0, batch)))
        seen += [worker_queue.get(False)[1] for _ in range(taken)]
    seen += worker_queues.leftovers()
    assert sorted(message.number for message in seen) == list(range(len(keys)))
    for key in set(keys):
        numbers = [message.number for message in seen if message.key == key]
        assert numbers == sorted(numbers)


def test_shares_hold_inside_every_worker_queue() -> None:
    worker_queues = make_worker_queues(4, {"a": 3, "b": 1})
    fill(worker_queues, [Delivery(key, queue=queue) for queue in "ab" for key in KEYS])
    for worker_queue in worker_queues.queues:
        served = Counter(slot for slot, _ in worker_queue.get_many(400))
        assert served["a"] == pytest.approx(300, abs=3)


def test_figures_are_added_up_over_the_worker_queues() -> None:
    worker_queues = make_worker_queues(4, {"a": 3, "b": 1})
    fill(worker_queues, [Delivery(key, queue="ab"[number % 2]) for number, key in enumerate(KEYS)], [2] * len(KEYS))
    for worker_queue in worker_queues.queues:
        for _ in range(10):
            worker_queue.get(False)
    worker_queues.hold("b", True)
    stats = worker_queues.stats()
    assert worker_queues.qsize() == len(KEYS) - 40 == sum(slot.queued for slot in stats.values())
    assert sum(slot.served for slot in stats.values()) == 40
    assert sum(slot.work for slot in stats.values()) == 80
    assert (stats["a"].quantum, stats["a"].held, stats["b"].quantum, stats["b"].held) == (3, False, 1, True)


def test_tenants_have_slots_in_the_worker_queues_they_use() -> None:
    worker_queues = make_worker_queues(4, key="header:tenant", tenants={"acme": 2})
    worker_queues.put_many(["acme", "other"] * 50, [Delivery(key) for key in KEYS[:100]])
    stats = worker_queues.stats()
    assert {name: slot.queued for name, slot in stats.items()} == {"acme": 50, "other": 50}


def test_a_worker_queue_that_is_shut_down_refuses_its_own_messages_only() -> None:
    worker_queues = make_worker_queues(4)
    messages = [Delivery(key) for key in KEYS[:100]]
    worker_queues.queues[1].shutdown()
    late = [message for message in messages if worker_queues.place(message) is worker_queues.queues[1]]
    assert fill(worker_queues, messages) == late
    assert 0 < len(late) == 100 - worker_queues.qsize()


def test_shutdown_empties_every_worker_queue_first() -> None:
    worker_queues = make_worker_queues(4)
    fill(worker_queues, [Delivery(key) for key in KEYS[:100]])
    worker_queues.shutdown()
    late = [Delivery("late")]
    assert fill(worker_queues, late) == late
    for worker_queue in worker_queues.queues:
        worker_queue.get(False)
    assert len(list(worker_queues.leftovers())) == 96
    assert worker_queues.qsize() == 0


def test_without_an_ordering_key_all_workers_share_one_queue() -> None:
    worker_queues = make_worker_queues(8, ordering_key=None)
    assert len(worker_queues.queues) == 1
    assert (
        {worker_queues.of_worker(number) for number in range(8)}
        == {worker_queues.only()}
        == {worker_queues.place(Delivery("x"))}
    )


def test_one_worker_needs_no_worker_queues() -> None:
    assert len(make_worker_queues(1).queues) == 1


def test_messages_cannot_be_taken_one_by_one_from_several_worker_queues() -> None:
    with pytest.raises(ConfigurationError, match=r"workers=8 makes that many worker queues, which run\(\) serves"):
        make_worker_queues(8).only()


def test_windows_cover_a_round_of_every_worker_queue() -> None:
    one, eight = (ConsumerSettings(URL, {"a": 40, "b": 1}, ordering_key="header:k", workers=n) for n in (1, 8))
    assert {name: eight.units[name] / one.units[name] for name in "ab"} == {"a": 8, "b": 8}
    assert all(eight.windows[name] >= one.windows[name] for name in "ab")
