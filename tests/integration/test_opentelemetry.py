"""Traces, over a real broker: spans of publishing and handlers, what links them, and what they tell."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pika import BasicProperties
from support.declare import Declare
from support.rabbitmq import Node
from support.running import consume
from support.wiretables import Encoded, field, table

from fairsched import Consumer, Publisher, PublishFailed, aio
from fairsched.integrations.opentelemetry import Tracing


class Traced(Tracing):
    """Keeps its spans."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        super().__init__(provider)

    def spans(self, kind: trace.SpanKind) -> list[Any]:
        return [span for span in self._spans.get_finished_spans() if span.kind is kind]


@pytest.fixture
def tracing() -> Traced:
    return Traced()


@pytest.fixture
def publisher(broker: Node) -> Iterator[Publisher]:
    with Publisher(broker.url) as publisher:
        yield publisher


def test_a_handler_continues_the_trace_of_the_publisher(
    broker: Node, new_queue: Declare, tracing: Traced, publisher: Publisher
) -> None:
    queue = new_queue("traced")
    tracing.publish(publisher, b"body", queue, headers={"own": 1}, message_id="m1", correlation_id="c1").result(30)
    current: list[trace.SpanContext] = []
    headers: list[dict[str, Any]] = []

    def handle(message: Any, call_next: Callable[[Any], object]) -> object:
        current.append(trace.get_current_span().get_span_context())
        headers.append(message.headers)
        return call_next(message)

    before = time.monotonic()
    assert consume(Consumer(broker.url, [queue], middleware=[tracing.middleware, handle]), 1) == [b"body"]
    [sent] = tracing.spans(trace.SpanKind.PRODUCER)
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert (sent.name, processed.name) == (f"publish {queue}", f"process {queue}")
    assert current == [processed.context]
    assert processed.context.trace_id == sent.context.trace_id
    assert processed.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert headers[0]["own"] == 1
    assert headers[0]["traceparent"].split("-")[2] == f"{sent.context.span_id:016x}"
    assert dict(sent.attributes) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.rabbitmq.destination.routing_key": queue,
    }
    found = dict(processed.attributes)
    assert 0 <= found.pop("fairsched.sojourn") <= time.monotonic() - before
    assert found == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.rabbitmq.destination.routing_key": queue,
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.body.size": 4,
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "fairsched.queue": queue,
        "fairsched.slot": queue,
    }
    assert {span.status.status_code for span in (sent, processed)} == {trace.StatusCode.UNSET}


def test_exchange_key_and_queue_are_the_destination(
    broker: Node, new_queue: Declare, tracing: Traced, publisher: Publisher
) -> None:
    queue = new_queue("traced")
    with broker.connect() as channel:
        channel.queue_bind(queue, "amq.topic", "a.b")
    tracing.publish(publisher, b"1", "a.b", exchange="amq.topic").result(30)
    consume(Consumer(broker.url, [queue], middleware=[tracing.middleware]), 1)
    [sent] = tracing.spans(trace.SpanKind.PRODUCER)
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert sent.name == "publish amq.topic:a.b"
    assert processed.name == f"process amq.topic:a.b:{queue}"


def test_failures_are_on_the_span_and_go_on(
    broker: Node, new_queue: Declare, tracing: Traced, publisher: Publisher
) -> None:
    queue = new_queue("traced")
    publisher.publish(b"x", queue).result(30)
    failed: list[BaseException] = []

    def note(message: Any, error: Exception) -> str:
        failed.append(error)
        consumer.stop()
        return "reject"

    consumer = Consumer(broker.url, [queue], middleware=[tracing.middleware], on_error=note)
    consumer.run(lambda message: int(message.body))
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert isinstance(failed[0], ValueError)
    assert processed.status.status_code is trace.StatusCode.ERROR
    assert processed.attributes["error.type"] == "ValueError"
    assert processed.events[0].attributes["exception.type"] == "ValueError"
    assert (processed.parent, list(processed.links)) == (None, [])


def test_a_publish_that_is_refused_is_on_the_span(tracing: Traced, publisher: Publisher) -> None:
    with pytest.raises(TypeError, match="body"):
        tracing.publish(publisher, 5, "q")
    [sent] = tracing.spans(trace.SpanKind.PRODUCER)
    assert sent.attributes["error.type"] == "TypeError"
    with pytest.raises(PublishFailed, match="no-such-exchange"):
        tracing.publish(publisher, b"", "q", exchange="no-such-exchange").result(30)


def test_coroutines(broker: Node, new_queue: Declare, tracing: Traced) -> None:
    queue = new_queue("traced")
    inside: list[int] = []

    async def main() -> None:
        async with aio.Publisher(broker.url) as publisher:
            await tracing.publish(publisher, b"1", queue)
        async with aio.Consumer(broker.url, [queue], middleware=[tracing.async_middleware]) as consumer:

            async def handle(message: Any) -> None:
                await asyncio.sleep(0)
                inside.append(trace.get_current_span().get_span_context().span_id)
                consumer.stop()

            await consumer.run(handle)

    asyncio.run(main())
    [sent] = tracing.spans(trace.SpanKind.PRODUCER)
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert inside == [processed.context.span_id]
    assert processed.parent.span_id == sent.context.span_id


@pytest.mark.parametrize(
    "properties",
    [
        *(BasicProperties(headers={"traceparent": value}) for value in (5, "no", b"\xff", None, {"a": 1})),
        Encoded(table(field(b"traceparent", b"S", b"\x00\x00\x00\x01\xff"))),  # cannot be decoded
    ],
    ids=["number", "text", "octets", "none", "table", "undecodable"],
)
def test_headers_that_hold_no_context_begin_a_trace(
    broker: Node, new_queue: Declare, tracing: Traced, properties: BasicProperties
) -> None:
    queue = new_queue("traced")
    with broker.connect() as channel:
        channel.basic_publish("", queue, b"1", properties)
    consume(Consumer(broker.url, [queue], middleware=[tracing.middleware]), 1)
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert (processed.parent, list(processed.links)) == (None, [])


def test_a_context_in_octets_is_read(broker: Node, new_queue: Declare, tracing: Traced) -> None:
    """As clients in other languages may send strings of headers."""
    queue = new_queue("traced")
    broker.publish(queue, [b"1"], headers={"traceparent": b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"})
    consume(Consumer(broker.url, [queue], middleware=[tracing.middleware]), 1)
    [processed] = tracing.spans(trace.SpanKind.CONSUMER)
    assert processed.context.trace_id == int("1" * 32, 16)


def test_what_the_page_shows() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/tracing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    spans = InMemorySpanExporter()
    exec(code.replace("ConsoleSpanExporter()", "spans"), {"spans": spans})
    sent, processed = spans.get_finished_spans()
    assert (sent.name, processed.name) == ("publish orders", "process orders")
    assert processed.context.trace_id == sent.context.trace_id


def test_nothing_is_exported_by_default(broker: Node, new_queue: Declare, publisher: Publisher) -> None:
    queue = new_queue("traced")
    Tracing().publish(publisher, b"1", queue).result(30)
    assert consume(Consumer(broker.url, [queue], middleware=[Tracing().middleware]), 1) == [b"1"]
