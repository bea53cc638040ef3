"""Publisher confirms and transactions, on both brokers."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx
from support.rabbitmq import numbered
from support.waiting import eventually
from support.wireclient import Name, WireChannel

# Confirms ---------------------------------------------------------------------------------------------------------


def confirmed(channel: WireChannel, last: int) -> set[int]:
    """Return the tags that were acknowledged, until `last` is."""
    seen: set[int] = set()
    done = 0
    while last not in seen:
        one = channel.take(Basic.Ack)
        seen |= set(range(done + 1, one.delivery_tag + 1)) if one.multiple else {one.delivery_tag}
        done = max(done, one.delivery_tag) if one.multiple else done
    return seen


def test_each_publishing_is_confirmed_once(channel: WireChannel, queue: str) -> None:
    channel.confirming()
    for content in numbered(100):
        channel.publish(content, queue)
    seen: set[int] = set()
    while len(seen) < 100:
        one = channel.take(Basic.Ack)
        tags = (
            {tag for tag in range(1, one.delivery_tag + 1) if tag not in seen} if one.multiple else {one.delivery_tag}
        )
        assert not tags & seen
        seen |= tags
    assert seen == set(range(1, 101))
    assert channel.ready(queue) == 100
    assert channel.waiting == []


def test_confirm_select_twice(channel: WireChannel, queue: str) -> None:
    channel.confirming().publish(b"1", queue)
    channel.confirming().publish(b"2", queue)
    assert confirmed(channel, 2) >= {2}


def test_counting_begins_with_confirm_select(channel: WireChannel, queue: str) -> None:
    channel.publish(b"before", queue)
    channel.cast(Confirm.Select(nowait=True))
    channel.publish(b"after", queue)
    assert channel.take(Basic.Ack).delivery_tag == 1


def test_a_message_without_a_route_is_confirmed(channel: WireChannel) -> None:
    channel.confirming().publish(b"x", "nowhere", "amq.direct")
    assert channel.take(Basic.Ack).delivery_tag == 1


def test_what_is_returned_is_confirmed_after_that(channel: WireChannel) -> None:
    channel.confirming().publish(b"x", "nowhere", mandatory=True)
    eventually(lambda: channel.round_trip() or len(channel.waiting) == 2)
    returned, acked = channel.waiting
    assert (returned.method.reply_code, acked.delivery_tag, type(acked)) == (312, 1, Basic.Ack)


def test_a_persistent_message_for_a_durable_queue(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), durable=True)
    channel.confirming()
    for content in numbered(10):
        channel.publish(content, queue, delivery_mode=2)
    assert 10 in confirmed(channel, 10)
    assert channel.ready(queue) == 10


def test_what_a_full_queue_refuses(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirming()
    outcome = []
    for content in numbered(4):
        channel.publish(content, queue)
        outcome.append(type(channel.take(Basic.Ack, Basic.Nack)))
    assert outcome == [Basic.Ack, Basic.Ack, Basic.Nack, Basic.Nack]
    assert channel.drain(queue) == [b"0", b"1"]


def test_an_error_ends_the_confirms(channel: WireChannel, queue: str) -> None:
    channel.confirming()
    channel.publish(b"x", "key", "missing-exchange")
    assert channel.refused().code == 404
    channel.published(b"y", routing_key=queue)
    assert channel.waiting == []  # opened again, it does not confirm


@pytest.mark.parametrize("order", [(Confirm.Select(), Tx.Select()), (Tx.Select(), Confirm.Select())])
def test_a_channel_confirms_or_has_transactions(channel: WireChannel, order: tuple[object, object]) -> None:
    channel.call(order[0])
    words = ["confirm", "tx"] if isinstance(order[0], Confirm.Select) else ["tx", "confirm"]
    refusal = channel.refused(order[1])
    assert refusal == (406, f"PRECONDITION_FAILED - cannot switch from {words[0]} to {words[1]} mode")


# Transactions -----------------------------------------------------------------------------------------------------


def test_what_is_published_is_there_with_the_commit(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.transactional()
    for content in numbered(3):
        channel.publish(content, queue)
    channel.round_trip()
    assert other.ready(queue) == 0
    channel.call(Tx.Commit())
    assert other.drain(queue) == numbered(3)


def test_what_is_rolled_back_never_was(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.transactional()
    channel.publish(b"never", queue)
    channel.call(Tx.Rollback())
    channel.publish(b"1", queue)
    channel.call(Tx.Commit())
    assert other.drain(queue) == [b"1"]


def test_what_was_not_committed_ends_with_the_channel(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.transactional()
    channel.publish(b"never", queue)
    channel.close()
    assert other.ready(queue) == 0


def test_acknowledgements_count_with_the_commit(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(4), routing_key=queue)
    channel.transactional()
    held = [channel.get(queue, no_ack=False) for _ in range(4)]
    channel.ack(held[0].tag)
    channel.call(Tx.Commit())
    channel.ack(held[1].tag)
    channel.call(Tx.Rollback())
    channel.ack(held[1].tag)  # it is unacknowledged again
    channel.reject(held[2].tag)
    channel.call(Tx.Commit())
    eventually(lambda: other.ready(queue) == 1)
    assert other.drain(queue) == [b"2"]
    channel.close()
    eventually(lambda: other.ready(queue) == 1)
    assert other.drain(queue) == [b"3"]


@pytest.mark.parametrize("multiple", [False, True])
def test_a_transaction_settles_each_delivery_once(
    channel: WireChannel, other: WireChannel, queue: str, multiple: bool
) -> None:
    channel.published(*numbered(2), routing_key=queue)
    channel.transactional()
    tags = [channel.get(queue, no_ack=False).tag for _ in range(2)]
    channel.ack(tags[1], multiple=multiple)
    channel.ack(tags[1], multiple=multiple)
    assert channel.refused() == (406, f"PRECONDITION_FAILED - unknown delivery tag {tags[1]}")
    eventually(lambda: other.ready(queue) == 2)  # nothing was committed


def test_a_transaction_settles_what_was_delivered_by_then(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(3), routing_key=queue)
    channel.transactional()
    channel.get(queue, no_ack=False)
    channel.ack(0, multiple=True)
    second = channel.get(queue, no_ack=False)  # which is not acknowledged
    channel.call(Tx.Commit())
    channel.nack(second.tag)
    channel.ack(0, multiple=True)  # there is nothing left
    channel.call(Tx.Commit())
    eventually(lambda: other.ready(queue) == 2)
    assert other.drain(queue) == [b"1", b"2"]


def test_what_a_transaction_settles_is_not_recovered(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(2), routing_key=queue)
    channel.transactional()
    channel.ack(channel.get(queue, no_ack=False).tag)
    channel.get(queue, no_ack=False)
    channel.call(Basic.Recover(requeue=True))
    eventually(lambda: other.ready(queue) == 1)
    channel.call(Tx.Commit())
    assert other.drain(queue) == [b"1"]
    channel.close()
    assert other.ready(queue) == 0


def test_many_settlements_of_one_transaction(channel: WireChannel, other: WireChannel, queue: str) -> None:
    channel.published(*numbered(60), routing_key=queue)
    channel.transactional()
    tags = [channel.get(queue, no_ack=False).tag for _ in range(60)]
    for end in (10, 20):
        channel.ack(tags[end - 1], multiple=True)
    channel.reject(tags[25], requeue=False)
    channel.nack(tags[29], multiple=True, requeue=True)
    channel.ack(tags[40])
    channel.call(Tx.Rollback())
    assert other.ready(queue) == 0
    channel.ack(tags[9], multiple=True)
    channel.nack(tags[19], multiple=True, requeue=True)
    channel.ack(tags[40])
    channel.nack(tags[44], multiple=True, requeue=False)
    channel.call(Tx.Commit())
    eventually(lambda: other.ready(queue) == 10)
    channel.close()
    eventually(lambda: other.ready(queue) == 25)
    assert other.drain(queue) == [b"%d" % number for number in [*range(10, 20), *range(45, 60)]]


def test_returns_come_with_the_commit(channel: WireChannel) -> None:
    channel.transactional()
    channel.publish(b"x", "nowhere", mandatory=True)
    channel.round_trip()
    assert channel.waiting == []
    channel.cast(Tx.Commit())
    channel.take(Basic.Return)
    channel.take(Tx.CommitOk)


def test_committing_without_a_transaction(channel: WireChannel) -> None:
    for method in (Tx.Commit(), Tx.Rollback()):
        assert channel.refused(method) == (406, "PRECONDITION_FAILED - channel is not transactional")


def test_a_missing_exchange_is_told_at_once(channel: WireChannel, queue: str) -> None:
    channel.transactional()
    channel.publish(b"1", queue)
    channel.publish(b"2", "", "missing-exchange")
    assert channel.refused().code == 404
    assert channel.ready(queue) == 0


def test_an_internal_exchange_is_told_at_once(channel: WireChannel, name: Name) -> None:
    inside = channel.exchange(name(), internal=True)
    channel.transactional().publish(b"1", "k", inside)
    assert channel.refused() == (403, f"ACCESS_REFUSED - cannot publish to internal exchange '{inside}' in vhost '/'")


def test_a_message_is_routed_when_it_is_published(
    channel: WireChannel, other: WireChannel, name: Name, queue: str
) -> None:
    exchange = other.exchange(name())
    channel.transactional().publish(b"early", "k", exchange, mandatory=True)
    channel.round_trip()
    other.bind(queue, exchange, "k")
    channel.published(b"in time", routing_key="k", exchange=exchange, mandatory=True)
    other.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))
    other.call(Exchange.Delete(exchange=exchange))
    channel.call(Tx.Commit())
    assert [one.body for one in channel.waiting] == [b"early"]
    assert other.drain(queue) == [b"in time"]


def test_the_queues_of_a_message_are_those_of_their_names_at_the_commit(
    channel: WireChannel, other: WireChannel, name: Name
) -> None:
    later, again, gone, copied = name(), other.declare(name()), other.declare(name()), other.declare(name())
    channel.transactional()
    for queue in (later, again, gone):
        channel.publish(queue.encode(), queue, mandatory=True, headers={"BCC": [copied, copied]})
    channel.round_trip()
    for queue in (again, gone):
        other.call(Queue.Delete(queue=queue))
    for queue in (later, again):
        other.declare(queue)
    channel.call(Tx.Commit())
    assert [other.drain(queue) for queue in (later, again)] == [[later.encode()], [again.encode()]]
    assert other.drain(copied) == [later.encode(), again.encode(), gone.encode()]
    assert channel.waiting == []
    channel.publish(b"", gone, mandatory=True)
    channel.call(Tx.Commit())
    assert channel.take(Basic.Return).method.routing_key == gone


def test_declarations_are_not_part_of_it(channel: WireChannel, other: WireChannel, name: Name) -> None:
    channel.transactional()
    exchange = channel.exchange(name())
    channel.call(Tx.Rollback())
    other.call(Exchange.Declare(exchange=exchange, passive=True))
    channel.call(Channel.Close(200, "", 0, 0))
