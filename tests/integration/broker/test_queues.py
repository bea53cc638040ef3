"""Queues: declaring, deleting, purging, and their arguments, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Queue
from support.waiting import eventually
from support.wireclient import Dial, Name, WireChannel

# Declare ----------------------------------------------------------------------------------------------------------


def test_declaring_tells_name_messages_and_consumers(channel: WireChannel, name: Name) -> None:
    queue = name()
    first = channel.call(Queue.Declare(queue=queue))
    assert (first.queue, first.message_count, first.consumer_count) == (queue, 0, 0)
    channel.published(b"1", b"2", routing_key=queue)
    again = channel.call(Queue.Declare(queue=queue))
    assert (again.queue, again.message_count, again.consumer_count) == (queue, 2, 0)


def test_the_server_makes_names(channel: WireChannel) -> None:
    made = {channel.declare(exclusive=True) for _ in range(10)}
    assert len(made) == 10
    assert all(one.startswith("amq.gen-") for one in made)


def test_a_passive_declaration(channel: WireChannel, queue: str) -> None:
    found = channel.call(Queue.Declare(queue=queue, passive=True, durable=True, arguments={"x-max-length": 1}))
    assert found.queue == queue
    refusal = channel.refused(Queue.Declare(queue="nothing", passive=True))
    assert refusal == (404, "NOT_FOUND - no queue 'nothing' in vhost '/'")


@pytest.mark.parametrize(
    ("change", "named", "reason"),
    [
        ({"durable": True}, "durable", "received 'true' but current is 'false'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"arguments": {"x-message-ttl": 1000}}, "x-message-ttl", "received the value '1000'"),
        ({"arguments": {"x-max-length": 5}}, "x-max-length", "received the value '5'"),
        ({"arguments": {"x-dead-letter-exchange": "e"}}, "x-dead-letter-exchange", "received the value 'e'"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_declaring_something_else_under_the_name(
    channel: WireChannel, queue: str, change: dict[str, Any], named: str, reason: str
) -> None:
    code, text = channel.refused(Queue.Declare(queue=queue, **change))
    assert code == 406
    # Whether integers are 'signedint' or 'long' depends on how the client writes them.
    text = text.split(" of type")[0]
    assert text == f"PRECONDITION_FAILED - inequivalent arg '{named}' for queue '{queue}' in vhost '/': {reason}"


def test_arguments_are_compared_by_value(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-message-ttl": 100_000, "x-max-length": 5, "unknown": "a"})
    # As a larger integer type, in another order; what the broker does not know is not compared.
    channel.declare(queue, {"x-max-length": 5, "x-message-ttl": 100_000, "unknown": "b"})
    code, text = channel.refused(Queue.Declare(queue=queue, arguments={"x-message-ttl": 200_000, "x-max-length": 5}))
    assert code == 406
    assert "'x-message-ttl'" in text
    assert "'200000'" in text
    assert "'100000'" in text
    code, text = channel.refused(Queue.Declare(queue=queue, arguments={"x-message-ttl": 100_000}))
    assert code == 406
    assert "received none but current is the value '5'" in text


def test_a_queue_that_says_that_it_is_classic_is_one_that_says_nothing(channel: WireChannel, name: Name) -> None:
    quiet, outspoken = channel.declare(name()), channel.declare(name(), {"x-queue-type": "classic"})
    channel.declare(quiet, {"x-queue-type": "classic"})
    channel.declare(outspoken)
    for queue, value, reason in [
        (quiet, "grand", "received the value 'grand' of type 'longstr' but current is none"),
        (outspoken, "grand", "received 'grand' but current is 'classic'"),
        (outspoken, None, "received none but current is 'classic'"),
    ]:
        refusal = channel.refused(Queue.Declare(queue=queue, arguments={"x-queue-type": value}))
        text = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost '/': {reason}"
        assert refusal == (406, text)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"x-max-length": 5}, "received none but current is '5'"),
        ({}, "received the value 'undefined' of type 'void' but current is none"),
    ],
)
def test_an_argument_without_a_value(channel: WireChannel, name: Name, declared: dict[str, Any], reason: str) -> None:
    queue = channel.declare(name(), declared)
    refusal = channel.refused(Queue.Declare(queue=queue, arguments={"x-max-length": None}))
    assert refusal == (
        406, f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': {reason}",
    )  # fmt: skip


@pytest.mark.parametrize("value", [1.0, -2.0, 0.125, 100.25, 123456.5])
def test_a_float_is_told_with_its_point(channel: WireChannel, queue: str, value: float) -> None:
    code, text = channel.refused(Queue.Declare(queue=queue, arguments={"x-max-length": value}))
    assert (code, text.rpartition(": ")[2].split(" of type")[0]) == (406, f"received the value '{value!r}'")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x-dead-letter-exchange": 1}, {"x-queue-type": 1}),
        ({"x-queue-type": 1}, {"x-expires": "soon"}),
        ({"x-dead-letter-routing-key": "k"}, {"x-max-length": "long"}),
        ({"x-queue-mode": "eager"}, {"x-single-active-consumer": 1}),
        ({"x-single-active-consumer": 1}, {"x-max-age": "1D"}),
        ({"x-max-age": "1D"}, {"x-max-in-memory-length": 1}),
        ({"x-initial-cluster-size": 1}, {"x-max-age": "1D"}),
    ],
)
def test_the_first_wrong_argument_is_named(
    channel: WireChannel, name: Name, first: dict[str, Any], second: dict[str, Any]
) -> None:
    code, text = channel.refused(Queue.Declare(queue=name(), arguments={**first, **second}))
    [named] = first
    assert (code, f"arg '{named}'" in text) == (406, True)


def test_a_name_that_the_broker_made_is_asked_for_passively_only(channel: WireChannel) -> None:
    queue = channel.declare(exclusive=True)
    assert channel.counts(queue) == (0, 0)
    refusal = channel.refused(Queue.Declare(queue=queue, exclusive=True))
    assert refusal == (403, f"ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq.*'")


def test_asking_for_a_queue_without_a_name(channel: WireChannel, name: Name) -> None:
    channel.declare(name())  # which an empty name stands for elsewhere
    assert channel.refused(Queue.Declare(passive=True)) == (404, "NOT_FOUND - no queue '' in vhost '/'")


def test_a_string_may_come_as_octets(channel: WireChannel, name: Name) -> None:
    queue, exchange = channel.declare(name(), {"x-dead-letter-exchange": "e"}), name()
    channel.declare(queue, {"x-dead-letter-exchange": bytearray(b"e")})
    channel.exchange(exchange, arguments={"alternate-exchange": "e"})
    channel.exchange(exchange, arguments={"alternate-exchange": bytearray(b"e")})


@pytest.mark.parametrize(
    ("argument", "current", "received", "reason"),
    [
        ("x-max-length", 10, 20, "received '20' but current is '10'"),
        ("x-overflow", "drop-head", "reject-publish", "received 'reject-publish' but current is 'drop-head'"),
        ("x-single-active-consumer", True, False, "received 'false' but current is 'true'"),
        ("x-max-length", 10, True, "received 'true' but current is '10'"),
    ],
)
def test_another_value_of_an_argument(
    channel: WireChannel, name: Name, argument: str, current: Any, received: Any, reason: str
) -> None:
    queue = channel.declare(name(), {argument: current})
    code, text = channel.refused(Queue.Declare(queue=queue, arguments={argument: received}))
    assert code == 406
    assert text == f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{queue}' in vhost '/': {reason}"


#: Ten years in milliseconds, which no time may exceed.
TEN_YEARS = 315_360_000_000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": TEN_YEARS + 1}, f"{{value_too_large,{TEN_YEARS + 1}}}"),
        ({"x-message-ttl": 2**63 - 1}, f"{{value_too_large,{2**63 - 1}}}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-expires": -1}, "{value_negative,-1}"),
        ({"x-expires": TEN_YEARS + 1}, f"{{value_too_large,{TEN_YEARS + 1}}}"),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
        ({"x-overflow": "nonsense"}, "invalid_overflow"),
        ({"x-overflow": 1}, "{unacceptable_type,byte}"),
        ({"x-max-priority": -1}, "{value_negative,-1}"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-dead-letter-routing-key": 1, "x-dead-letter-exchange": "e"}, "{unacceptable_type,byte}"),
        ({"x-dead-letter-routing-key": "no exchange"}, "routing_key_but_no_dlx_defined"),
        ({"x-single-active-consumer": "yes"}, "{unacceptable_type,longstr}"),
        ({"x-queue-type": "nonsense"}, "\"unsupported queue type 'nonsense'\""),
        ({"x-queue-type": ""}, "\"unsupported queue type ''\""),
        ({"x-queue-type": None}, "{unacceptable_type,void}"),
        ({"x-queue-mode": "nonsense"}, "\"unsupported queue mode 'nonsense'\""),
        ({"x-queue-mode": {"a": 1}}, "{unacceptable_type,table}"),
        ({"x-queue-version": 0}, "\"unsupported queue version '0'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
        ({"x-queue-version": -1}, "{value_negative,-1}"),
    ],
    ids=lambda one: ",".join(f"{key[2:]}={value}" for key, value in one.items()) if isinstance(one, dict) else "",
)
def test_arguments_that_cannot_be(channel: WireChannel, name: Name, arguments: dict[str, Any], reason: str) -> None:
    queue = name()
    code, text = channel.refused(Queue.Declare(queue=queue, arguments=arguments))
    argument = next(iter(arguments))
    assert code == 406
    assert text == f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/': {reason}"
    assert channel.refused(Queue.Declare(queue=queue, passive=True)).code == 404


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x-expires": 0, "x-queue-type": "nonsense"}, "x-queue-type"),
        ({"x-expires": 0, "x-dead-letter-exchange": 1}, "x-dead-letter-exchange"),
        ({"x-max-length": -1, "x-expires": 0}, "x-expires"),
        ({"x-max-length": -1, "x-dead-letter-routing-key": "no exchange"}, "x-dead-letter-routing-key"),
        ({"x-overflow": "nonsense", "x-max-priority": 256}, "x-max-priority"),
        ({"x-queue-mode": "nonsense", "x-overflow": "nonsense"}, "x-overflow"),
        ({"x-queue-version": 3, "x-queue-mode": "nonsense"}, "x-queue-mode"),
        ({"x-single-active-consumer": "yes", "x-queue-version": 3}, "x-queue-version"),
        ({"x-max-age": "1h", "x-single-active-consumer": "yes"}, "x-single-active-consumer"),
        ({"x-max-age": "1h", "x-dead-letter-strategy": "at-most-once"}, "x-dead-letter-strategy"),
    ],
    ids=lambda one: ",".join(key[2:] for key in one) if isinstance(one, dict) else "",
)
def test_the_first_of_two_invalid_arguments_is_named(
    channel: WireChannel, name: Name, arguments: dict[str, Any], named: str
) -> None:
    refusal = channel.refused(Queue.Declare(queue=name(), arguments=arguments))
    assert refusal.code == 406
    assert f"arg '{named}'" in refusal.text


@pytest.mark.parametrize(
    ("current", "received", "named"),
    [
        ({}, {"x-message-ttl": 1, "x-expires": 60_000}, "x-expires"),
        ({}, {"x-max-length": 1, "x-dead-letter-exchange": "e"}, "x-dead-letter-exchange"),
        ({}, {"x-queue-mode": "lazy", "x-overflow": "drop-head"}, "x-overflow"),
        ({"x-max-priority": 1, "x-max-length-bytes": 1}, {}, "x-max-length-bytes"),
        ({"x-queue-type": "classic", "x-max-length": 1}, {}, "x-max-length"),
    ],
)
def test_the_first_of_two_arguments_that_differ_is_named(
    channel: WireChannel, name: Name, current: dict[str, Any], received: dict[str, Any], named: str
) -> None:
    queue = channel.declare(name(), current)
    refusal = channel.refused(Queue.Declare(queue=queue, arguments=received))
    assert refusal.code == 406
    assert f"inequivalent arg '{named}'" in refusal.text


@pytest.mark.parametrize(("value", "kind"), [(1, "byte"), (True, "bool"), (None, "void"), ({"a": 1}, "table")])
def test_a_dead_letter_exchange_that_is_no_name(channel: WireChannel, name: Name, value: Any, kind: str) -> None:
    queue = name()
    refusal = channel.refused(Queue.Declare(queue=queue, arguments={"x-dead-letter-exchange": value}))
    reason = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{queue}' in vhost '/'"
    assert refusal == (406, f"PRECONDITION_FAILED - {reason}")


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("classic", "x-max-age", "1h"),
        ("classic", "x-stream-max-segment-size-bytes", 1000),
        ("classic", "x-initial-cluster-size", 1),
        ("classic", "x-dead-letter-strategy", "at-most-once"),
        ("classic", "x-max-in-memory-length", 1),
        ("classic", "x-max-in-memory-bytes", 1),
        ("classic", "x-quorum-initial-group-size", 1),
        ("quorum", "x-max-priority", 3),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-queue-version", 1),
        ("quorum", "x-queue-master-locator", "min-masters"),
        ("quorum", "x-max-age", "1h"),
    ],
)
def test_arguments_of_another_type_of_queue(
    channel: WireChannel, name: Name, kind: str, argument: str, value: Any
) -> None:
    queue = name()
    declaration = Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": kind, argument: value})
    reason = f"invalid arg '{argument}' for queue '{queue}' in vhost '/' of queue type rabbit_{kind}_queue"
    assert channel.refused(declaration) == (406, f"PRECONDITION_FAILED - {reason}")


@pytest.mark.parametrize(
    "argument",
    ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-queue-version"],
)
@pytest.mark.parametrize(("value", "kind"), [("1", "longstr"), (True, "bool"), (None, "void"), ({"a": 1}, "table")])
def test_arguments_that_must_be_integers(
    channel: WireChannel, name: Name, argument: str, value: Any, kind: str
) -> None:
    queue = name()
    refusal = channel.refused(Queue.Declare(queue=queue, arguments={argument: value}))
    reason = f"invalid arg '{argument}' for queue '{queue}' in vhost '/': \"expected integer, got {kind}\""
    assert refusal == (406, f"PRECONDITION_FAILED - {reason}")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 0},
        {"x-message-ttl": TEN_YEARS},
        {"x-expires": TEN_YEARS},
        {"x-max-length": 0},
        {"x-max-priority": 0},
        {"x-max-priority": 255},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        {"x-queue-version": 1},
        {"x-queue-version": 2},
        {"x-queue-master-locator": "min-masters"},
        {"x-queue-type": "classic"},
        {"x-unheard-of": "what"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": ""},
        {"x-single-active-consumer": False},
    ],
    ids=lambda one: ",".join(f"{key[2:]}={value}" for key, value in one.items()),
)
def test_arguments_that_can_be(channel: WireChannel, name: Name, arguments: dict[str, Any]) -> None:
    queue = channel.declare(name(), arguments)
    channel.declare(queue, arguments)


def test_names_that_are_reserved(channel: WireChannel) -> None:
    refusal = channel.refused(Queue.Declare(queue="amq.mine"))
    assert refusal == (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")


# Exclusive and auto-delete ----------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_locked_for_others(channel: WireChannel, other: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), exclusive=True)
    for method in [
        Queue.Declare(queue=queue, passive=True),
        Queue.Declare(queue=queue, exclusive=True),
        Queue.Declare(queue=queue),
        Queue.Delete(queue=queue),
        Queue.Purge(queue=queue),
        Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"),
        Basic.Consume(queue=queue),
        Basic.Get(queue=queue),
    ]:
        code, text = other.refused(method)
        assert code == 405, method.name
        assert text.startswith(
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"
        )
    other.published(b"x", routing_key=queue)  # which any connection may
    assert channel.ready(queue) == 1


def test_an_exclusive_queue_is_open_to_all_channels_of_its_connection(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), exclusive=True)
    second = channel.client.channel()
    channel.published(b"x", routing_key=queue)
    assert second.get(queue).body == b"x"
    second.close()
    assert channel.ready(queue) == 0


def test_an_exclusive_queue_is_never_durable(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), durable=True, exclusive=True)
    assert channel.declare(queue, exclusive=True) == queue


def test_exclusive_queues_go_in_any_order(dial: Dial, other: WireChannel, name: Name) -> None:
    client = dial().open()
    channel = client.channel()
    queues = [channel.declare(name(), exclusive=True) for _ in range(7)]
    for number in (3, 6, 0, 2):
        channel.call(Queue.Delete(queue=queues[number]))
    channel.declare(queues[3], exclusive=True)
    client.close()
    for queue in queues:
        eventually(lambda queue=queue: other.refused(Queue.Declare(queue=queue, passive=True)).code == 404)


def test_whether_it_is_exclusive_must_agree(channel: WireChannel, queue: str, name: Name) -> None:
    assert channel.refused(Queue.Declare(queue=queue, exclusive=True)).code in {405, 406}
    mine = channel.declare(name(), exclusive=True)
    assert channel.refused(Queue.Declare(queue=mine)).code in {405, 406}


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), auto_delete=True)
    assert channel.counts(queue) == (0, 0)  # it stays until there was one
    tags = [channel.consume(queue) for _ in range(2)]
    channel.call(Basic.Cancel(tags[0]))
    assert channel.counts(queue) == (0, 1)
    channel.call(Basic.Cancel(tags[1]))
    assert channel.refused(Queue.Declare(queue=queue, passive=True)).code == 404


def test_an_auto_delete_queue_goes_with_the_channel_of_its_consumer(
    channel: WireChannel, other: WireChannel, name: Name
) -> None:
    queue = channel.declare(name(), auto_delete=True)
    other.consume(queue)
    other.close()
    eventually(lambda: channel.refused(Queue.Declare(queue=queue, passive=True)).code == 404)


# Delete and purge -------------------------------------------------------------------------------------------------


def test_deleting_tells_how_many_messages(channel: WireChannel, queue: str) -> None:
    channel.published(b"1", b"2", routing_key=queue)
    assert channel.call(Queue.Delete(queue=queue)).message_count == 2
    assert channel.call(Queue.Delete(queue=queue)).message_count == 0  # which is no error


def test_deleting_if_unused_and_if_empty(channel: WireChannel, queue: str) -> None:
    tag = channel.consume(queue)
    refusal = channel.refused(Queue.Delete(queue=queue, if_unused=True))
    assert refusal == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use")
    # The channel's end ended the consumer.
    assert tag
    eventually(lambda: channel.counts(queue) == (0, 0))
    channel.published(b"1", routing_key=queue)
    refusal = channel.refused(Queue.Delete(queue=queue, if_empty=True))
    assert refusal == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty")
    channel.drain(queue)
    channel.call(Queue.Delete(queue=queue, if_empty=True, if_unused=True))


def test_a_queue_that_is_in_use_and_not_empty(channel: WireChannel, queue: str) -> None:
    channel.qos(1)
    channel.consume(queue)
    channel.published(b"1", b"2", routing_key=queue)
    channel.deliveries(1)
    assert channel.counts(queue) == (1, 1)
    refusal = channel.refused(Queue.Delete(queue=queue, if_unused=True, if_empty=True))
    assert refusal == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty")


def test_what_was_delivered_dies_with_the_queue(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name())
    channel.published(b"1", routing_key=queue)
    got = channel.get(queue, no_ack=False)
    channel.call(Queue.Delete(queue=queue))
    channel.declare(queue)
    channel.ack(got.tag)  # which is still known here
    channel.round_trip()
    assert channel.ready(queue) == 0


def test_purging(channel: WireChannel, queue: str) -> None:
    channel.published(b"1", b"2", b"3", routing_key=queue)
    held = channel.get(queue, no_ack=False)
    assert channel.call(Queue.Purge(queue=queue)).message_count == 2
    assert channel.ready(queue) == 0
    channel.reject(held.tag)
    eventually(lambda: channel.ready(queue) == 1)
    refusal = channel.refused(Queue.Purge(queue="nothing"))
    assert refusal == (404, "NOT_FOUND - no queue 'nothing' in vhost '/'")
