"""Messages, keys and costs, without a broker."""

from __future__ import annotations

import logging
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties
from support.deliveries import FRAME_MAX, Source, delivery, octets_kept

from fairsched import ConfigurationError, Publisher
from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.adapter import from_pika
from fairsched.consumer.cost import LARGEST, cost_model
from fairsched.consumer.keys import key_function
from fairsched.delivery._delivery import Message, give_deliveries
from fairsched.testing import FakeChannel


def make(body: bytes = b"body", *, tag: int = 7, origin: FakeChannel | None = None, **properties: object) -> Message:
    method = Basic.Deliver("consumer", tag, False, "exchange", "key")
    return Message(body, tag, False, method, BasicProperties(**properties), origin or FakeChannel("q"))


@pytest.mark.parametrize(
    ("settle", "verdict"),
    [
        (lambda message: message.ack(), AckLedger.ACK),
        (lambda message: message.nack(), AckLedger.REQUEUE),
        (lambda message: message.nack(requeue=False), AckLedger.REJECT),
        (lambda message: message.reject(), AckLedger.REJECT),
        (lambda message: message.reject(requeue=True), AckLedger.REQUEUE),
    ],
)
def test_settling_happens_once(settle: object, verdict: int) -> None:
    origin = FakeChannel("q")
    message = make(origin=origin)
    assert settle(message)
    assert not settle(message)
    assert not message.ack()
    message.finish()
    assert origin.settled == [(7, verdict)]


def test_a_with_block_acks_or_fails() -> None:
    failures: list[Exception] = []

    def failed(message: Message, error: Exception) -> None:
        failures.append(error)
        message.nack()

    origin = FakeChannel("q", failed)
    with make(origin=origin):
        pass
    with make(tag=8, origin=origin) as message:
        message.reject()
    with make(tag=9, origin=origin) as message:
        message.defer()
    with pytest.raises(ValueError, match="mine"), make(tag=10, origin=origin):
        raise ValueError("mine")
    with pytest.raises(KeyboardInterrupt), make(tag=11, origin=origin):
        raise KeyboardInterrupt
    assert origin.settled == [
        (7, AckLedger.ACK), (8, AckLedger.REJECT), (10, AckLedger.REQUEUE), (11, AckLedger.REQUEUE)
    ]  # fmt: skip
    assert [str(error) for error in failures] == ["mine"]


@pytest.mark.parametrize("error", [ValueError, None, "bad"])
def test_a_failure_is_an_exception(error: object) -> None:
    origin = FakeChannel("q")
    message = make(origin=origin)
    with pytest.raises(TypeError, match=re.escape(f"error must be an exception, got {error!r}")):
        message.fail(error)
    assert not origin.settled, "which is left to the failure of the handler, by the rule for failures"
    message.fail(ValueError("bad"))
    assert origin.settled == [(7, AckLedger.REQUEUE)]


def test_raw_method_and_properties_are_decoded_on_demand() -> None:
    method = b"".join(Basic.Deliver("consumer", 7, True, "exchange", "key").encode())
    properties = b"".join(BasicProperties(headers={"a": 1}, app_id="app", priority=3).encode())
    raw = b"\x00\x3c\x00\x3c" + method, b"\x00\x3c\x00\x00" + (4).to_bytes(8, "big") + properties
    message = Message(b"body", 7, True, *raw, FakeChannel("q"))
    assert (message.exchange, message.routing_key, message.delivery.redelivered) == ("exchange", "key", True)
    assert (message.headers, message.properties.app_id, message.properties.priority) == ({"a": 1}, "app", 3)
    assert message.properties is message.properties
    assert message.delivery is message.delivery


def test_a_body_may_be_replaced_before_and_after_it_was_read() -> None:
    source = Source([b"first", b"second", b""])
    source.deliver()
    first, second, third = source.try_get_many(source.worker_queue, 3)
    assert (second.body, third.body) == (b"second", b"")
    for message in (first, second, third):
        message.body = b"other"
        assert message.body == b"other"
        assert repr(message).endswith(" 5 bytes, unsettled>")
        message.body = None
        assert message.body is None


def test_a_message_does_not_show_its_body() -> None:
    message = make(b"secret")
    assert repr(message) == "<Message 7 of queue 'q', 6 bytes, unsettled>"
    message.ack()
    assert repr(message).endswith(", settled>")
    assert message.alive
    assert message.headers == {}


@pytest.mark.parametrize(
    ("spec", "properties", "key"),
    [
        ("header:tenant", {"headers": {"tenant": "a"}}, "a"),
        ("header:tenant", {"headers": {"tenant": 5}}, 5),
        ("header:tenant", {"headers": {"other": "a"}}, ""),
        ("header:tenant", {}, ""),
        ("header:tenant", {"headers": {"tenant": ["a", 1]}}, "['a', 1]"),
        ("header:x:y", {"headers": {"x:y": "b"}}, "b"),
        ("property:app_id", {"app_id": "app"}, "app"),
        ("property:app_id", {}, ""),
        (lambda message: message.body[:2], {}, b"bo"),
        (lambda message: None, {}, ""),
    ],
)
def test_keys(spec: object, properties: dict[str, object], key: object) -> None:
    assert key_function(spec)(make(**properties)) == key


def of_tenant(octets: bytes) -> Message:
    """Return a message as the wire brings it, with those octets as the text of one header."""
    table = b"\x06tenantS" + len(octets).to_bytes(4) + octets
    header = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4) + table
    return Message(b"", 1, False, b"", header, FakeChannel("q"))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=70), max_size=30))
def test_texts_of_a_header_are_told_apart(texts: list[str]) -> None:
    key = key_function("header:tenant")
    for text in [*texts, *reversed(texts)]:
        assert key(of_tenant(text.encode())) == text


def test_a_header_that_is_no_text_is_left_to_pika() -> None:
    key = key_function("header:tenant")
    for octets in (b"\xff", b"a", b"\xff", b"\xed\xa0\x80"):
        message = of_tenant(octets)
        assert key(message) == message.headers["tenant"]


@pytest.mark.parametrize("spec", ["tenant", "header:", "property:body", "queue:x", "", 5])
def test_an_impossible_key_is_refused(spec: object) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        key_function(spec)


@pytest.mark.parametrize("function", [lambda message: 1 / 0, lambda message: {1}])
def test_a_failing_key_function_is_reported_once(function: object, caplog: pytest.LogCaptureFixture) -> None:
    key = key_function(function)
    with caplog.at_level(logging.ERROR, "fairsched"):
        assert [key(make()) for _ in range(3)] == [""] * 3
    assert len(caplog.records) == 1


def test_constant_and_byte_costs() -> None:
    assert cost_model(None).estimate(make(b"12345")) == 1
    assert not cost_model(None).varies
    assert cost_model("bytes").estimate(make(b"12345")) == 5
    assert cost_model("bytes").estimate(make(b"")) == 1
    assert cost_model(None).correction(make(), 10**6) == 0


def test_time_is_estimated_then_settled() -> None:
    model = cost_model("time")
    message = make()
    message.cost = model.estimate(message)
    assert message.cost == 100_000
    assert model.correction(message, 300_000) == 200_000
    # The slot's own mean from now on: the first measurement, then a tenth of the way to each next.
    assert model.estimate(make()) == 300_000
    message.cost = 300_000
    assert model.correction(message, 200_000) == -100_000
    assert model.estimate(make()) == 290_000
    other = make()
    other.slot = "other"
    assert 100_000 < model.estimate(other) < 300_000


def test_a_cost_function_must_give_a_positive_number(caplog: pytest.LogCaptureFixture) -> None:
    assert cost_model(lambda message: len(message.body) * 2).estimate(make(b"abc")) == 6
    for bad in (lambda message: 0, lambda message: "x", lambda message: 1 / 0, lambda message: LARGEST + 1):
        caplog.clear()
        model = cost_model(bad)
        with caplog.at_level(logging.ERROR, "fairsched"):
            assert [model.estimate(make()) for _ in range(3)] == [1, 1, 1]
        assert len(caplog.records) == 1
    with pytest.raises(ConfigurationError, match="cost must be"):
        cost_model("time-ish")


def test_the_pika_channel_settles_its_own_message_only() -> None:
    origin = FakeChannel("q")
    seen = []
    from_pika(lambda *arguments: seen.append(arguments))(make(origin=origin, app_id="app"))
    channel, method, properties, body = seen[0]
    assert (method.delivery_tag, method.routing_key, properties.app_id, body) == (7, "key", "app", b"body")
    # Returning settles nothing, as with pika.
    assert origin.settled == []
    with pytest.raises(ValueError, match="delivery_tag must be 7"):
        channel.basic_ack(8)
    with pytest.raises(ValueError, match="multiple=True"):
        channel.basic_ack(7, multiple=True)
    channel.basic_reject(7)
    assert origin.settled == [(7, AckLedger.REQUEUE)]


def test_an_answer_goes_through_the_publisher_of_the_channel() -> None:
    origin = FakeChannel("q")
    with pytest.raises(RuntimeError, match="there is no publisher for the answer: consume with an App"):
        make(origin=origin, reply_to="answers").reply(b"4")
    # As an App gives it to its channels; this one is not open, and says so only to what can be answered.
    origin.publisher = lambda: Publisher("amqp://localhost")
    with pytest.raises(ValueError, match="has no reply_to"):
        make(origin=origin).reply(b"4")
    with pytest.raises(RuntimeError, match="publish inside 'with publisher:'"):
        make(origin=origin, reply_to="answers").reply(b"4", content_type="text/plain")


def read_of(source: Source, messages: int) -> list[Message]:
    """Deliver so many messages by one read, and take them."""
    buffer = source.broker.frames(1, source.broker.tags[1] + messages)
    position, _, _ = give_deliveries(buffer, 0, FRAME_MAX - 8, source.sinks, {})
    assert position == len(buffer)
    source.intake.drain()
    return source.try_get_many(source.worker_queue, messages)


def test_messages_that_are_kept_keep_few_of_their_reads() -> None:
    """One of 64 messages of each read stays: what they came in would be thirteen megabytes, and they are 200 kB."""
    reads, each = 200, 64
    source = Source([number.to_bytes(2) * 500 for number in range(reads * each + 1)], window=reads * each + 1)
    read_of(source, 1)
    kept: list[Message] = []
    tracemalloc.start()
    try:
        kept.extend(read_of(source, each)[0] for _ in range(reads))
        in_use, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # With what the broker of this test knows of 12 800 messages.
    assert 4 << 20 < in_use < 6 << 20
    assert octets_kept(kept[0]) > each * 1000
    assert octets_kept(kept[-1]) < 2000
    assert [message.body for message in kept] == [(each * at + 1).to_bytes(2) * 500 for at in range(reads)]
    assert all(message.routing_key == "key" and message.raw_properties.endswith(b"\0\0") for message in kept)


@pytest.mark.parametrize("each", [2, 30])
def test_messages_that_are_kept_keep_few_small_reads(each: int) -> None:
    """One of each read stays: the reads would be 2 and 23 times as much."""
    reads, most = 5000, 1024
    source = Source([bytes(50)] * (reads + 1) * each, window=(reads + 1) * each)
    kept = [read_of(source, each)[0] for _ in range(reads)]
    one = len(delivery(1, 1, bytes(50)))
    octets = sorted(map(octets_kept, kept), reverse=True)
    assert octets[0] >= one * each
    assert octets[most] < one
    assert sum(octets[:most]) < 4 << 20
    del kept
    assert octets_kept(read_of(source, each)[0]) >= one * each


def test_a_read_that_is_queued_in_two_parts_is_kept_once() -> None:
    """An event between two messages of a read may queue the first one; nothing refers to the read afterwards."""
    each, turns = 64, 100
    source = Source([bytes(1000)] * each * turns, window=each * turns)
    source.sinks[9] = lambda *_: source.intake.drain()
    for _ in range(turns):
        parts = [source.broker.frames(1, source.broker.tags[1] + each // 2) for _ in range(2)]
        give_deliveries(delivery(9, 1, b"").join(parts), 0, FRAME_MAX - 8, source.sinks, {})
        source.intake.drain()
        del parts
        assert {octets_kept(message) > each * 1000 for message in source.try_get_many(source.worker_queue, each)} == {
            True
        }


def test_reads_are_shared_again_when_no_message_keeps_them() -> None:
    each = 64
    source = Source([bytes(1000)] * each * 100, window=each * 100)
    kept = [read_of(source, each)[0] for _ in range(80)]
    assert octets_kept(kept[-1]) < 2000
    del kept
    assert octets_kept(read_of(source, each)[0]) > each * 1000
