"""Batches of messages, and batches for Arrow, from a real broker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import busy
from support.waiting import eventually

from fairsched import CoDel, ConfigurationError, FairQueue, aio
from fairsched.consumer import Consumer, consumer_counts

#: Longer than any test.
FOR_EVER = 3600


def received(consumer: Consumer | aio.Consumer, count: int) -> None:
    """Return when so many messages are buffered."""
    eventually(lambda: consumer.stats()["buffered"] == count, what=f"{count} messages are buffered")


def gathered(consumer: Consumer | aio.Consumer, count: int) -> None:
    """Return when so many messages came, and all of them were taken."""
    eventually(lambda: consumer.stats()["received"] == count and not consumer.stats()["buffered"])


def filled(broker: Node, new_queue: Declare, weights: dict[str, int], count: int) -> dict[str, int]:
    """Declare a queue for each weight, with so many messages."""
    queues = {new_queue(name): weight for name, weight in weights.items()}
    for queue in queues:
        broker.publish(queue, numbered(count))
    return queues


def in_fair_order(queues: dict[str, int], first: str, count: int) -> list[Any]:
    """Return what an iteration yields of queues with so many messages each, one of which came first."""
    served = FairQueue(queues)
    for queue in sorted(queues, key=lambda queue: queue != first):
        served.put_many(queue, numbered(count))
    return list(served.get_many(len(queues) * count))


# Order and shares -----------------------------------------------------------------------------------------------------


def test_batches_are_in_the_order_of_an_iteration(broker: Node, new_queue: Declare) -> None:
    queues = filled(broker, new_queue, {"gold": 4, "free": 1}, 300)
    with Consumer(broker.url, queues, prefetch=dict.fromkeys(queues, 300)) as consumer:
        received(consumer, 600)
        found = [(message.queue, message.body) for batch in islice(consumer.batches(64), 10) for message in batch]
    # Whichever came first begins.
    assert found in [in_fair_order(queues, first, 300) for first in queues]
    gold, free = queues
    assert Counter(queue for queue, _ in found[:250]) == {gold: 200, free: 50}


def test_all_are_settled_and_none_twice(broker: Node, new_queue: Declare) -> None:
    queues = filled(broker, new_queue, {"a": 2, "b": 1, "c": 1}, 1000)
    seen: Counter[tuple[str, bytes]] = Counter()
    sizes = []
    with Consumer(broker.url, queues, prefetch=300) as consumer:
        for batch in consumer.batches(64):
            with batch:
                sizes.append(len(batch))
                seen.update((message.queue, message.body) for message in batch)
            if seen.total() == 3000:
                consumer.stop()
    assert set(seen.values()) == {1}
    assert len(seen) == 3000
    assert max(sizes) == 64
    stats = consumer.stats()
    assert (stats["acked"], stats["nacked"], stats["stale_settlements"]) == (3000, 0, 0)
    assert broker.left(*queues) == 0


def test_some_are_settled_alone(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("single")
    broker.publish(queue, numbered(10))
    with Consumer(broker.url, [queue], prefetch=10) as consumer:
        batch = next(consumer.batches(10, FOR_EVER))
        assert len(batch) == 10
        assert batch[3].nack()
        assert batch[4].nack(requeue=False)
        assert batch.ack() == 8
        assert batch.nack() == 0
        again = next(consumer.batches(10, 0))
        assert [(message.body, message.redelivered) for message in again] == [(b"3", True)]
        with again:
            pass
        consumer.stop()
    stats = consumer.stats()
    assert (stats["acked"], stats["nacked"], stats["rejected"]) == (9, 1, 1)
    assert broker.left(queue) == 0


def test_a_block_that_raises_requeues(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("raises")
    broker.publish(queue, numbered(10))
    with Consumer(broker.url, [queue], prefetch=10) as consumer:
        batch = next(consumer.batches(10, FOR_EVER))
        assert batch[0].ack()
        with pytest.raises(ValueError, match="no"), batch:
            raise ValueError("no")
        with next(consumer.batches(9, FOR_EVER)) as batch:
            assert {message.body for message in batch} == set(numbered(10)[1:])
        stats = consumer.stats()
        assert (stats["acked"], stats["nacked"], stats["errors"]) == (10, 9, 9)
        consumer.stop()
    assert broker.left(queue) == 0


# How long is waited for ----------------------------------------------------------------------------------------------


def test_a_batch_is_no_larger_than_the_windows_and_does_not_wait_in_vain(broker: Node, new_queue: Declare) -> None:
    queues = filled(broker, new_queue, {"a": 1, "b": 1}, 40)
    with Consumer(broker.url, queues, prefetch=dict.fromkeys(queues, 5)) as consumer:
        sizes = []
        for batch in islice(consumer.batches(1000, FOR_EVER), 8):
            with batch:
                sizes.append(len(batch))
        consumer.stop()
    assert sizes == [10] * 8
    assert broker.left(*queues) == 0


def test_what_is_here_is_not_kept_for_more(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("now")
    broker.publish(queue, numbered(3))
    with Consumer(broker.url, [queue], prefetch=100) as consumer:
        received(consumer, 3)
        with next(consumer.batches(100, 0)) as batch:
            assert len(batch) == 3
        broker.publish(queue, numbered(5))
        received(consumer, 5)
        with next(consumer.batches(100, 0.01)) as batch:
            assert len(batch) == 5


def test_a_batch_waits_for_more(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("more")
    broker.publish(queue, numbered(3))
    with Consumer(broker.url, [queue], prefetch=100) as consumer:

        def publish() -> None:
            for count in (3, 6, 9):
                gathered(consumer, count)
                broker.publish(queue, numbered(3))

        thread = threading.Thread(target=publish)
        thread.start()
        with next(consumer.batches(12, FOR_EVER)) as batch:
            assert len(batch) == 12
        thread.join()


@pytest.mark.parametrize("now", [False, True])
def test_a_stop_while_more_is_waited_for(broker: Node, new_queue: Declare, now: bool) -> None:
    queue = new_queue("stop")
    broker.publish(queue, numbered(7))
    sizes = []

    def stop() -> None:
        gathered(consumer, 7)
        consumer.stop(now)

    with Consumer(broker.url, [queue], prefetch=100) as consumer:
        thread = threading.Thread(target=stop)
        thread.start()
        for batch in consumer.batches(100, FOR_EVER):
            with batch:
                sizes.append(len(batch))
        thread.join()
    stats = consumer.stats()
    assert sizes == ([] if now else [7])
    assert (stats["acked"], stats["nacked"]) == ((0, 7) if now else (7, 0))
    eventually(lambda: broker.count(queue) == (7 if now else 0))


def test_a_stop_while_the_first_is_waited_for(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("stop")
    with Consumer(broker.url, [queue]) as consumer:
        batches = consumer.batches()
        waiting = consumer._client.worker_queues.queues[0].waiting
        stopper = threading.Thread(target=lambda: (eventually(waiting), consumer.stop()))
        stopper.start()
        assert list(batches) == []
        stopper.join()


def test_what_is_handed_out_is_waited_for_and_returned_when_the_time_is_over(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("late")
    broker.publish(queue, numbered(20))
    with Consumer(broker.url, [queue], prefetch=10, shutdown_timeout=0.5) as consumer:
        batch = next(consumer.batches(10, FOR_EVER))
        consumer.stop()
    assert (len(batch), batch.ack()) == (10, 0)
    eventually(lambda: broker.count(queue) == 20)


def test_leaving_without_a_stop_returns_what_was_handed_out(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("left")
    broker.publish(queue, numbered(20))
    with Consumer(broker.url, [queue], prefetch=15) as consumer:
        batch = next(consumer.batches(10, FOR_EVER))
        assert batch[0].ack()
    assert batch.ack() == 0
    eventually(lambda: broker.count(queue) == 19)


# Lost connections and processes --------------------------------------------------------------------------------------


def test_a_connection_lost_before_a_batch_is_settled(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cut")
    broker.publish(queue, numbered(10))
    with Proxy(broker.port) as proxy, Consumer(behind(proxy, broker.url), [queue], prefetch=10) as consumer:
        batches = consumer.batches(10, FOR_EVER)
        lost = next(batches)
        assert [message.body for message in lost] == numbered(10)
        proxy.cut()
        seen: list[bytes] = []
        for batch in batches:  # of one message first: windows are narrow after a loss
            assert batch.ack() == len(batch)
            seen += [message.body for message in batch]
            if len(seen) == 10:
                break
        assert seen == numbered(10)
        assert lost.ack() == 0
        assert consumer.stats()["stale_settlements"] == 10
        consumer.stop()
    assert broker.left(queue) == 0


def test_a_connection_lost_while_more_is_waited_for(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cut")
    broker.publish(queue, numbered(6))
    with Proxy(broker.port) as proxy, Consumer(behind(proxy, broker.url), [queue], prefetch=8) as consumer:

        def cut() -> None:
            gathered(consumer, 6)
            proxy.cut()
            gathered(consumer, 12)
            broker.publish(queue, [b"6", b"7"])

        thread = threading.Thread(target=cut)
        thread.start()
        seen: list[bytes] = []
        for batch in consumer.batches(1000, FOR_EVER):
            with batch:
                assert all(message.alive for message in batch)
                seen += [message.body for message in batch]
            if len(seen) == 8:
                consumer.stop()
        thread.join()
    assert seen == numbered(8)
    assert consumer.stats()["acked"] == 8
    assert consumer.stats()["stale_settlements"] == 0
    assert broker.left(queue) == 0


KILLED = """
    import sys, threading
    from fairsched import Consumer
    with Consumer(sys.argv[1], [sys.argv[2]], prefetch=100) as consumer:
        batch = next(consumer.batches(60, 3600))
        for message in batch[:10]:
            message.ack()
        consumer._client.io_thread.request_flush()
        print(len(batch), flush=True)
        threading.Event().wait()
"""


def test_a_killed_process_returns_what_it_did_not_settle(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("killed")
    broker.publish(queue, numbered(100))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), broker.url, queue], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "60\n"
        eventually(lambda: broker.left(queue) == 90)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
    eventually(lambda: broker.count(queue) == 90)
    with Consumer(broker.url, [queue], prefetch=90) as consumer, next(consumer.batches(90, FOR_EVER)) as batch:
        assert {message.body for message in batch} == set(numbered(100)[10:])


# What else a consumer does --------------------------------------------------------------------------------------------


def test_what_waited_too_long_is_returned_from_batches_too(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_counts, "PERIOD", 0.1)
    monkeypatch.setattr(consumer_counts, "FIRST", 0.05)
    queue = new_queue("shed")
    law = CoDel(0.02, 0.02, budget=2, when_alone=True)
    seen: Counter[bytes] = Counter()
    with Consumer(broker.url, [queue], prefetch=100, codel=law) as consumer:
        broker.publish(queue, numbered(300))
        for batch in consumer.batches(20, 0):
            with batch:
                busy(0.05)
                seen.update(message.body for message in batch)
            if len(seen) == 300:
                consumer.stop()
        stats = consumer.stats()
    assert seen == Counter(numbered(300))  # none lost, none twice
    assert stats["shed"] > 0
    assert stats["received"] == 300 + stats["shed"]
    # What went back was not charged.
    assert stats["slots"][queue].work == 300
    assert broker.left(queue) == 0


def test_the_time_of_a_block_is_divided_among_its_messages(broker: Node, new_queue: Declare) -> None:
    queues = filled(broker, new_queue, {"a": 1, "b": 1}, 3)
    with Consumer(broker.url, queues, prefetch=dict.fromkeys(queues, 3), cost="time") as consumer:
        with next(consumer.batches(6, FOR_EVER)) as batch:
            assert len(batch) == 6
            busy(0.03)
        slots = consumer.stats()["slots"]
        a, b = (slots[queue].work for queue in queues)
        assert a == b >= 3 * 5_000_000
        assert consumer._client.service() == pytest.approx(a * 1e-9 / 3, rel=0.01)
        consumer.stop()


def test_deferred_messages_are_waited_for(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("deferred")
    broker.publish(queue, numbered(5))
    with Consumer(broker.url, [queue], prefetch=5) as consumer:
        with next(consumer.batches(5, FOR_EVER)) as batch:
            batch[2].defer()
        consumer.stop()
        thread = threading.Thread(target=lambda: (eventually(lambda: consumer._client._closed), batch[2].ack()))
        thread.start()
    thread.join()
    assert consumer.stats()["acked"] == 5
    assert broker.left(queue) == 0


def test_worker_queues_and_closed_consumers_are_refused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("worker_queues")
    with (
        Consumer(broker.url, [queue], ordering_key="header:k", workers=2) as consumer,
        pytest.raises(ConfigurationError, match="makes that many worker queues"),
    ):
        consumer.batches()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.batches()
    with Consumer(broker.url, [queue], ordering_key="header:k") as consumer:
        consumer.batches()


def test_what_ends_the_connection_ends_the_batches(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("ends")

    def key(message: object) -> str:
        if message.body == b"3":
            raise SystemExit(3)
        return "tenant"

    broker.publish(queue, numbered(3))
    with Consumer(broker.url, [queue], key=key) as consumer:
        batches = consumer.batches(100, FOR_EVER)
        thread = threading.Thread(target=lambda: (gathered(consumer, 3), broker.publish(queue, [b"3"])))
        thread.start()
        with pytest.raises(SystemExit):
            next(batches)
        thread.join()
    eventually(lambda: broker.count(queue) == 4)


def test_several_threads_take_batches(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("threads")
    broker.publish(queue, numbered(5000))
    seen: Counter[bytes] = Counter()
    with Consumer(broker.url, [queue], prefetch=500) as consumer:

        def work() -> None:
            for batch in consumer.batches(30, 0.001):
                with batch:
                    bodies = [message.body for message in batch]
                seen.update(bodies)
                if len(seen) == 5000:
                    consumer.stop()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == Counter(numbered(5000))
    assert consumer.stats()["acked"] == 5000
    assert broker.left(queue) == 0


# Arrow ----------------------------------------------------------------------------------------------------------------


def test_arrow_batches(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("arrow"), new_queue("arrow")
    broker.publish(queue, numbered(50), headers={"tenant": "gold", "n": 7}, message_id="m", priority=3)
    broker.publish(queue, numbered(50))
    with Consumer(broker.url, [other, queue], prefetch=dict.fromkeys([other, queue], 100)) as consumer:
        received(consumer, 100)
        batches = consumer.arrow_batches(100, 0, headers=["tenant", "n"], properties=["message_id", "priority"])
        with next(batches) as batch:
            found = batch.record_batch
            found.validate(full=True)
            assert found["queue"].dictionary.to_pylist() == [other, queue]
            rows = found.to_pylist()
            assert [row["body"] for row in rows] == [message.body for message in batch] == 2 * numbered(50)
            for row, message in zip(rows, batch, strict=True):
                assert (row["queue"], row["routing_key"], row["exchange"]) == (queue, queue, "")
                assert row["redelivered"] == message.redelivered
                assert row["tenant"] == message.headers.get("tenant")
                assert (row["message_id"], row["priority"]) == (
                    message.properties.message_id,
                    message.properties.priority,
                )
            assert [row["n"] for row in rows] == ["7"] * 50 + [None] * 50
        consumer.stop()
    assert consumer.stats()["acked"] == 100
    assert broker.left(queue) == 0


def test_the_examples_of_the_manual(broker: Node, new_queue: Declare, tmp_path: Path) -> None:
    """Each gets what is in the queues, and is stopped when it has it."""
    page = (Path(__file__).parents[2] / "docs/howto/consuming.md").read_text(encoding="utf-8")
    section = page.split("\n## Batches\n")[1].split("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        queues = [new_queue("gold"), new_queue("free")]
        for queue in queues:
            broker.publish(queue, [*numbered(20), b""], headers={"tenant": queue})
        seen: list[bytes] = []
        names: dict[str, Any] = {"Consumer": Consumer, "url": broker.url, "insert": seen.extend, "folder": tmp_path}
        code = example.replace("gold", queues[0]).replace("free", queues[1])

        def stop(names: dict[str, Any] = names) -> None:
            eventually(lambda: "consumer" in names and names["consumer"].stats()["received"] == 42)
            names["consumer"].stop()

        thread = threading.Thread(target=stop)
        thread.start()
        exec(code, names)
        thread.join()
        assert broker.left(*queues) == 0
        stats = names["consumer"].stats()
        if "reject" in code:
            assert (stats["acked"], stats["rejected"]) == (40, 2)
        else:
            assert stats["acked"] == 42
        if "parquet" in code:
            rows = parquet.read_table(tmp_path).to_pylist()
            seen = [row["body"] for row in rows]
            assert {row["tenant"] for row in rows} == {*queues}
        assert Counter(body for body in seen if body) == Counter(2 * numbered(20))


# asyncio --------------------------------------------------------------------------------------------------------------


def test_asyncio_takes_the_same_batches(broker: Node, new_queue: Declare) -> None:
    queues = filled(broker, new_queue, {"gold": 4, "free": 1}, 300)
    seen: list[tuple[str, bytes]] = []

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, queues, prefetch=dict.fromkeys(queues, 300)) as consumer:
            await asyncio.to_thread(received, consumer, 600)
            async for batch in consumer.batches(50):
                with batch:
                    await asyncio.sleep(0)
                    seen.extend((message.queue, message.body) for message in batch)
                if len(seen) == 600:
                    consumer.stop()
        return consumer.stats()

    stats = asyncio.run(main())
    gold, free = queues
    assert Counter(queue for queue, _ in seen[:250]) == {gold: 200, free: 50}
    assert [body for queue, body in seen if queue == gold] == numbered(300)
    assert (stats["acked"], stats["nacked"]) == (600, 0)
    assert broker.left(*queues) == 0


def test_asyncio_waits_for_more_and_stops(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(4))
    sizes = []

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], prefetch=100) as consumer:

            async def publish() -> None:
                await asyncio.to_thread(gathered, consumer, 4)
                await asyncio.to_thread(broker.publish, queue, numbered(4))
                await asyncio.to_thread(gathered, consumer, 8)
                consumer.stop()

            task = asyncio.create_task(publish())
            async for batch in consumer.batches(100, FOR_EVER):
                with batch:
                    sizes.append(len(batch))
            await task
        return consumer.stats()

    assert asyncio.run(main())["acked"] == 8
    assert sizes == [8]


def test_asyncio_does_not_wait_in_vain(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(20))

    async def main() -> list[int]:
        sizes = []
        async with aio.Consumer(broker.url, [queue], prefetch=5) as consumer:
            async for batch in consumer.batches(100, FOR_EVER):
                with batch:
                    sizes.append(len(batch))
                if len(sizes) == 4:
                    consumer.stop()
        return sizes

    assert asyncio.run(main()) == [5] * 4


def test_asyncio_gives_what_is_here_when_the_time_is_over(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("aio")
    broker.publish(queue, numbered(3))

    async def main() -> list[int]:
        async with aio.Consumer(broker.url, [queue], prefetch=100) as consumer:
            await asyncio.to_thread(received, consumer, 3)
            sizes = []
            for wait in (0, 0.01):
                async for batch in consumer.batches(100, wait):
                    sizes.append(len(batch))
                    batch.nack()
                    break
                await asyncio.to_thread(received, consumer, 3)
        return sizes

    assert asyncio.run(main()) == [3, 3]


def test_a_task_cancelled_while_it_waits_loses_nothing(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cancel")
    broker.publish(queue, numbered(6))

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], prefetch=100) as consumer:
            task = asyncio.ensure_future(anext(consumer.batches(100, FOR_EVER)))
            await asyncio.to_thread(gathered, consumer, 6)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for batch in consumer.batches(6, FOR_EVER):
                with batch:
                    assert [message.body for message in batch] == numbered(6)
                consumer.stop()
            for _ in range(3):  # and while nothing is here
                idle = asyncio.ensure_future(anext(consumer.batches()))
                await asyncio.sleep(0)
                idle.cancel()
                await asyncio.gather(idle, return_exceptions=True)
        return consumer.stats()

    stats = asyncio.run(main())
    assert (stats["acked"], stats["nacked"], stats["stale_settlements"]) == (6, 6, 0)
    assert broker.left(queue) == 0


def test_tasks_that_are_cancelled_at_any_moment_lose_nothing(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cancel")
    broker.publish(queue, numbered(400))
    seen: Counter[bytes] = Counter()

    async def main() -> dict[str, Any]:
        async with aio.Consumer(broker.url, [queue], prefetch=40) as consumer:
            steps: Iterator[int] = iter(range(10**9))
            while seen.total() < 400:
                task = asyncio.ensure_future(anext(consumer.batches(15, 0.01)))
                for _ in range(next(steps) % 7):
                    await asyncio.sleep(0)
                if next(steps) % 3:
                    task.cancel()
                try:
                    batch = await task
                except asyncio.CancelledError:
                    continue
                with batch:
                    seen.update(message.body for message in batch)
            consumer.stop()
        return consumer.stats()

    stats = asyncio.run(main())
    assert seen == Counter(numbered(400))
    assert stats["acked"] == 400
    assert broker.left(queue) == 0


def test_asyncio_arrow_batches(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("arrow")
    broker.publish(queue, numbered(20))

    async def main() -> list[bytes]:
        async with aio.Consumer(broker.url, [queue], prefetch=10) as consumer:
            bodies: list[bytes] = []
            async for batch in consumer.arrow_batches(10, FOR_EVER):
                with batch:
                    bodies += batch.record_batch["body"].to_pylist()
                if len(bodies) == 20:
                    consumer.stop()
        return bodies

    assert asyncio.run(main()) == numbered(20)


def test_arrow_batches_of_a_queue_that_was_added(broker: Node, new_queue: Declare) -> None:
    first, second = new_queue("arrow"), new_queue("arrow")
    broker.publish(second, [b"x", b"y"])
    with Consumer(broker.url, [first]) as consumer:
        batches = consumer.arrow_batches(2, 10)
        consumer.add_queue(second)
        batch = next(batches)
        assert batch.record_batch.column("queue").to_pylist() == [second, second]
        batch.ack()
