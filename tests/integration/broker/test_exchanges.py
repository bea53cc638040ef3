"""Exchanges: declaring, deleting, binding and routing, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Exchange, Queue
from support.wireclient import Name, WireChannel

# Declare and delete -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_declaring_again_is_the_same(channel: WireChannel, name: Name, kind: str) -> None:
    exchange = name()
    for _ in range(2):
        channel.exchange(exchange, kind, durable=True)
    channel.call(Exchange.Declare(exchange=exchange, passive=True))


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_predeclared_exchanges(channel: WireChannel, exchange: str) -> None:
    if exchange:
        channel.call(Exchange.Declare(exchange=exchange, passive=True))
        kind = exchange.removeprefix("amq.").replace("match", "headers")
        channel.exchange(exchange, kind, durable=True)
    code, _text = channel.refused(Exchange.Delete(exchange=exchange))
    assert code == 403


def test_a_passive_declaration_of_what_is_not_there(channel: WireChannel) -> None:
    refusal = channel.refused(Exchange.Declare(exchange="nothing", passive=True))
    assert refusal == (404, "NOT_FOUND - no exchange 'nothing' in vhost '/'")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"exchange_type": "fanout"}, "'type'"),
        ({"durable": True}, "'durable'"),
        ({"auto_delete": True}, "'auto_delete'"),
        ({"internal": True}, "'internal'"),
        ({"arguments": {"alternate-exchange": "other"}}, "'alternate-exchange'"),
    ],
)
def test_declaring_something_else_under_the_name(
    channel: WireChannel, name: Name, change: dict[str, Any], named: str
) -> None:
    exchange = channel.exchange(name())
    code, text = channel.refused(Exchange.Declare(exchange=exchange, **change))
    assert code == 406
    assert text.startswith(
        f"PRECONDITION_FAILED - inequivalent arg {named} for exchange '{exchange}' in vhost '/': received "
    )


def test_an_unknown_type_ends_the_connection(channel: WireChannel, name: Name) -> None:
    channel.cast(Exchange.Declare(exchange=name(), exchange_type="nonsense"))
    assert channel.client.ended() == (503, "COMMAND_INVALID - unknown exchange type 'nonsense'")


def test_names_that_are_reserved(channel: WireChannel) -> None:
    refusal = channel.refused(Exchange.Declare(exchange="amq.mine"))
    assert refusal == (403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")
    refusal = channel.refused(Exchange.Declare(exchange=""))
    assert refusal.code == 403


def test_deleting_what_is_not_there_is_no_error(channel: WireChannel) -> None:
    channel.call(Exchange.Delete(exchange="nothing"))


def test_deleting_if_unused(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name())
    channel.bind(queue, exchange, "k")
    refusal = channel.refused(Exchange.Delete(exchange=exchange, if_unused=True))
    assert refusal == (406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use")
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))
    channel.call(Exchange.Delete(exchange=exchange, if_unused=True))
    assert channel.refused(Exchange.Declare(exchange=exchange, passive=True)).code == 404


def test_deleting_an_exchange_takes_its_bindings_along(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name(), "fanout")
    channel.bind(queue, exchange)
    channel.call(Exchange.Delete(exchange=exchange))
    channel.exchange(exchange, "fanout")
    channel.published(b"x", exchange=exchange)
    assert channel.ready(queue) == 0


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name(), "topic", auto_delete=True)
    for key in ("a", "b"):
        channel.bind(queue, exchange, key)
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="a"))
    channel.call(Exchange.Declare(exchange=exchange, passive=True))
    channel.call(Queue.Delete(queue=queue))
    assert channel.refused(Exchange.Declare(exchange=exchange, passive=True)).code == 404


def test_an_internal_exchange_cannot_be_published_to(channel: WireChannel, name: Name, queue: str) -> None:
    inside, outside = channel.exchange(name(), "fanout", internal=True), channel.exchange(name(), "fanout")
    channel.bind(queue, inside)
    channel.call(Exchange.Bind(destination=inside, source=outside))
    channel.published(b"1", exchange=outside)
    channel.publish(b"2", "", inside)
    assert channel.refused() == (403, f"ACCESS_REFUSED - cannot publish to internal exchange '{inside}' in vhost '/'")
    assert channel.drain(queue) == [b"1"]


def test_publishing_to_an_exchange_that_is_not_there(channel: WireChannel) -> None:
    channel.publish(b"1", "", "nothing")
    assert channel.refused() == (404, "NOT_FOUND - no exchange 'nothing' in vhost '/'")


# Bind and unbind --------------------------------------------------------------------------------------------------


def test_binding_what_is_not_there(channel: WireChannel, name: Name, queue: str) -> None:
    refusal = channel.refused(Queue.Bind(queue=queue, exchange="nothing"))
    assert refusal == (404, "NOT_FOUND - no exchange 'nothing' in vhost '/'")
    refusal = channel.refused(Queue.Bind(queue="nothing", exchange="amq.direct"))
    assert refusal == (404, "NOT_FOUND - no queue 'nothing' in vhost '/'")
    for source, destination in [("nothing", "amq.direct"), ("amq.direct", "nothing")]:
        refusal = channel.refused(Exchange.Bind(source=source, destination=destination))
        assert refusal == (404, "NOT_FOUND - no exchange 'nothing' in vhost '/'")


def test_the_default_exchange_cannot_be_bound(channel: WireChannel, queue: str) -> None:
    for method in [
        Queue.Bind(queue=queue, exchange="", routing_key="k"),
        Queue.Unbind(queue=queue, exchange="", routing_key="k"),
        Exchange.Bind(source="", destination="amq.direct"),
        Exchange.Bind(source="amq.direct", destination=""),
    ]:
        assert channel.refused(method) == (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


def test_what_is_wrong_with_a_binding_comes_before_the_lock_of_its_queue(
    channel: WireChannel, other: WireChannel, name: Name
) -> None:
    queue, exchange = channel.declare(name(), exclusive=True), channel.exchange(name(), "headers")
    for source, arguments, code in [("", {}, 403), ("nothing", {}, 404), (exchange, {"x-match": "some"}, 406)]:
        refusal = other.refused(Queue.Bind(queue=queue, exchange=source, arguments=arguments))
        assert refusal.code == code
    assert other.refused(Queue.Bind(queue=queue, exchange=exchange)).code == 405
    assert other.refused(Queue.Unbind(queue=queue, exchange="")).code == 403
    for source in ("nothing", exchange):
        other.call(Queue.Unbind(queue=queue, exchange=source))  # which is not bound
    channel.bind(queue, exchange)
    assert other.refused(Queue.Unbind(queue=queue, exchange=exchange)).code == 405


def test_unbinding_what_is_not_bound_is_no_error(channel: WireChannel, queue: str) -> None:
    channel.call(Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="k"))


def test_a_binding_is_there_once(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name())
    for _ in range(3):
        channel.bind(queue, exchange, "k")
    channel.published(b"1", routing_key="k", exchange=exchange)
    assert channel.ready(queue) == 1
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))
    channel.published(b"2", routing_key="k", exchange=exchange)
    assert channel.ready(queue) == 1


def test_arguments_tell_bindings_apart(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name(), "headers")
    channel.bind(queue, exchange, "", {"a": 1})
    channel.bind(queue, exchange, "", {"a": 2})
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, arguments={"a": 1}))
    for value in (1, 2):
        channel.published(b"%d" % value, exchange=exchange, headers={"a": value})
    assert channel.drain(queue) == [b"2"]


def test_a_queue_gets_a_message_once_however_often_it_is_bound(channel: WireChannel, name: Name, queue: str) -> None:
    exchange, second = channel.exchange(name(), "topic"), channel.exchange(name(), "fanout")
    for key in ("#", "a.*", "a.b"):
        channel.bind(queue, exchange, key)
    channel.call(Exchange.Bind(source=exchange, destination=second, routing_key="a.#"))
    channel.bind(queue, second)
    channel.published(b"1", routing_key="a.b", exchange=exchange)
    assert channel.drain(queue) == [b"1"]


def test_the_last_declared_queue_needs_no_name(channel: WireChannel, client: Any, name: Name) -> None:
    exchange = channel.exchange(name())
    made = channel.declare(name())
    channel.call(Queue.Bind(exchange=exchange, routing_key="k"))
    channel.published(b"1", b"2", routing_key="k", exchange=exchange)
    # `published` declares another one.
    assert channel.ready(made) == 2
    channel.declare(made)
    channel.publish(b"3", made)
    assert channel.get("").body == b"1"
    nothing = client.channel()
    refusal = nothing.refused(Queue.Bind(exchange=exchange, routing_key="k"))
    assert refusal.code == 404


# Routing ----------------------------------------------------------------------------------------------------------


def test_the_default_exchange_knows_every_queue(channel: WireChannel, queue: str) -> None:
    channel.published(b"1", routing_key=queue)
    channel.published(b"2", routing_key="nothing")
    assert channel.drain(queue) == [b"1"]


def test_direct(channel: WireChannel, name: Name) -> None:
    exchange, first, second = channel.exchange(name()), channel.declare(name()), channel.declare(name())
    channel.bind(first, exchange, "a")
    channel.bind(first, exchange, "b")
    channel.bind(second, exchange, "b")
    for key in ("a", "b", "c", ""):
        channel.published(key.encode(), routing_key=key, exchange=exchange)
    assert (channel.drain(first), channel.drain(second)) == ([b"a", b"b"], [b"b"])


TOPICS = {
    "a.b.c": ["a.b.c", "a.*.c", "#", "a.#", "#.c", "a.#.c", "*.*.*", "#.b.#", "*.#", "#.#"],
    "a": ["a", "*", "#", "a.#", "#.a", "*.#", "#.#"],
    "": ["", "#", "#.#"],
    "a.b": ["a.b", "*.*", "a.*", "#", "a.#", "a.#.b", "#.b.#", "*.#", "#.#"],
    "a..b": ["a..b", "a.*.b", "#", "a.#", "a.#.b", "*.*.*", "#.b.#", "*.#", "#.#"],
    ".": [".", "*.*", "#", "*.#", "#.#"],
    "b.c": ["*.*", "#", "#.c", "#.b.#", "*.#", "#.#"],
}


def test_topics(channel: WireChannel, name: Name) -> None:
    exchange = channel.exchange(name(), "topic")
    patterns = sorted({pattern for found in TOPICS.values() for pattern in found})
    queues = {pattern: channel.declare(name()) for pattern in patterns}
    for pattern, queue in queues.items():
        channel.bind(queue, exchange, pattern)
    for key in TOPICS:
        channel.published(key.encode(), routing_key=key, exchange=exchange)
    got = {pattern: channel.drain(queue) for pattern, queue in queues.items()}
    assert got == {
        pattern: [key.encode() for key, matching in TOPICS.items() if pattern in matching] for pattern in patterns
    }


@pytest.mark.parametrize(
    ("binding", "headers", "goes"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {}, False),
        ({}, {"z": 1}, True),
        ({"x-match": "any"}, {"z": 1}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": True}, {"a": False}, False),
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": 2**40}, False),
    ],
)
def test_headers(
    channel: WireChannel, name: Name, queue: str, binding: dict[str, Any], headers: dict[str, Any], goes: bool
) -> None:
    exchange = channel.exchange(name(), "headers")
    channel.bind(queue, exchange, "", binding)
    channel.published(b"x", exchange=exchange, headers=headers)
    assert channel.ready(queue) == goes


def test_headers_of_a_message_without_headers(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name(), "headers")
    channel.bind(queue, exchange, "", {"a": 1})
    channel.published(b"x", exchange=exchange)
    assert channel.ready(queue) == 0


def test_a_wrong_x_match(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name(), "headers")
    refusal = channel.refused(Queue.Bind(queue=queue, exchange=exchange, arguments={"x-match": "some"}))
    assert refusal.code == 406


def test_exchanges_bound_in_a_circle(channel: WireChannel, name: Name, queue: str) -> None:
    first, second = channel.exchange(name(), "fanout"), channel.exchange(name(), "fanout")
    channel.call(Exchange.Bind(source=first, destination=second))
    channel.call(Exchange.Bind(source=second, destination=first))
    channel.bind(queue, second)
    channel.published(b"1", exchange=first)
    assert channel.drain(queue) == [b"1"]
    channel.call(Exchange.Unbind(source=first, destination=second))
    channel.published(b"2", exchange=first)
    assert channel.ready(queue) == 0


def test_an_alternate_exchange_gets_what_has_no_way(channel: WireChannel, name: Name) -> None:
    last = channel.exchange(name(), "fanout")
    middle = channel.exchange(name(), "direct", {"alternate-exchange": last})
    first = channel.exchange(name(), "direct", {"alternate-exchange": middle})
    queues = [channel.declare(name()) for _ in range(3)]
    channel.bind(queues[0], first, "a")
    channel.bind(queues[1], middle, "b")
    channel.bind(queues[2], last)
    for key in ("a", "b", "c"):
        channel.published(key.encode(), routing_key=key, exchange=first, mandatory=True)
    assert [channel.drain(queue) for queue in queues] == [[b"a"], [b"b"], [b"c"]]
    assert channel.waiting == []  # nothing was returned


def test_an_alternate_exchange_that_is_not_there(channel: WireChannel, name: Name) -> None:
    exchange = channel.exchange(name(), "direct", {"alternate-exchange": "nothing"})
    channel.published(b"x", routing_key="k", exchange=exchange, mandatory=True)
    returned = channel.take(Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")


def test_copies_by_headers(channel: WireChannel, name: Name) -> None:
    exchange, queues = channel.exchange(name()), [channel.declare(name()) for _ in range(3)]
    for key, one in zip("abc", queues, strict=True):
        channel.bind(one, exchange, key)
    channel.published(b"x", routing_key="a", exchange=exchange, headers={"CC": ["b"], "BCC": ["c"], "other": 1})
    got = [channel.get(one) for one in queues]
    # The blind copies are not told.
    assert [one.properties.headers for one in got] == [{"CC": ["b"], "other": 1}] * 3
    assert [one.method.routing_key for one in got] == ["a"] * 3


def test_copies_must_be_a_list(channel: WireChannel) -> None:
    channel.publish(b"x", "k", "amq.direct", headers={"CC": "b"})
    assert channel.refused().code == 406
