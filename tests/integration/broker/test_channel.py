"""Opening and closing channels, on both brokers."""

from __future__ import annotations

from pamqp.commands import Basic, Channel, Exchange, Queue
from support.waiting import eventually
from support.wireclient import Name, WireChannel, WireClient, raw_method


def test_many_channels_each_their_own(client: WireClient, queue: str) -> None:
    channels = [client.channel() for _ in range(50)]
    for number, one in enumerate(channels):
        one.publish(b"%d" % number, queue)
    for one in channels:
        one.round_trip()
    assert channels[0].ready(queue) == 50


def test_any_number(client: WireClient) -> None:
    # What was agreed on, 2047, is how many.
    for number in (2047, 1, 77, 2048, 65535):
        client.channel(number).close()


def test_a_number_can_be_used_again(client: WireClient, queue: str) -> None:
    for _ in range(3):
        channel = client.channel(7)
        channel.publish(b"x", queue)
        channel.close()
    eventually(lambda: client.channel(8).ready(queue) == 3 or client.channel(8).close(), what="three messages")


def test_what_was_not_acknowledged_returns_when_the_channel_closes(client: WireClient, queue: str) -> None:
    first, second = client.channel(), client.channel()
    second.published(b"1", b"2", b"3", routing_key=queue)
    first.consume(queue)
    assert first.bodies(3) == [b"1", b"2", b"3"]
    first.close()
    eventually(lambda: second.ready(queue) == 3)
    again = [second.get(queue) for _ in range(3)]
    assert [(one.body, one.method.redelivered) for one in again] == [(b"1", True), (b"2", True), (b"3", True)]


def test_an_error_closes_one_channel_and_leaves_the_others(client: WireClient, queue: str) -> None:
    bad, good = client.channel(), client.channel()
    bad.cast(Queue.Declare(queue="missing-queue", passive=True))
    closed = bad.take(Channel.Close)
    assert (closed.class_id, closed.method_id) == (50, 10)
    assert good.ready(queue) == 0
    bad.cast(Channel.CloseOk())


def test_what_was_sent_after_the_error_is_not_done(client: WireClient, queue: str) -> None:
    bad, good = client.channel(), client.channel()
    bad.cast(Queue.Declare(queue="missing-queue", passive=True))
    bad.publish(b"lost", queue)
    bad.cast(Queue.Delete(queue=queue))
    bad.cast(Basic.Get(queue=queue))
    bad.take(Channel.Close)
    bad.cast(Channel.CloseOk())
    bad.call(Channel.Open())
    assert bad.waiting == []
    assert good.ready(queue) == 0


def test_what_was_not_acknowledged_returns_after_an_error(client: WireClient, queue: str) -> None:
    bad, good = client.channel(), client.channel()
    good.published(b"1", routing_key=queue)
    bad.consume(queue)
    bad.deliveries(1)
    bad.refused(Queue.Declare(queue="missing-queue", passive=True))
    eventually(lambda: good.ready(queue) == 1)


def test_the_close_says_which_method_it_was(channel: WireChannel) -> None:
    channel.publish(b"x", "key", "missing-exchange")
    closed = channel.take(Channel.Close)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
    channel.cast(Channel.CloseOk())


def test_flow_active_is_answered(channel: WireChannel) -> None:
    assert channel.call(Channel.Flow(active=True)).active is True


def test_access_request_is_answered_as_ever(channel: WireChannel) -> None:
    # Of AMQP 0-8: some clients still send it.
    channel.client.send_bytes(raw_method(30, 10, b"\x01/\x00", channel.number))
    data = channel.client.read_bytes(14)
    assert data[7:11] == bytes([0, 30, 0, 11])


def test_nowait_is_not_answered(channel: WireChannel, name: Name) -> None:
    exchange, queue = name(), name()
    channel.cast(Exchange.Declare(exchange=exchange, exchange_type="fanout", nowait=True))
    channel.cast(Queue.Declare(queue=queue, nowait=True))
    channel.cast(Queue.Bind(queue=queue, exchange=exchange, nowait=True))
    channel.cast(Basic.Consume(queue=queue, consumer_tag="mine", no_ack=True, nowait=True))
    channel.publish(b"1", "", exchange)
    assert channel.bodies(1) == [b"1"]
    channel.cast(Basic.Cancel("mine", nowait=True))
    channel.published(b"2", b"3", exchange=exchange)
    assert channel.counts(queue) == (2, 0)
    channel.cast(Queue.Purge(queue=queue, nowait=True))
    assert channel.ready(queue) == 0
    channel.cast(Queue.Delete(queue=queue, nowait=True))
    channel.cast(Exchange.Delete(exchange=exchange, nowait=True))
    assert channel.refused(Queue.Declare(queue=queue, passive=True)).code == 404
    assert channel.refused(Exchange.Declare(exchange=exchange, passive=True)).code == 404
    assert channel.waiting == []
