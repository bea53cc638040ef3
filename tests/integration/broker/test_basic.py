"""Publishing, getting, consuming and settling, on both brokers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue
from support.rabbitmq import numbered
from support.waiting import eventually
from support.wireclient import CAPABILITIES, Dial, Name, WireChannel, WireClient, raw_method

# Publish and get --------------------------------------------------------------------------------------------------


def test_getting_tells_where_it_came_from_and_what_is_left(channel: WireChannel, name: Name, queue: str) -> None:
    exchange = channel.exchange(name())
    channel.bind(queue, exchange, "the.key")
    channel.published(b"1", b"2", routing_key="the.key", exchange=exchange)
    first = channel.get(queue)
    assert (first.body, first.method.exchange, first.method.routing_key) == (b"1", exchange, "the.key")
    assert (first.method.message_count, first.method.redelivered, first.tag) == (1, False, 1)
    second = channel.get(queue, no_ack=False)
    assert (second.method.message_count, second.tag) == (0, 2)
    assert channel.get(queue) is None


def test_getting_from_what_is_not_there(channel: WireChannel) -> None:
    assert channel.refused(Basic.Get(queue="nothing")) == (404, "NOT_FOUND - no queue 'nothing' in vhost '/'")


def test_what_has_expired_behind_a_message_is_not_left(channel: WireChannel, queue: str, name: Name) -> None:
    graveyard = channel.declare(name())
    witness = channel.declare(name(), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard})
    channel.published(b"stays", routing_key=queue)
    channel.published(b"goes", routing_key=queue, expiration="10")
    channel.published(b"goes", routing_key=witness, expiration="10")
    eventually(lambda: channel.ready(graveyard) == 1)
    assert channel.ready(queue) == 2
    got = channel.get(queue)
    assert (got.body, got.method.message_count) == (b"stays", 0)


PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {
        "integer": 1,
        "large": 2**40,
        "negative": -5,
        "text": "süß",
        "yes": True,
        "no": False,
        "nothing": None,
        "float": 1.5,
        "decimal": Decimal("1.25"),
        "list": [1, "two", [3]],
        "table": {"a": {"b": "c"}},
        "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    },
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "message_id": "m",
    "timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "message_type": "t",
    "user_id": "guest",
    "app_id": "a",
}


def test_every_property_arrives(channel: WireChannel, queue: str) -> None:
    channel.published(b"x", routing_key=queue, **PROPERTIES)
    got = channel.get(queue).properties
    assert {key: getattr(got, key) for key in PROPERTIES} == PROPERTIES


def test_no_property_arrives_as_none(channel: WireChannel, queue: str) -> None:
    channel.published(b"x", routing_key=queue)
    got = channel.get(queue).properties
    assert {key: getattr(got, key) for key in PROPERTIES} == dict.fromkeys(PROPERTIES)


@pytest.mark.parametrize("size", [0, 1, 4088, 131064, 131065, 3_000_000])
def test_bodies_of_any_size(channel: WireChannel, queue: str, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"e" * (size % 256)
    channel.published(content, routing_key=queue)
    channel.consume(queue, no_ack=True)
    assert channel.bodies(1) == [content]


def test_a_larger_frame_goes_to_a_smaller_reader(dial: Dial, channel: WireChannel, queue: str) -> None:
    content = b"0123456789" * 10_000
    channel.published(content, routing_key=queue)
    assert dial().open(frame_max=4096).channel().get(queue).body == content


def test_a_mandatory_message_without_a_way_is_returned(channel: WireChannel) -> None:
    channel.publish(b"body", "nowhere", "amq.direct", mandatory=True, message_id="7")
    returned = channel.take(Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", "nowhere")
    assert (returned.body, returned.properties.message_id) == (b"body", "7")


@pytest.mark.parametrize(
    ("exchange", "properties", "reason"),
    [
        ("nothing", {"user_id": "somebody"}, "NOT_FOUND - no exchange 'nothing'"),
        ("nothing", {"expiration": "soon"}, "NOT_FOUND - no exchange 'nothing'"),
        ("amq.rabbitmq.trace", {"user_id": "somebody"}, "ACCESS_REFUSED - cannot publish to internal exchange"),
        ("", {"user_id": "somebody", "expiration": "soon"}, "PRECONDITION_FAILED - user_id property set to 'somebody'"),
        ("", {"expiration": "soon", "headers": {"CC": 1}}, "PRECONDITION_FAILED - invalid expiration 'soon'"),
    ],
)
@pytest.mark.parametrize("transactional", [False, True])
def test_the_first_wrong_thing_is_named(
    channel: WireChannel, exchange: str, properties: dict[str, Any], reason: str, transactional: bool
) -> None:
    if transactional:
        channel.transactional()
    channel.publish(b"x", "k", exchange, **properties)
    assert channel.refused().text.startswith(reason)


def test_another_ones_name_is_refused(channel: WireChannel, queue: str) -> None:
    channel.publish(b"x", queue, user_id="somebody")
    code, text = channel.refused()
    assert code == 406
    assert text == "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("soon", "no_integer"),
        (" 1", "no_integer"),
        ("-", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("1 ", '{leftover_string," "}'),
        ("1e3", '{leftover_string,"e3"}'),
        ('1"\\', r'{leftover_string,"\"\\"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_expiration_that_is_no_time(channel: WireChannel, queue: str, expiration: str, reason: str) -> None:
    channel.publish(b"x", queue, expiration=expiration)
    assert channel.refused() == (406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}")


def test_an_expiration_of_many_digits(channel: WireChannel, queue: str) -> None:
    channel.publish(b"x", queue, expiration="9" * 100)
    code, text = channel.refused()
    assert code == 406
    assert "{value_too_large," in text


@pytest.mark.parametrize("expiration", ["+60000", "000060000", "4294967296", "315360000000"])
def test_an_expiration_far_away(channel: WireChannel, queue: str, expiration: str) -> None:
    channel.published(b"x", routing_key=queue, expiration=expiration)
    assert channel.get(queue).properties.expiration == expiration


# Consume ----------------------------------------------------------------------------------------------------------


def test_deliveries_come_in_order_and_numbered(channel: WireChannel, queue: str) -> None:
    bodies = numbered(500)
    channel.published(*bodies[:250], routing_key=queue)
    tag = channel.consume(queue, no_ack=True)
    channel.published(*bodies[250:], routing_key=queue)
    got = channel.deliveries(500)
    assert [one.body for one in got] == bodies
    assert [one.tag for one in got] == list(range(1, 501))
    first = got[0].method
    assert (first.consumer_tag, first.redelivered, first.exchange, first.routing_key) == (tag, False, "", queue)


def test_the_server_makes_consumer_tags(channel: WireChannel, queue: str) -> None:
    tags = [channel.consume(queue) for _ in range(3)]
    assert len(set(tags)) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


@pytest.mark.parametrize("tag", ["mine", "with a \0 in it"])
def test_a_tag_is_used_once_on_a_channel(channel: WireChannel, queue: str, tag: str) -> None:
    assert channel.consume(queue, tag) == tag
    assert channel.client.channel().consume(queue, tag) == tag
    channel.cast(Basic.Consume(queue=queue, consumer_tag=tag))
    assert channel.client.ended() == (530, f"NOT_ALLOWED - attempt to reuse consumer tag '{tag}'")


def test_consuming_what_is_not_there(channel: WireChannel) -> None:
    assert channel.refused(Basic.Consume(queue="nothing")) == (404, "NOT_FOUND - no queue 'nothing' in vhost '/'")


def test_an_exclusive_consumer(channel: WireChannel, other: WireChannel, queue: str) -> None:
    tag = channel.consume(queue, exclusive=True)
    for flags in ({}, {"exclusive": True}):
        refusal = other.refused(Basic.Consume(queue=queue, **flags))
        assert refusal == (403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use")
    channel.call(Basic.Cancel(tag))
    other.consume(queue)
    refusal = channel.refused(Basic.Consume(queue=queue, exclusive=True))
    assert refusal == (403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use")


def test_cancelling(channel: WireChannel, queue: str) -> None:
    tag = channel.consume(queue)
    channel.published(b"1", routing_key=queue)
    [one] = channel.deliveries(1)
    assert channel.call(Basic.Cancel(tag)).consumer_tag == tag
    channel.published(b"2", routing_key=queue)
    assert channel.counts(queue) == (1, 0)
    channel.ack(one.tag)  # what was delivered can still be settled
    channel.round_trip()
    assert channel.waiting == []
    assert channel.call(Basic.Cancel("unknown")).consumer_tag == "unknown"


def test_what_is_published_before_a_cancel_is_for_the_consumer(
    channel: WireChannel, other: WireChannel, queue: str
) -> None:
    """On one channel, though another consumer waits."""
    channel.consume(queue, "high", arguments={"x-priority": 1}, no_ack=True)
    other.consume(queue, "low", no_ack=True)
    with channel.client.together():
        for body in numbered(100):
            channel.publish(body, queue)
        channel.cast(Basic.Cancel("high"))
        channel.publish(b"later", queue)
    assert channel.bodies(100) == numbered(100)
    assert other.bodies(1) == [b"later"]


def test_a_cancelled_consumer_gets_no_more_than_its_prefetch(
    channel: WireChannel, other: WireChannel, queue: str
) -> None:
    other.consume(queue, "low", arguments={"x-priority": -1}, no_ack=True)
    channel.qos(2)
    channel.consume(queue, "high")
    with channel.client.together():
        for body in numbered(5):
            channel.publish(body, queue)
        channel.cast(Basic.Cancel("high"))
    assert channel.bodies(2) == [b"0", b"1"]
    assert other.bodies(3) == [b"2", b"3", b"4"]


def test_many_consumers_of_one_channel(channel: WireChannel, name: Name) -> None:
    """Whichever goes, with something in doubt, the others go on, and its tag may be used again."""
    queues = {f"tag {number}": channel.declare(name()) for number in range(40)}

    def served(*tags: str) -> dict[str, int]:
        """Delivery tags, by the tags of consumers, of a message for each of these."""
        for tag in tags:
            channel.publish(b"", queues[tag])
        found = {one.method.consumer_tag: one.tag for one in channel.deliveries(len(tags))}
        assert found.keys() == {*tags}
        return found

    channel.qos(1)
    for tag, queue in queues.items():
        channel.consume(queue, tag)
    got = served(*queues)
    gone, left = [*queues][::2], [*queues][1::2]
    for tag in reversed(gone):
        assert channel.call(Basic.Cancel(tag)).consumer_tag == tag
    for tag in got.values():
        channel.ack(tag)
    served(*left)
    channel.ack(multiple=True)
    for tag in gone:
        channel.consume(queues[tag], tag)
    served(*queues)
    assert channel.waiting == []


def test_consumers_take_turns(channel: WireChannel, queue: str) -> None:
    channels = [channel.client.channel() for _ in range(3)]
    for one in channels:
        one.consume(queue, no_ack=True)
    channel.published(*numbered(30), routing_key=queue)
    got = [one.bodies(10) for one in channels]
    assert sorted(body for bodies in got for body in bodies) == sorted(numbered(30))
    assert all(bodies == sorted(bodies, key=int) for bodies in got)


def test_no_local_is_ignored(channel: WireChannel, queue: str) -> None:
    channel.consume(queue, no_local=True, no_ack=True)
    channel.publish(b"1", queue)
    assert channel.bodies(1) == [b"1"]


def test_a_deleted_queue_cancels_its_consumers(dial: Dial, channel: WireChannel, queue: str) -> None:
    informed = dial().open().channel()
    ignorant = dial().open(capabilities={**CAPABILITIES, "consumer_cancel_notify": False}).channel()
    tag = informed.consume(queue)
    ignorant.consume(queue)
    channel.call(Queue.Delete(queue=queue))
    assert informed.take(Basic.Cancel).consumer_tag == tag
    ignorant.round_trip()
    ignorant.round_trip()
    assert ignorant.waiting == []


# Prefetch ---------------------------------------------------------------------------------------------------------


def test_a_consumer_gets_no_more_than_its_prefetch(channel: WireChannel, queue: str) -> None:
    channel.qos(3)
    channel.published(*numbered(10), routing_key=queue)
    channel.consume(queue)
    first = channel.deliveries(3)
    assert channel.ready(queue) == 7
    channel.round_trip()
    assert channel.waiting == []
    channel.ack(first[0].tag)
    assert channel.bodies(1) == [b"3"]
    channel.ack(first[2].tag, multiple=True)
    assert channel.bodies(2) == [b"4", b"5"]
    channel.nack(multiple=True, requeue=False)
    assert channel.bodies(3) == [b"6", b"7", b"8"]


def test_prefetch_is_each_consumers_that_starts_later(channel: WireChannel, queue: str, name: Name) -> None:
    second = channel.declare(name())
    channel.published(*numbered(5), routing_key=queue)
    channel.published(*numbered(5), routing_key=second)
    channel.qos(2)
    channel.consume(queue)
    channel.deliveries(2)
    channel.qos(1)
    channel.consume(second)
    channel.deliveries(1)
    channel.round_trip()
    assert (channel.ready(queue), channel.ready(second), channel.waiting) == (3, 4, [])


def test_prefetch_of_the_channel(channel: WireChannel, queue: str, name: Name) -> None:
    second = channel.declare(name())
    channel.published(*numbered(5), routing_key=queue)
    channel.published(*numbered(5), routing_key=second)
    channel.qos(3, everywhere=True)
    channel.consume(queue)
    got = channel.deliveries(3)
    channel.consume(second)
    channel.round_trip()
    assert (channel.ready(queue), channel.ready(second), channel.waiting) == (2, 5, [])
    channel.ack(got[-1].tag, multiple=True)
    assert len(channel.bodies(3)) == 3
    eventually(lambda: channel.ready(queue) + channel.ready(second) == 4)


def test_prefetch_of_the_channel_is_raised_and_lifted(channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(10), routing_key=queue)
    channel.qos(2, everywhere=True)
    channel.consume(queue)
    assert len(channel.bodies(2)) == 2
    channel.qos(5, everywhere=True)
    assert len(channel.bodies(3)) == 3
    channel.qos(1, everywhere=True)
    channel.round_trip()
    assert (channel.ready(queue), channel.waiting) == (5, [])
    channel.qos(0, everywhere=True)
    assert channel.bodies(5) == [b"5", b"6", b"7", b"8", b"9"]


def test_prefetch_does_not_limit_a_consumer_without_acknowledgements(channel: WireChannel, queue: str) -> None:
    channel.qos(1)
    channel.published(*numbered(5), routing_key=queue)
    channel.consume(queue, no_ack=True)
    assert channel.bodies(5) == numbered(5)


def test_prefetch_does_not_limit_getting(channel: WireChannel, queue: str) -> None:
    channel.qos(1)
    channel.published(*numbered(3), routing_key=queue)
    assert [channel.get(queue, no_ack=False).body for _ in range(3)] == numbered(3)


# Settle -----------------------------------------------------------------------------------------------------------


def test_acknowledging_many_at_once(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(5), routing_key=queue)
    channel.consume(queue)
    got = channel.deliveries(5)
    channel.ack(got[2].tag, multiple=True)
    channel.close()
    eventually(lambda: other.ready(queue) == 2)
    assert other.drain(queue) == [b"3", b"4"]


def test_tag_0_means_all(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(3), routing_key=queue)
    channel.consume(queue)
    channel.deliveries(3)
    channel.ack(0, multiple=True)
    channel.ack(0, multiple=True)  # also when there are none
    channel.close()
    assert other.ready(queue) == 0


@pytest.mark.parametrize(
    "method",
    [
        Basic.Ack(5),
        Basic.Ack(5, True),
        Basic.Ack(0),
        Basic.Nack(5),
        Basic.Nack(5, True),
        Basic.Reject(5),
    ],
    ids=["ack", "ack multiple", "ack 0", "nack", "nack multiple", "reject"],
)
def test_a_tag_that_is_not_known(channel: WireChannel, queue: str, method: Any) -> None:
    channel.published(b"1", routing_key=queue)
    channel.get(queue, no_ack=False)
    refusal = channel.refused(method)
    assert refusal == (406, f"PRECONDITION_FAILED - unknown delivery tag {method.delivery_tag}")
    eventually(lambda: channel.ready(queue) == 1)  # the channel's end returned it


def test_a_message_is_settled_once(channel: WireChannel, queue: str) -> None:
    channel.published(b"1", routing_key=queue)
    one = channel.get(queue, no_ack=False)
    channel.ack(one.tag)
    channel.ack(one.tag)
    assert channel.refused() == (406, f"PRECONDITION_FAILED - unknown delivery tag {one.tag}")


def test_what_needs_no_acknowledgement_has_no_tag_to_settle(channel: WireChannel, queue: str) -> None:
    channel.published(b"1", routing_key=queue)
    one = channel.get(queue, no_ack=True)
    channel.ack(one.tag)
    assert channel.refused().code == 406


def test_what_is_returned_goes_back_to_its_place(channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(5), routing_key=queue)
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    channel.reject(held[1].tag)
    channel.nack(held[0].tag)
    eventually(lambda: channel.ready(queue) == 4)
    got = [channel.get(queue) for _ in range(4)]
    assert [(one.body, one.method.redelivered) for one in got] == [
        (b"0", True), (b"1", True), (b"3", False), (b"4", False),
    ]  # fmt: skip


def test_returning_many(channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(4), routing_key=queue)
    held = [channel.get(queue, no_ack=False) for _ in range(4)]
    channel.nack(held[2].tag, multiple=True)
    eventually(lambda: channel.ready(queue) == 3)
    assert channel.drain(queue) == [b"0", b"1", b"2"]


def test_what_is_rejected_is_gone(channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(3), routing_key=queue)
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    channel.reject(held[0].tag, requeue=False)
    channel.nack(held[2].tag, multiple=True, requeue=False)
    channel.round_trip()
    channel.close()
    assert channel.client.channel().counts(queue) == (0, 0)


def test_a_returned_message_goes_to_the_next_consumer(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.qos(1)
    tag = channel.consume(queue)
    channel.publish(b"1", queue)
    [one] = channel.deliveries(1)
    other.qos(1)
    other.consume(queue)
    channel.cast(Basic.Cancel(tag))
    channel.reject(one.tag)
    [again] = other.deliveries(1)
    assert (again.body, again.method.redelivered) == (b"1", True)


def test_recover_returns_everything(channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(3), routing_key=queue)
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.call(Basic.Recover(requeue=True))
    eventually(lambda: channel.ready(queue) == 3)
    assert [(one.body, one.method.redelivered) for one in (channel.get(queue) for _ in range(3))] == [
        (b"0", True), (b"1", True), (b"2", True),
    ]  # fmt: skip


def test_recover_async_has_no_answer(channel: WireChannel, queue: str) -> None:
    channel.consume(queue)
    channel.published(*numbered(2), routing_key=queue)
    channel.deliveries(2)
    channel.client.send_bytes(raw_method(60, 100, b"\x01", channel.number))
    again = channel.deliveries(2)
    assert [(one.body, one.method.redelivered, one.tag) for one in again] == [(b"0", True, 3), (b"1", True, 4)]


def test_a_lost_connection_returns_what_it_had(dial: Dial, channel: WireChannel, queue: str) -> None:
    channel.published(*numbered(3), routing_key=queue)
    lost = dial().open()
    lost.channel().consume(queue)
    WireChannel(lost, 1).deliveries(3)
    lost.abort()
    eventually(lambda: channel.ready(queue) == 3)
    assert [(one.body, one.method.redelivered) for one in (channel.get(queue) for _ in range(3))] == [
        (b"0", True), (b"1", True), (b"2", True),
    ]  # fmt: skip


# Priorities of consumers, and one that is active ------------------------------------------------------------------


def test_the_consumer_of_higher_priority_is_served_first(channel: WireChannel, queue: str) -> None:
    low, high = channel.client.channel(), channel.client.channel()
    for one in (low, high):
        one.qos(2)
    low.consume(queue)
    high.consume(queue, arguments={"x-priority": 10})
    channel.published(*numbered(5), routing_key=queue)
    got = high.deliveries(2)
    assert [one.body for one in got] == [b"0", b"1"]
    assert low.bodies(2) == [b"2", b"3"]
    high.ack(got[0].tag)
    assert high.bodies(1) == [b"4"]


def test_consumers_that_never_acknowledge_leave_the_rest_to_others(
    dial: Dial, channel: WireChannel, queue: str
) -> None:
    """Each has a window of its own, and a connection of its own; the last one gets what no other can take."""
    ranks = [10, 10, 5, 5, 1]
    consumers = [dial().open().channel() for _ in [*ranks, 0]]
    for one, rank in zip(consumers, ranks, strict=False):
        one.qos(1)
        one.consume(queue, arguments={"x-priority": rank})
    consumers[-1].consume(queue)
    channel.published(*numbered(8), routing_key=queue)
    got = [one.bodies(1)[0] for one in consumers[:-1]]
    assert (sorted(got[:2]), sorted(got[2:4]), got[4]) == ([b"0", b"1"], [b"2", b"3"], b"4")
    assert consumers[-1].bodies(3) == [b"5", b"6", b"7"]
    assert channel.counts(queue) == (0, 6)


def test_a_message_that_comes_back_goes_to_a_consumer_that_can_take_it(
    dial: Dial, channel: WireChannel, queue: str
) -> None:
    high, busy, low = (dial().open().channel() for _ in range(3))
    for one, rank in ((high, 10), (busy, 5)):
        one.qos(1)
        one.consume(queue, arguments={"x-priority": rank})
    channel.published(*numbered(2), routing_key=queue)
    [first], [second] = high.deliveries(1), busy.deliveries(1)
    low.consume(queue)
    channel.published(b"2", routing_key=queue)
    assert low.bodies(1) == [b"2"]
    busy.nack(second.tag)
    assert [(one.body, one.method.redelivered) for one in busy.deliveries(1)] == [(b"1", True)]
    high.client.abort()
    assert [(one.body, one.method.redelivered) for one in low.deliveries(1)] == [(first.body, True)]


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("x-priority", "high", ': "expected integer, got longstr"'),
        ("x-priority", True, ': "expected integer, got bool"'),
        ("x-cancel-on-ha-failover", 1, ": {unacceptable_type,byte}"),
        ("x-stream-offset", "first", " of queue type rabbit_classic_queue"),
    ],
)
def test_arguments_of_a_consumer_that_cannot_be(
    channel: WireChannel, queue: str, argument: str, value: Any, reason: str
) -> None:
    refusal = channel.refused(Basic.Consume(queue=queue, arguments={argument: value}))
    assert refusal == (406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/'{reason}")
    assert channel.counts(queue) == (0, 0)


def test_an_argument_of_consumers_of_other_queues(channel: WireChannel, name: Name) -> None:
    queue = channel.call(Queue.Declare(queue=name(), durable=True, arguments={"x-queue-type": "quorum"})).queue
    refusal = channel.refused(Basic.Consume(queue=queue, arguments={"x-cancel-on-ha-failover": True}))
    reason = f"invalid arg 'x-cancel-on-ha-failover' for queue '{queue}' in vhost '/' of queue type rabbit_quorum_queue"
    assert refusal == (406, f"PRECONDITION_FAILED - {reason}")


def test_arguments_of_a_consumer_that_can_be(channel: WireChannel, queue: str) -> None:
    for arguments in ({"x-priority": -(2**31)}, {"x-cancel-on-ha-failover": True}, {"x-unheard-of": "what"}):
        channel.consume(queue, arguments=arguments)
    assert channel.counts(queue) == (0, 3)


def test_one_consumer_is_active(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-single-active-consumer": True})
    first, second, third = (channel.client.channel() for _ in range(3))
    for one in (first, second, third):
        one.consume(queue, "its", no_ack=True)
    channel.published(*numbered(5), routing_key=queue)
    assert first.bodies(5) == numbered(5)
    first.call(Basic.Cancel("its"))
    channel.published(b"5", routing_key=queue)
    assert second.bodies(1) == [b"5"]
    second.close()
    channel.published(b"6", routing_key=queue)
    assert third.bodies(1) == [b"6"]
    assert channel.counts(queue) == (0, 1)


def test_the_next_active_consumer_is_the_first_by_priority(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-single-active-consumer": True})
    first, second, third = (channel.client.channel() for _ in range(3))
    for one, rank in ((first, 0), (second, 0), (third, 5)):
        one.consume(queue, "its", arguments={"x-priority": rank}, no_ack=True)
    channel.published(b"0", routing_key=queue)
    assert first.bodies(1) == [b"0"]
    first.call(Basic.Cancel("its"))
    channel.published(b"1", routing_key=queue)
    assert third.bodies(1) == [b"1"]
    third.call(Basic.Cancel("its"))
    channel.published(b"2", routing_key=queue)
    assert second.bodies(1) == [b"2"]


def test_an_exclusive_consumer_of_a_queue_with_one_active(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-single-active-consumer": True})
    code, _text = channel.refused(Basic.Consume(queue=queue, exclusive=True))
    assert code == 403


def test_the_next_active_consumer_gets_what_the_first_had(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-single-active-consumer": True})
    first, second = channel.client.channel(), channel.client.channel()
    first.consume(queue)
    second.consume(queue)
    channel.published(*numbered(3), routing_key=queue)
    first.deliveries(3)
    first.close()
    assert [(one.body, one.method.redelivered) for one in second.deliveries(3)] == [
        (b"0", True), (b"1", True), (b"2", True),
    ]  # fmt: skip


# Direct reply-to -------------------------------------------------------------------------------------------------


def test_direct_reply_to(client: WireClient, other: WireChannel, name: Name) -> None:
    asking, requests = client.channel(), other.declare(name())
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish(b"question", requests, reply_to="amq.rabbitmq.reply-to")
    other.consume(requests, no_ack=True)
    [question] = other.deliveries(1)
    address = question.properties.reply_to
    assert address.startswith("amq.rabbitmq.reply-to.")
    other.publish(b"answer", address)
    assert asking.bodies(1) == [b"answer"]


@pytest.mark.parametrize(
    "arguments", [{"x-priority": "high"}, {"x-stream-offset": "first"}, {"x-cancel-on-ha-failover": 1}]
)
def test_arguments_of_a_reply_consumer_are_ignored(
    client: WireClient, other: WireChannel, arguments: dict[str, Any]
) -> None:
    asking, requests = client.channel(), other.declare()
    asking.consume("amq.rabbitmq.reply-to", no_ack=True, exclusive=True, arguments=arguments)
    asking.publish(b"question", requests, reply_to="amq.rabbitmq.reply-to")
    other.consume(requests, no_ack=True)
    [question] = other.deliveries(1)
    other.publish(b"answer", question.properties.reply_to)
    assert asking.bodies(1) == [b"answer"]


def test_a_mandatory_direct_reply_is_delivered_and_returned(client: WireClient, other: WireChannel) -> None:
    """It goes to no queue: so RabbitMQ says that it could not be routed, too."""
    asking = client.channel()
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    requests = other.declare()
    asking.publish(b"question", requests, reply_to="amq.rabbitmq.reply-to")
    other.consume(requests, no_ack=True)
    [question] = other.deliveries(1)
    other.confirming()
    other.publish(b"answer", question.properties.reply_to, mandatory=True)
    returned = other.take(Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    other.take(Basic.Ack)
    assert asking.bodies(1) == [b"answer"]


def test_an_address_of_direct_reply_to_is_declared_as_long_as_it_lives(
    client: WireClient, other: WireChannel, name: Name
) -> None:
    """A declaration, passive or not, says whether a reply would be delivered; no other method finds a queue there."""
    asking, requests = client.channel(), other.declare(name())
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish(b"question", requests, reply_to="amq.rabbitmq.reply-to")
    other.consume(requests, no_ack=True)
    [question] = other.deliveries(1)
    address = question.properties.reply_to
    for queue in ("amq.rabbitmq.reply-to", address):
        for passive in (True, False):
            found = other.call(_with_name(Queue.Declare(passive=passive), queue=queue))
            assert (found.queue, found.message_count, found.consumer_count) == (queue, 0, 1)
    assert other.call(_with_name(Queue.Delete(), queue=address)).message_count == 0
    other.publish(b"answer", address)
    assert asking.bodies(1) == [b"answer"]
    for method in (Basic.Get(), Queue.Purge(), Basic.Consume()):
        probe = client.channel()
        assert probe.refused(_with_name(method, queue=address)) == (
            404,
            f"NOT_FOUND - no queue '{address}' in vhost '/'",
        )
    asking.close()
    assert other.refused(_with_name(Queue.Declare(passive=True), queue=address)) == (
        404, f"NOT_FOUND - no queue '{address}' in vhost '/'",
    )  # fmt: skip


def test_a_reply_to_an_address_that_is_gone_is_dropped(client: WireClient, other: WireChannel, name: Name) -> None:
    asking, requests = client.channel(), other.declare(name())
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish(b"question", requests, reply_to="amq.rabbitmq.reply-to")
    other.consume(requests, no_ack=True)
    [question] = other.deliveries(1)
    asking.close()
    other.confirming()
    other.publish(b"answer", question.properties.reply_to)
    other.take(Basic.Ack)
    other.publish(b"answer", question.properties.reply_to, mandatory=True)
    assert other.take(Basic.Return).method.reply_code == 312
    other.take(Basic.Ack)


def _with_name(method: Any, **names: str) -> Any:
    """Return a method with names that pamqp would not send."""
    for name, value in names.items():
        setattr(method, name, value)
    method.validate = lambda: None
    return method


def test_breaks_of_lines_are_left_out_of_names(channel: WireChannel, name: Name) -> None:
    """Breaks are left out of names that are declared, bound or deleted; elsewhere it is taken as it is."""
    queue, exchange = name(), name()
    odd, odd_exchange = f"{queue[:3]}\r\n{queue[3:]}\n", f"\n{exchange[:3]}\r{exchange[3:]}"
    assert channel.call(_with_name(Queue.Declare(), queue=odd)).queue == queue
    assert channel.call(_with_name(Queue.Declare(passive=True), queue=odd)).queue == queue
    channel.call(_with_name(Exchange.Declare(exchange_type="direct"), exchange=odd_exchange))
    channel.call(Exchange.Declare(exchange=exchange, passive=True))
    channel.call(_with_name(Queue.Bind(routing_key="k"), queue=odd, exchange=odd_exchange))
    channel.call(_with_name(Exchange.Bind(source="amq.direct", routing_key="k"), destination=odd_exchange))
    channel.publish(b"x", "k", exchange="amq.direct")
    assert channel.drain(queue) == [b"x"]
    for method in (Queue.Purge(), Basic.Get(), Basic.Consume()):
        code, text = channel.refused(_with_name(method, queue=odd))
        assert (code, text) == (404, f"NOT_FOUND - no queue '{odd}' in vhost '/'")
    channel.call(_with_name(Queue.Unbind(routing_key="k"), queue=odd, exchange=odd_exchange))
    channel.call(_with_name(Queue.Delete(), queue=odd))
    channel.call(_with_name(Exchange.Delete(), exchange=odd_exchange))
    assert channel.refused(Queue.Declare(queue=queue, passive=True))[0] == 404


def test_direct_reply_to_needs_no_ack(channel: WireChannel) -> None:
    code, _text = channel.refused(Basic.Consume(queue="amq.rabbitmq.reply-to"))
    assert code == 406
    channel.publish(b"x", "amq.direct", reply_to="amq.rabbitmq.reply-to")
    assert channel.take(Channel.Close).reply_code == 406
