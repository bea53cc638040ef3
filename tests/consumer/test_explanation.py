"""Why a queue or a tenant waits: as data, as a sentence, and that asking changes nothing; on the embedded broker."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.waiting import eventually

from fairsched import App, Broker, CoDel, ConfigurationError, Consumer, Limit, Publisher, Queue, aio
from fairsched.cli.broker import Session
from fairsched.consumer import Explanation

NOWHERE = "amqp://127.0.0.1:9"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


def fill(url: str, queues: dict[str, int], **values: Any) -> None:
    with Session(url) as session:
        for queue in queues:
            session.declare(queue, {})
    with Publisher(url) as publisher:
        for queue, count in queues.items():
            for _ in range(count):
                publisher.publish(b"x" * 10, queue, **values)


def test_before_the_start() -> None:
    consumer = Consumer(NOWHERE, {"gold": 40, "free": 4})
    found = consumer.explain("gold")
    assert found == Explanation(
        name="gold", kind="queue", connected=False, consuming=False, stopping=False, paused=False, problem=None,
        workers=1, in_hand=0, window=None, unsettled=None, unsettled_bytes=None, byte_limit=None, weight=40, quantum=10,
        deficit=0, served=0, work=0, buffered=0, held=False,
    )  # fmt: skip
    assert str(found) == (
        "queue 'gold' has nothing buffered: there is no connection to a broker; its deficit is 0 of a quantum of 10 "
        "(weight 40); 0 messages in hand, 1 worker"
    )
    assert dataclasses.is_dataclass(found)
    json.dumps(dataclasses.asdict(found))


def test_unknown_names() -> None:
    consumer = Consumer(NOWHERE, {f"q{number}": 1 for number in range(12)})
    with pytest.raises(ConfigurationError) as refusal:
        consumer.explain("x" * 10_000)
    said = str(refusal.value)
    assert "is not consumed; there are 'q0', 'q1'" in said
    assert said.endswith("'q9' and 2 more")
    assert len(said) < 300
    tenants = Consumer(NOWHERE, ["q"], key="header:tenant", tenants={"a": 2})
    with pytest.raises(ConfigurationError, match=r"tenant 'b' has no buffered messages .* tenants 'a' and queues 'q'"):
        tenants.explain("b")


class Unhashable:
    def __hash__(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize("name", [[1], {}, ([],), Unhashable(), ["x" * 10_000]])
@pytest.mark.parametrize("key", [None, "header:tenant"])
def test_names_that_nothing_can_have(name: Any, key: str | None) -> None:
    for consumer in (Consumer(NOWHERE, ["q"], key=key), aio.Consumer(NOWHERE, ["q"], key=key)):
        for refused in (lambda one=consumer: one.explain(name), lambda one=consumer: one.set_weight(name, 3)):
            with pytest.raises(ConfigurationError, match=r"^name must be .* and hashable, got ") as refusal:
                refused()
            assert len(str(refusal.value)) < 200
        for refused in (consumer.pause, consumer.resume):
            with pytest.raises(ConfigurationError, match=r"is not consumed; there are 'q'$") as refusal:
                refused(name)
            assert len(str(refusal.value)) < 200


def test_queues(url: str) -> None:
    fill(url, {"gold": 20, "free": 20})
    with Consumer(url, {"gold": 3, "free": 1}, prefetch={"gold": 20, "free": 30}, max_buffer_bytes=4000) as consumer:
        eventually(lambda: consumer.stats()["received"] == 40)
        first = next(iter(consumer))
        gold, free = consumer.explain("gold"), consumer.explain("free")
        slot = consumer.stats()["slots"]["gold"]
        assert (gold.weight, gold.quantum, gold.deficit) == (3, 3, slot.deficit)
        assert (gold.buffered, gold.served, gold.cost, gold.others) == (slot.queued, slot.served, 1, 1)
        assert {gold.rank, free.rank} == {0, 1}
        assert (gold.window, gold.unsettled, gold.unsettled_bytes, gold.byte_limit) == (20, 20, 200, 3000)
        assert (free.window, free.unsettled) == (30, 20)
        assert (gold.connected, gold.consuming, gold.in_hand, gold.workers) == (True, True, 1, 1)
        assert gold.oldest is not None
        assert gold.oldest >= 0
        said = str(gold)
        assert f"queue 'gold' waits: {slot.queued} messages buffered, the oldest for " in said
        assert f"its deficit is {slot.deficit} of a quantum of 3 (weight 3), and its next message costs 1; " in said
        assert "20 of its window of 20 are unsettled, so the broker sends no more until some are settled; " in said
        assert "200 of 3000 bytes are used; 1 message in hand, 1 worker" in said
        first.ack()
    assert not consumer.explain("gold").connected


def test_slots_that_are_served_before(url: str) -> None:
    """The rank is what the iteration then gives, and asking all the while does not change that."""
    fill(url, {"one": 30, "two": 30, "three": 30}, headers={"tenant": "t"})
    weights = {"one": 1, "two": 5, "three": 2}
    with Consumer(url, weights, prefetch=dict.fromkeys(weights, 50)) as consumer:
        eventually(lambda: consumer.stats()["received"] == 90)
        ranks = {name: consumer.explain(name).rank for name in weights}
        order: list[str] = []
        for message in consumer:
            order.append(message.queue)
            message.ack()
            for name in weights:
                consumer.explain(name)
            if len(order) == 24:
                break
    for name, rank in ranks.items():
        assert len(set(order[: order.index(name)])) == rank
    assert [order.count(name) for name in weights] == [3, 15, 6]


def test_limits_that_queues_have_together(url: str) -> None:
    """A queue that waits for its own limit waits for no other; one that waits for two is said to wait for the first."""
    fill(url, {"own": 3, "named": 3, "free": 3})
    api = Limit(1, name="api")
    queues = [Queue("own", limit=[Limit(1), api]), Queue("named", limit=api), Queue("free")]
    with Consumer(url, queues, limit=Limit(2), workers=3, prefetch=10) as consumer:
        eventually(lambda: consumer.stats()["received"] == 9)
        deliveries = iter(consumer)
        held = [next(deliveries), next(deliveries)]
        found = {name: consumer.explain(name).waits_for for name in ("own", "named", "free")}
        first = held[0].queue if held[0].queue != "free" else held[1].queue
        assert found.pop("free") == "the total limit"
        assert found.pop("named") == "limit 'api'"
        assert found.pop("own") == (None if first == "own" else "limit 'api'")
        for message in held:
            message.ack()


def test_tenants_and_their_queues(url: str) -> None:
    fill(url, {"shared": 0})
    with Publisher(url) as publisher:
        for tenant, count in {"a": 5, "b": 2}.items():
            for _ in range(count):
                publisher.publish(b"", "shared", headers={"tenant": tenant})
    law = CoDel(target=10.0)
    options: dict[str, Any] = {"key": "header:tenant", "tenants": {"a": 2, "idle": 3}, "codel": law, "prefetch": 50}
    with Consumer(url, ["shared"], **options) as consumer:
        eventually(lambda: consumer.stats()["received"] == 7)
        found = consumer.explain("b")
        assert (found.kind, found.buffered, found.weight) == ("tenant", 2, 1)
        assert (found.window, found.unsettled) == (50, 7)
        assert (found.returning, found.returned, found.sojourn) == (None, None, None)
        idle = consumer.explain("idle")
        assert (idle.buffered, idle.weight, idle.oldest, idle.rank) == (0, 3, None, None)
        message = next(iter(consumer))
        asked = consumer.explain(message.slot)
        assert (asked.returning, asked.returned) == (False, 0)
        assert asked.sojourn is not None
        message.ack()
        queue = consumer.explain("shared")
        assert (queue.kind, queue.window, queue.weight, queue.buffered) == ("queue", 50, None, None)
        assert "queue 'shared' is not scheduled itself: " in str(queue)


def test_a_name_that_is_equal_to_a_queue() -> None:
    class Name(str, enum.Enum):  # noqa: UP042 - a StrEnum shows as its value
        GOLD = "gold"

    assert Consumer(NOWHERE, ["gold"]).explain(Name.GOLD).kind == "queue"
    assert Consumer(NOWHERE, ["gold"], key="header:tenant").explain(Name.GOLD).kind == "queue"


def test_worker_queues(url: str) -> None:
    fill(url, {"worker_queues": 0})
    with Publisher(url) as publisher:
        for number in range(40):
            publisher.publish(b"", "worker_queues", headers={"account": number})
    consumer = Consumer(url, ["worker_queues"], ordering_key="header:account", workers=4, prefetch=50)
    with consumer:
        eventually(lambda: consumer.stats()["received"] == 40)
        found = consumer.explain("worker_queues")
        assert (found.buffered, found.rank, found.others, found.workers) == (40, 0, 0, 4)


def test_asyncio_and_apps(url: str) -> None:
    fill(url, {"asked": 3})

    async def ask() -> Explanation:
        async with aio.Consumer(url, ["asked"]) as consumer:
            await asyncio.to_thread(eventually, lambda: consumer.stats()["received"] == 3)
            return consumer.explain("asked")

    assert asyncio.run(ask()).buffered == 3
    app = App(url)
    found: list[Explanation] = []

    @app.consumer("asked")
    def handle(_message: Any) -> None:
        found.append(app.explain("asked"))
        app.stop()

    with pytest.raises(RuntimeError, match="no consumer of this app is running"):
        app.explain("asked")
    app.run()
    assert found[0].in_hand == 3 - (found[0].buffered or 0)


def test_many_ask_while_others_consume(url: str) -> None:
    fill(url, {"busy": 2000})
    ended = threading.Event()
    consumer = Consumer(url, ["busy"], workers=2)
    errors: list[Exception] = []
    handled = itertools.count(1)

    def ask() -> None:
        while not ended.is_set():
            try:
                found = consumer.explain("busy")
                assert (found.oldest is None) == (found.buffered == 0) == (found.rank is None)
                str(found)
            except Exception as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(2)]

    def handle(_message: Any) -> None:
        if next(handled) == 2000:
            consumer.stop()

    for thread in threads:
        thread.start()
    try:
        consumer.run(handle)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert consumer.stats()["acked"] == 2000


def sentence(**changes: Any) -> str:
    known = Explanation(
        name="b", kind="tenant", connected=True, consuming=True, stopping=False, paused=False, problem=None,
        workers=4, in_hand=4,
        window=250, unsettled=40, unsettled_bytes=0, byte_limit=None, weight=4, quantum=4, deficit=0, served=9,
        buffered=12, oldest=3.21, cost=1, rank=2, turns=0, others=7, held=False,
    )  # fmt: skip
    return str(dataclasses.replace(known, **changes))


def test_the_sentence() -> None:
    assert sentence() == (
        "tenant 'b' waits: 12 messages buffered, the oldest for 3.2 s; its deficit is 0 of a quantum of 4 (weight 4), "
        "and its next message costs 1; 2 of 7 other tenants are served before it; 40 of the window of 250 are "
        "unsettled; 4 messages in hand, 4 workers"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 0}, "no other tenant is served before it"),
        ({"rank": 1, "others": 1}, "1 of 1 other tenant is served before it"),
        ({"turns": 1}, "are served before it, and 1 turn of its own passes first"),
        ({"turns": 3}, "3 turns of its own pass first"),
        ({"connected": False}, "there is no connection to a broker"),
        ({"consuming": False}, "the broker has not confirmed the consumer of every queue"),
        ({"kind": "queue", "consuming": False}, "confirmed the consumer of the queue"),
        ({"paused": True, "kind": "queue"}, "; the queue is paused; "),
        ({"paused": True}, "; every queue is paused; "),
        ({"stopping": True}, "the consumer is stopping"),
        ({"stopping": True, "problem": "OSError: full"}, "the consumer cannot continue: OSError: full"),
        ({"returning": True, "returned": 17}, "CoDel is returning its messages, 17 so far"),
        ({"awaited": "a"}, "workers wait for the next message of 'a', whose turn it is"),
        ({"held": True, "buffered": 0, "oldest": None}, "it is on hold: it has more messages at the broker"),
        ({"oldest": 0.0042}, "the oldest for 4.2 ms"),
        ({"subkeys": 2, "busiest": (("x", 11), (7, 1))}, "the next for 3.2 s; by subkey: 11 of 'x', 1 of 7; its"),
        ({"subkeys": 20, "busiest": tuple((n, 9 - n) for n in range(9))}, "9 of 0, 8 of 1, 7 of 2 and some of 17 more"),
        ({"band": 4, "above": 1}, "1 message of earlier bands (its own is 4) is served first; 2 of 7"),
        (
            {"priority": 3, "above": 20},
            "costs 1; 20 messages of higher priorities (that of its next message is 3) are served first; 2 of 7",
        ),
        (
            {"rank": None, "waits_for": "limit 'api'"},
            "costs 1; it takes no turns until limit 'api' allows another message",
        ),
        ({"subkeys": 0, "busiest": ()}, "the next for 3.2 s; its deficit"),
        ({"name": "\x1b[2J" + "x" * 1000}, r"tenant '\x1b[2Jxxx"),
    ],
)
def test_parts_of_the_sentence(changes: dict[str, Any], said: str) -> None:
    found = sentence(**changes)
    assert said in found
    assert len(found) < 600
    assert found.isprintable()
