"""Faults of the network and of the broker: what survives by py-amqp's transport survives by the compiled one."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import kombu.asynchronous
import pytest
from amqp.exceptions import ConnectionForced, RecoverableConnectionError
from support import proxy as proxies
from support.kombu_workers import TRANSPORTS, connection, noted, send_notes, working
from support.proxy import Proxy, behind
from support.rabbitmq import Broker
from support.waiting import eventually

_numbers = itertools.count()
MEGABYTE = 1024 * 1024


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue("kombu-faults")


def attempt(transport: str, url: str, queue: str, seen: Counter[bytes], count: int) -> type[BaseException] | None:
    """Consume and acknowledge until `count` were seen; return the class of the error that ended it, if any."""
    link = connection(transport, url, connect_timeout=10)
    errors = link.recoverable_connection_errors + link.recoverable_channel_errors

    def handle(message: kombu.Message) -> None:
        seen[bytes(message.body)] += 1
        message.ack()

    try:
        channel = link.channel()
        with kombu.Consumer(channel, kombu.Queue(queue, no_declare=True), on_message=handle, prefetch_count=10):
            while len(seen) < count:
                link.drain_events(timeout=30)
        link.close()
    except errors as error:
        return type(error)
    finally:
        with contextlib.suppress(*errors):
            link.collect()
    return None


def cuts() -> Iterator[int]:
    """Yield after how many bytes to cut: within the handshake, the declarations, and deliveries."""
    rnd = random.Random(34)
    yield from (0, 1, 7, 8)
    yield from sorted(rnd.sample(range(9, 1500), 12))
    yield from (rnd.randrange(1500, 6000) for _ in range(10))


def test_a_cut_at_any_byte_loses_nothing(transport: str, broker: Broker, queue: str) -> None:
    bodies = [b"%d" % number * 20 for number in range(400)]
    broker.publish(queue, bodies)
    seen: Counter[bytes] = Counter()
    with Proxy(broker.port) as proxy:
        url = behind(proxy, broker.url)
        for size in cuts():
            proxy.allowance = size
            attempt(transport, url, queue, seen, len(bodies))
        proxy.allowance = None
        eventually(lambda: attempt(transport, url, queue, seen, len(bodies)) is None, 60)
    assert set(seen) == set(bodies)
    # The broker handles the end of a connection in its own time.
    eventually(lambda: broker.left(queue) == 0)


def test_the_same_errors_end_a_handshake(broker: Broker, queue: str) -> None:
    """Whatever the last byte was, an error of either transport is of the same class."""
    with Proxy(broker.port) as proxy:
        url = behind(proxy, broker.url)
        for size in (0, 1, 7, 8, 100, 400):
            proxy.allowance = size
            found = {name: attempt(name, url, queue, Counter(), 1) for name in TRANSPORTS}
            assert found["fairsched"] is found["pyamqp"], (size, found)


def test_a_half_open_link_is_found_by_heartbeats(transport: str, broker: Broker) -> None:
    with Proxy(broker.port) as proxy, connection(transport, behind(proxy, broker.url), heartbeat=2) as link:
        link.connect()
        proxy.silence()

        def beats() -> bool:
            with contextlib.suppress(TimeoutError):
                link.drain_events(timeout=0.2)
            try:
                link.heartbeat_check()
            except (ConnectionForced, RecoverableConnectionError):
                return False
            return True

        eventually(lambda: not beats(), 30)
        link.collect()


def test_segments_of_one_byte(transport: str, broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "PIECE", 1)
    bodies = [bytes([number]) * 50 for number in range(20)]
    seen: Counter[bytes] = Counter()
    with Proxy(broker.port) as proxy:
        url = behind(proxy, broker.url)
        with connection(transport, url, transport_options={"confirm_publish": True}) as link:
            producer = kombu.Producer(link.channel())
            for body in bodies:
                producer.publish(body, routing_key=queue, content_type="application/data", content_encoding="binary")
        eventually(lambda: broker.count(queue) == len(bodies))
        assert attempt(transport, url, queue, seen, len(bodies)) is None
    assert seen == Counter(bodies)
    eventually(lambda: broker.left(queue) == 0)


@pytest.mark.parametrize("rate", [None, 20 * MEGABYTE], ids=["fast", "slow"])
def test_bodies_of_16_mebibytes(transport: str, broker: Broker, queue: str, rate: float | None) -> None:
    """Through a proxy that limits the rate, writes do not fit into the socket's buffers."""
    bodies = [bytes([number]) * 16 * MEGABYTE for number in (1, 2)]
    seen: list[bytes] = []

    def handle(message: kombu.Message) -> None:
        seen.append(bytes(message.body))
        message.ack()

    with Proxy(broker.port, rate=rate) as proxy, connection(transport, behind(proxy, broker.url)) as link:
        channel = link.channel()
        with kombu.Consumer(channel, kombu.Queue(queue, no_declare=True), on_message=handle, prefetch_count=1):
            producer = kombu.Producer(channel)
            for body in bodies:
                producer.publish(body, routing_key=queue, content_type="application/data", content_encoding="binary")
            while len(seen) < len(bodies):
                link.drain_events(timeout=60)
        assert seen == bodies
        producer.publish(bodies[0], routing_key=queue, content_type="application/data", content_encoding="binary")
        got = kombu.Queue(queue, channel=channel, no_declare=True)
        found: list[kombu.Message | None] = [None]

        def get() -> bool:
            found[0] = got.get()
            return found[0] is not None

        eventually(get)
        assert found[0] is not None
        assert bytes(found[0].body) == bodies[0]
        found[0].ack()


def test_a_slow_event_loop_handles_everything(transport: str, broker: Broker, queue: str) -> None:
    """What was read at once and not handled in one turn is handled, although the socket has nothing more to read."""
    count = 1000
    seen: Counter[bytes] = Counter()

    def handle(message: kombu.Message) -> None:
        seen[bytes(message.body)] += 1
        message.ack()

    broker.publish(queue, [b"%d" % number for number in range(count)])
    hub = kombu.asynchronous.Hub()
    here, there = socket.socketpair()

    def dawdle() -> None:
        # Another callback of the loop that takes its time.
        here.settimeout(0.005)
        with contextlib.suppress(TimeoutError):
            here.recv(1)

    with here, there, connection(transport, broker.url) as link:
        channel = link.channel()
        link.register_with_event_loop(hub)
        with kombu.Consumer(channel, kombu.Queue(queue, no_declare=True), on_message=handle, prefetch_count=300):
            turns = hub.create_loop()

            def turn() -> bool:
                hub.call_soon(dawdle)
                next(turns)
                return len(seen) == count

            eventually(turn, 120)
        link.transport.unregister_from_event_loop(link.connection, hub)
        hub.close()
    assert set(seen.values()) == {1}
    eventually(lambda: broker.left(queue) == 0)


# A worker of Celery's takes half a minute, so only those by the compiled transport are run. With the pool of threads, a
# worker may hang after a cut, by either transport: its tasks acknowledge on a connection that is closed by then.
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker_survives_cuts(pool: str, broker: Broker, tmp_path: Path) -> None:
    """No task is lost that is acknowledged late."""
    queue = f"kombu-faults-{pool}-{next(_numbers)}"
    names = [f"task-{number:03}" for number in range(150)]
    send_notes(broker.url, queue, names, 0.01)
    with (
        Proxy(broker.port) as proxy,
        working(
            "fairsched", behind(proxy, broker.url), queue, tmp_path, "-P", pool, "-c", "2", window=10, acks_late=True
        ),
    ):
        for part in (20, 60, 100):
            eventually(lambda part=part: len(set(noted(tmp_path))) >= part, 120)
            proxy.cut()
        eventually(lambda: set(noted(tmp_path)) == set(names), 120)
        eventually(lambda: broker.left(queue) == 0, 60)


def test_a_worker_survives_a_restart_of_the_broker(mortal: Broker, tmp_path: Path) -> None:
    queue = "kombu-faults"
    names = [f"task-{number:03}" for number in range(100)]
    send_notes(mortal.url, queue, names, 0.01)
    with working("fairsched", mortal.url, queue, tmp_path, "-P", "prefork", "-c", "2", window=10, acks_late=True):
        eventually(lambda: len(noted(tmp_path)) >= 20, 120)
        mortal.restart()
        eventually(lambda: set(noted(tmp_path)) == set(names), 180)
        eventually(lambda: mortal.left(queue) == 0, 60)


def test_a_worker_leaves_a_half_open_link(broker: Broker, tmp_path: Path) -> None:
    """Its heartbeats find that nobody answers, and the link ends while it waits for an answer to its good-bye."""
    queue = f"kombu-faults-silence-{next(_numbers)}"
    names = [f"task-{number:03}" for number in range(100)]
    send_notes(broker.url, queue, names, 0.01)
    with Proxy(broker.port) as proxy:
        url = f"{behind(proxy, broker.url)}?heartbeat=3"
        with working("fairsched", url, queue, tmp_path, "-P", "prefork", "-c", "2", window=10, acks_late=True):
            eventually(lambda: len(noted(tmp_path)) >= 20, 120)
            proxy.silence()
            eventually(lambda: "Connection to broker lost" in (tmp_path / "log").read_text(), 60)
            proxy.cut()
            eventually(lambda: set(noted(tmp_path)) == set(names), 120)
            eventually(lambda: broker.left(queue) == 0, 60)
