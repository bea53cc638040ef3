"""The metrics Prometheus is told: by prometheus_client's own parser, against what the consumer says of itself."""

from __future__ import annotations

import asyncio
import gc
import http.client
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.ports import free_ports
from support.rabbitmq import numbered
from support.waiting import eventually

from fairsched import App, Broker, Consumer, Limit, Publisher, Queue, Retry, Tenant, aio
from fairsched.cli.broker import Session
from fairsched.errors import ConfigurationError, ConnectionFailed
from fairsched.metrics import LONGEST_NAME, MOST_QUEUES, collector, text

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker() as broker:
        yield broker.url


def parsed(exposition: str) -> Samples:
    """Return the samples of a text, each of which must be there once."""
    found: Samples = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def scrape(registry: CollectorRegistry) -> Samples:
    return parsed(generate_latest(registry).decode())


def registered(consumer: Any, **options: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector(consumer, **options))
    return registry


def of(samples: Samples, name: str) -> dict[str, float]:
    """Return the values of a metric by the value of its only label, or by nothing."""
    return {labels[0][1] if labels else "": value for (found, labels), value in samples.items() if found == name}


def filled(url: str, queue: str, count: int, **values: Any) -> None:
    with Session(url) as session:
        session.declare(queue, {})
    with Publisher(url) as publisher:
        for body in numbered(count):
            publisher.publish(body, queue, **values)


def consume_some(consumer: Consumer, count: int) -> None:
    """Handle some messages: the third raises, the fourth is rejected."""
    done: list[bytes] = []

    def handle(message: Any) -> None:
        done.append(message.body)
        if len(done) == count:
            consumer.stop(now=True)
        if len(done) == 3:
            raise ValueError("bad")
        if len(done) == 4:
            message.reject()

    consumer.run(handle)


def test_every_sample_is_what_the_consumer_says_of_itself(url: str) -> None:
    names = ["plain", 'odd "name"\\ with € and {braces}']
    for name in names:
        filled(url, name, 20)
    consumer = Consumer(url, {names[0]: 3, names[1]: 1}, on_error="reject", prefetch=40)
    registry = registered(consumer)
    before = scrape(registry)
    assert of(before, "fairsched_messages_received_total") == {"": 0}
    assert of(before, "fairsched_queue_consumed") == dict.fromkeys(names, 0)
    consume_some(consumer, 17)
    samples, stats = scrape(registry), consumer.stats()
    assert stats["received"] >= 17
    assert of(samples, "fairsched_messages_received_total") == {"": stats["received"]}
    assert of(samples, "fairsched_messages_processed_total") == {
        "acked": stats["acked"], "nacked": stats["nacked"], "rejected": stats["rejected"],
    }  # fmt: skip
    assert stats["rejected"] == 2
    assert of(samples, "fairsched_handler_errors_total") == {"": 1}
    for metric, figure in {
        "fairsched_served_messages_total": "served",
        "fairsched_served_cost_total": "work",
        "fairsched_buffered_messages": "queued",
        "fairsched_deficit": "deficit",
        "fairsched_quantum": "quantum",
    }.items():
        assert of(samples, metric) == {name: getattr(slot, figure) for name, slot in stats["slots"].items()}
    assert of(samples, "fairsched_connected") == {"": 0}


def test_a_running_consumer(url: str) -> None:
    filled(url, "running", 12)
    with Consumer(url, ["running"], prefetch=10) as consumer:
        registry = registered(consumer)
        messages = iter(consumer)
        first, _second = next(messages), next(messages)
        first.ack()
        eventually(lambda: consumer.stats()["received"] >= 10)
        samples = scrape(registry)
        assert of(samples, "fairsched_connected") == {"": 1}
        assert of(samples, "fairsched_queue_consumed") == {"running": 1}
        assert of(samples, "fairsched_prefetch_limit") == {"running": 10}
        assert of(samples, "fairsched_inflight_messages") == {"": 1}


def test_tenants_beyond_the_bound_are_counted_together(url: str) -> None:
    queue = "tenants"
    for number in range(8):
        filled(url, queue, 5 + number, headers={"tenant": f"t{number}"})
    whole = sum(5 + number for number in range(8))
    with Consumer(url, [queue], key="header:tenant", tenants={"t0": 2, "elsewhere": 1}, prefetch=200) as consumer:
        registry = registered(consumer, tenants=4)
        eventually(lambda: consumer.state.buffered == whole)
        samples = scrape(registry)
        # Those with a weight of their own, and of the others those with most messages.
        waiting = {"elsewhere": 0, "t0": 5, "t7": 12, "t6": 11}
        others = whole - sum(waiting.values())
        assert of(samples, "fairsched_buffered_messages") == {**waiting, "other": others}
        assert of(samples, "fairsched_tenants") == {"": 9}
        handled = 0
        for message in consumer:
            with message:
                handled += 1
            found = of(scrape(registry), "fairsched_served_messages_total")
            assert sum(found.values()) == handled
            assert set(found) == {*waiting, "other"}
            if handled == whole:
                consumer.stop()
        # They are idle now, and the others forgotten.
        assert of(scrape(registry), "fairsched_served_messages_total") == {**waiting, "other": others}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=6), st.binary(max_size=6), st.integers(-3, 3), st.tuples(st.integers()))),
    st.integers(0, 5),
)
def test_labels_are_bounded_whatever_tenants_are_called(tenants: list[Any], most: int) -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"], key=lambda message: None)
    registry = registered(consumer, tenants=most)
    for round_number in range(2):
        worker_queue = consumer._client.worker_queues.only()
        for tenant in tenants[round_number::2]:
            worker_queue.put(tenant, object())
        samples = scrape(registry)
        found = of(samples, "fairsched_buffered_messages")
        assert len(found) <= most + 1
        assert sum(found.values()) == worker_queue.qsize()
        assert found.keys() - {"other"} <= {text(tenant) for tenant in tenants}
        if len({text(tenant) for tenant in tenants[::2]} - {"other"}) >= most:
            assert len(found) == most + 1


def test_a_cost_that_is_corrected_does_not_count_backwards() -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"], cost="bytes")
    registry = registered(consumer)
    worker_queue = consumer._client.worker_queues.only()
    worker_queue.put("q", object(), cost=100)
    worker_queue.get()
    assert of(scrape(registry), "fairsched_served_cost_total") == {"q": 100}
    worker_queue.settle("q", -60)
    assert worker_queue.stats()["q"].work == 40
    assert of(scrape(registry), "fairsched_served_cost_total") == {"q": 100}


def test_what_a_limit_withholds_is_seen_until_it_is_given_back(url: str) -> None:
    filled(url, "limited", 6)
    filled(url, "unlimited", 3)
    queues = [Queue("limited", limit=Limit(2, rate=1000, burst=10)), Queue("unlimited")]
    with Consumer(url, queues) as consumer:
        registry = registered(consumer)
        messages = iter(consumer)
        eventually(lambda: consumer.state.buffered == 9)
        found = [next(messages) for _ in range(5)]
        kept = [message for message in found if message.queue == "limited"]
        samples = scrape(registry)
        assert of(samples, "fairsched_limit_in_use") == of(samples, "fairsched_limit_concurrency") == {"limited": 2}
        assert of(samples, "fairsched_limit_rate") == {"limited": 1000}
        assert of(samples, "fairsched_limit_withheld_messages") == {"limited": 4}
        assert of(samples, "fairsched_limits_reached") == {"": 1}
        kept[0].ack()
        eventually(lambda: of(scrape(registry), "fairsched_limit_withheld_messages") == {"limited": 0})
        samples = scrape(registry)
        assert of(samples, "fairsched_limit_in_use") == {"limited": 1}
        assert of(samples, "fairsched_limits_reached") == {"": 0}


def test_limits_of_tenants_beyond_the_bound_are_added_up(url: str) -> None:
    for number in range(5):
        filled(url, "metered", 3, headers={"tenant": f"t{number}"})
    tenants = {
        "t0": Tenant(weight=2, limit=Limit(2)), "t1": Tenant(limit=False), "*": Tenant(limit=Limit(1)),
    }  # fmt: skip
    with Consumer(url, ["metered"], key="header:tenant", tenants=tenants) as consumer:
        registry = registered(consumer, tenants=1)
        messages = iter(consumer)
        eventually(lambda: consumer.state.buffered == 15)
        kept = [next(messages) for _ in range(8)]
        samples = scrape(registry)
        assert len(kept) == 8  # two of t0, all three of t1 and one of each other
        assert of(samples, "fairsched_limit_concurrency") == {"t0": 2}
        assert of(samples, "fairsched_limit_in_use") == {"t0": 2, "other": 3}
        assert of(samples, "fairsched_limit_withheld_messages") == {"t0": 1, "other": 6}
        assert of(samples, "fairsched_limits_reached") == {"": 4}
        for message in kept:
            message.ack()


def test_without_a_limit_a_group_or_retries_there_are_no_samples_of_them() -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"])
    samples = scrape(registered(consumer))
    assert samples
    unwanted = re.compile("fairsched_(limit|share_group|retry)")
    assert [name for name, _ in samples if unwanted.match(name)] == []


def test_a_share_group_and_what_it_charges(url: str) -> None:
    filled(url, "own", 20_000)
    filled(url, "common", 20_000)
    quiet = Consumer(url, ["own", "common"], share_group="metrics", prefetch=100)
    busy = Consumer(url, ["common"], share_group="metrics", prefetch=100)
    registry = registered(quiet)
    with quiet, busy:
        served = threading.Event()

        def serve(consumer: Consumer) -> None:
            for message in consumer:
                message.ack()
                if served.wait(0.001):
                    return

        threads = [threading.Thread(target=serve, args=(one,)) for one in (quiet, busy)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: of(scrape(registry), "fairsched_share_group_peers") == {"": 1})
            assert of(scrape(registry), "fairsched_share_group_connected") == {"": 1}
            eventually(lambda: of(scrape(registry), "fairsched_share_group_charge").get("common", 0) > 0, 60)
            assert of(scrape(registry), "fairsched_share_group_charge")["own"] == 0
        finally:
            served.set()
            for thread in threads:
                thread.join(30)
    samples = scrape(registry)
    assert of(samples, "fairsched_share_group_connected") == {"": 0}
    assert of(samples, "fairsched_share_group_charge") == {}


def test_what_fails_again_and_copies_that_cannot_be_published(url: str) -> None:
    filled(url, "retried", 1)
    filled(url, "failing", 1)
    with Session(url) as session:
        session.declare("retried.retry.20", {})  # not as the second retry needs it
    queues = [Queue("retried", retry=Retry(backoff=(0.01, 0.02), jitter=False)), "failing"]
    with Consumer(url, queues, on_error="requeue") as consumer:
        registry = registered(consumer)
        done = threading.Event()

        def fail() -> None:
            for message in consumer:
                message.fail(ValueError("bad"))
                if done.is_set():
                    return

        thread = threading.Thread(target=fail)
        thread.start()
        try:
            eventually(lambda: of(scrape(registry), "fairsched_requeues_delayed")[""] > 0)
            eventually(lambda: of(scrape(registry), "fairsched_messages_retried_total")[""] > 0)
            eventually(lambda: of(scrape(registry), "fairsched_retry_failures_total")[""] > 0)
            assert of(scrape(registry), "fairsched_retrying_messages")[""] in (0, 1)
        finally:
            done.set()
            consumer.stop(now=True)
            thread.join(30)


# How long messages take -------------------------------------------------------------------------------------------


def histogram(samples: Samples, name: str, queue: str) -> dict[str, float]:
    """Return what a histogram counted up to each bound, and its sum."""
    found = {
        dict(labels)["le"]: value
        for (metric, labels), value in samples.items()
        if metric == name + "_bucket" and dict(labels)["queue"] == queue
    }
    assert list(found.values()) == sorted(found.values())
    assert found["+Inf"] == samples[(name + "_count", (("queue", queue),))]
    return {**found, "sum": samples[(name + "_sum", (("queue", queue),))]}


@pytest.mark.parametrize("how", ["run", "run, async", "messages", "messages, async", "batches"])
def test_durations_of_messages(url: str, how: str) -> None:
    name = "timed " + how
    filled(url, name, 10, timestamp=int(time.time()) - 3000)
    filled(url, name, 10)
    consumer: Any = (aio.Consumer if "async" in how else Consumer)(url, [name], prefetch=100)
    registry = registered(consumer)
    scrape(registry)
    handled = 0

    def handle(message: Any) -> None:
        nonlocal handled
        handled += 1
        time.sleep(0.002)
        if handled == 20:
            consumer.stop()

    async def consume() -> None:
        async with consumer:
            if how == "run, async":
                await consumer.run(handle)
                return
            async for message in consumer:
                handle(message)
                message.ack()

    if "async" in how:
        asyncio.run(consume())
    elif how == "run":
        consumer.run(handle)
    else:
        with consumer:
            for one in consumer.batches() if how == "batches" else consumer:
                with one:
                    for message in one if how == "batches" else [one]:
                        handle(message)
    samples = scrape(registry)
    sojourn = histogram(samples, "fairsched_buffer_sojourn_seconds", name)
    age = histogram(samples, "fairsched_message_age_seconds", name)
    assert sojourn["+Inf"] == 20
    assert 0 <= sojourn["sum"] < 20 * 60
    assert (age["2000.0"], age["5000.0"], age["+Inf"]) == (0, 10, 10)
    assert 10 * 3000 <= age["sum"] < 10 * 3100
    service = histogram(samples, "fairsched_process_duration_seconds", name)
    # A program that iterates has no handler that could be measured.
    assert (service["0.001"], service["+Inf"]) == (0, 0 if how.startswith("messages") else 20)
    assert service["sum"] >= (0 if how.startswith("messages") else 20 * 0.002)


def test_nothing_is_timed_before_the_first_scrape(url: str) -> None:
    filled(url, "unscraped", 5)
    consumer = Consumer(url, ["unscraped"], on_error="reject")  # what is requeued may be received again
    registry = registered(consumer)
    consume_some(consumer, 5)
    assert consumer.stats()["received"] == 5
    assert histogram(scrape(registry), "fairsched_buffer_sojourn_seconds", "unscraped")["+Inf"] == 0


def test_histograms_of_queues_beyond_the_bound_are_added_up() -> None:
    queues = [f"q{number}" for number in range(MOST_QUEUES + 5)]
    consumer = Consumer("amqp://127.0.0.1:9", queues)
    samples = scrape(registered(consumer))
    labels = {dict(labels)["queue"] for name, labels in samples if name == "fairsched_message_age_seconds_count"}
    assert labels == {*queues[:MOST_QUEUES], "other"}


class Nameless:
    def __str__(self) -> str:
        raise RuntimeError("no name")


def test_tenants_that_cannot_be_labels() -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"], key=lambda message: None)
    worker_queue = consumer._client.worker_queues.only()
    for tenant in (Nameless(), "x" * (LONGEST_NAME + 1), "other", 1, "1", "\ud800", ""):
        worker_queue.put(tenant, object())
    found = of(scrape(registered(consumer)), "fairsched_buffered_messages")
    assert found == {"1": 1, "\\ud800": 1, "": 1, "other": 4}


def test_a_secret_never_appears() -> None:
    [port] = free_ports(1)
    consumer = Consumer(f"amqp://app:hunter2@127.0.0.1:{port}/", ["q"], connect_timeout=0.5)
    registry = registered(consumer)
    found = [generate_latest(registry).decode()]

    def connect() -> None:
        with pytest.raises(ConnectionFailed), consumer:
            pass

    thread = threading.Thread(target=connect)
    thread.start()
    while thread.is_alive():
        found.append(generate_latest(registry).decode())
    thread.join()
    assert found
    assert not any("hunter2" in one or "app" in one for one in found)


def test_scrapes_side_by_side_while_it_works_and_ends(url: str) -> None:
    filled(url, "busy", 3000)
    consumer = Consumer(url, ["busy"], key=lambda message: message.body[-1:], workers=2)
    registry = registered(consumer, tenants=3)
    over = threading.Event()
    seen: list[list[Samples]] = [[] for _ in range(3)]
    errors: list[BaseException] = []

    def look(found: list[Samples]) -> None:
        try:
            while not over.is_set():
                found.append(scrape(registry))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(found,)) for found in seen]
    for thread in threads:
        thread.start()
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        if len(handled) >= 3000:
            consumer.stop()

    consumer.run(handle)
    over.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    for found in [*seen, [scrape(registry)]]:
        assert found
        for before, after in itertools.pairwise(found):
            went_back = [key for key in before if key[0].endswith("_total") and after.get(key, 0) < before[key]]
            assert went_back == []
            assert len(of(after, "fairsched_served_messages_total")) <= 4
    assert sum(of(scrape(registry), "fairsched_served_messages_total").values()) >= 3000


def test_what_is_dropped_has_no_samples() -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"])
    registry = registered(consumer)
    assert scrape(registry)
    del consumer
    gc.collect()
    assert scrape(registry) == {}


def test_a_registry_takes_one() -> None:
    one, other = Consumer("amqp://127.0.0.1:9", ["q"]), Consumer("amqp://127.0.0.1:9", ["q"])
    registry = registered(one)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector(other))


def test_bad_arguments() -> None:
    consumer = Consumer("amqp://127.0.0.1:9", ["q"])
    for bad in (-1, 1001, True, 2.0, "7"):
        with pytest.raises(ConfigurationError, match="tenants must be a whole number from 0 to 1000, got"):
            collector(consumer, tenants=bad)
    with pytest.raises(TypeError, match=r"must be a Consumer, an aio\.Consumer or an App, got 'q'"):
        collector("q")  # type: ignore[arg-type]


def test_an_app_that_does_not_run() -> None:
    assert scrape(registered(App("amqp://127.0.0.1:9"))) == {}


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, fairsched, fairsched.aio, fairsched.cli.commands.run; sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# fairsched run --metrics-port -------------------------------------------------------------------------------------

WORKER = """
from prometheus_client import Counter
from fairsched import App
app = App()
mine = Counter("mine", "Of the handler itself.")

@app.consumer("worked")
def work(message):
    mine.inc()
"""


def ask(port: int, path: str) -> tuple[int, str, str]:
    """Return status, type and text; 0 if no server listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": f"10.1.2.3:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except OSError:
        return 0, "", ""
    finally:
        connection.close()


def test_an_app_that_has_registered_a_collector_itself(tmp_path: Path) -> None:
    lines = ["from prometheus_client import REGISTRY", "from fairsched.metrics import collector"]
    (tmp_path / "worker.py").write_text("\n".join([*lines, WORKER, "REGISTRY.register(collector(app))"]))
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "run", "worker:app", "--metrics-port", "0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.partition(":")[2].partition(":")[0]) == (2, " cannot export metrics")


@pytest.mark.parametrize("together", [True, False])
def test_the_port_of_a_worker(tmp_path: Path, url: str, together: bool) -> None:
    filled(url, "worked", 5)
    metrics, health = free_ports(2)
    health = metrics if together else health
    (tmp_path / "worker.py").write_text(WORKER)
    worker = subprocess.Popen(
        [sys.executable, "-m", "fairsched.cli", "run", "worker:app",
         "--metrics-port", str(metrics), "--health-port", str(health)],
        cwd=tmp_path, env={**os.environ, "FAIRSCHED_URL": url}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: "fairsched_messages_received_total 5.0" in ask(metrics, "/metrics")[2])
        eventually(lambda: parsed(ask(metrics, "/metrics")[2])[("mine_total", ())] == 5)
        code, kind, _ = ask(metrics, "/metrics")
        assert (code, kind.startswith("text/plain; version="), kind.count("charset")) == (200, True, 1)
        assert ask(health, "/healthz")[0] == 200
        assert ask(metrics, "/healthz")[0] == (200 if together else 404)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.communicate()
