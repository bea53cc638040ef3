"""The metrics Prometheus is told of the embedded broker, against its own status."""

from __future__ import annotations

import http.client
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import eventually

from fairsched import Broker, Consumer, Publisher
from fairsched.broker import metrics
from fairsched.broker.metrics import BrokerCollector
from fairsched.cli.broker import Session
from fairsched.cli.statuspage import StatusPage

ODD = 'odd "name"\\ with {braces}'


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return values by metric and queue."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("queue", "")
            assert key not in found
            found[key] = sample.value
    return found


def test_every_sample_is_that_of_the_status() -> None:
    with Broker() as broker, Session(broker.url) as session:
        for queue in ("orders", ODD):
            session.declare(queue, {})
        private = session.ask("queue_declare", "", exclusive=True).method.queue
        with Publisher(broker.url) as publisher:
            for queue in ("orders", "orders", ODD, private):
                publisher.publish(b"body", queue)
        consumer = Consumer(broker.url, ["orders"])
        consumer.run(lambda message: consumer.stop(now=True))
        eventually(lambda: broker.status()["connections"] == 1)
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker.status))
        found, status = samples(generate_latest(registry).decode()), broker.status()
        for name in ("connections", "channels", "messages", "message_bytes", "memory_alarm"):
            assert found.pop((f"fairsched_broker_{name}", "")) == status[name]
        assert status["messages"] == 3
        assert found.pop(("fairsched_broker_queues", "")) == 3
        assert found.pop(("fairsched_broker_consumers", "")) == found.pop(("fairsched_broker_data_failed", "")) == 0
        for queue in status["queues"]:
            if queue["name"] == "orders":
                assert (queue["published"], queue["acknowledged"]) == (2, 1)
            if queue["name"] != private:
                for name, key in {
                    "messages_ready": "ready", "messages": "depth", "message_bytes": "bytes", "consumers": "consumers",
                    "messages_published_total": "published", "messages_delivered_total": "delivered",
                    "messages_acknowledged_total": "acknowledged",
                }.items():  # fmt: skip
                    assert found.pop((f"fairsched_broker_queue_{name}", queue["name"])) == queue[key]
        assert found == {}


def test_queues_beyond_the_bound_have_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_QUEUES", 2)
    with Broker() as broker, Session(broker.url) as session:
        for queue in ("c", "a", "b"):
            session.declare(queue, {})
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker.status))
        found = samples(generate_latest(registry).decode())
        assert {queue for _, queue in found if queue} == {"a", "b"}
        assert found["fairsched_broker_queues", ""] == 3


def test_the_page() -> None:
    with Broker() as broker, StatusPage(broker.status) as page:
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert samples(answer.read().decode())["fairsched_broker_connections", ""] == 0
        connection.close()


def test_the_page_without_prometheus_client() -> None:
    code = """
import sys, urllib.request, urllib.error
sys.modules["prometheus_client"] = None
from fairsched.cli.statuspage import StatusPage
with StatusPage(dict) as page:
    try:
        urllib.request.urlopen(page.url + "metrics")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("501 this needs prometheus_client: pip install 'fairsched[metrics]'")
