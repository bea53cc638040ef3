"""Expiry, dead letters, lengths and priorities of queues, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Queue
from support.rabbitmq import numbered
from support.waiting import eventually
from support.wireclient import Name, WireChannel


@pytest.fixture
def graveyard(channel: WireChannel, name: Name) -> str:
    """A queue for dead letters; the default exchange brings them."""
    return channel.declare(name())


def dead_to(graveyard: str, **arguments: Any) -> dict[str, Any]:
    """Arguments of a queue whose dead letters go there."""
    given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard, **given}


# Time to live -----------------------------------------------------------------------------------------------------


def test_the_queues_time_to_live(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard, message_ttl=50))
    channel.published(b"1", b"2", routing_key=queue)
    eventually(lambda: channel.ready(graveyard) == 2)
    assert channel.drain(graveyard) == [b"1", b"2"]
    assert channel.ready(queue) == 0


def test_a_time_to_live_of_nothing_is_for_waiting_consumers(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard, message_ttl=0))
    channel.published(b"late", routing_key=queue)
    eventually(lambda: channel.ready(graveyard) == 1)
    channel.consume(queue, no_ack=True)
    channel.publish(b"in time", queue)
    assert channel.bodies(1) == [b"in time"]


def test_a_messages_own_time_to_live(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard))
    channel.published(b"short", routing_key=queue, expiration="50")
    channel.published(b"long", routing_key=queue, expiration="1000000")
    eventually(lambda: channel.ready(graveyard) == 1)
    assert channel.get(graveyard).body == b"short"
    assert channel.get(queue).properties.expiration == "1000000"


def test_the_shorter_time_counts(channel: WireChannel, name: Name, graveyard: str) -> None:
    slow = channel.declare(name(), dead_to(graveyard, message_ttl=1_000_000))
    fast = channel.declare(name(), dead_to(graveyard, message_ttl=50))
    channel.published(b"1", routing_key=slow, expiration="50")
    channel.published(b"2", routing_key=fast, expiration="1000000")
    eventually(lambda: channel.ready(graveyard) == 2)


def test_an_unsettled_message_does_not_expire(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard, message_ttl=100))
    channel.qos(1)
    tag = channel.consume(queue)  # which is given the first as it comes, however busy the machine is
    channel.published(b"1", b"2", routing_key=queue)
    [held] = channel.deliveries(1)
    channel.call(Basic.Cancel(tag))
    eventually(lambda: channel.ready(graveyard) == 1)
    assert channel.drain(graveyard) == [b"2"]
    channel.reject(held.tag)
    eventually(lambda: channel.ready(graveyard) == 1)


def test_a_message_that_expired_unsettled_goes_when_it_is_next(
    channel: WireChannel, name: Name, graveyard: str
) -> None:
    queue, witness = (channel.declare(name(), dead_to(graveyard)) for _ in range(2))
    channel.published(b"first", routing_key=queue)
    channel.published(b"brief", routing_key=queue, expiration="300")
    held = [channel.get(queue, no_ack=False) for _ in range(2)]
    channel.published(b"witness", routing_key=witness, expiration="300")
    eventually(lambda: channel.ready(graveyard) == 1)
    channel.nack(held[1].tag, multiple=True)
    channel.round_trip()
    assert (channel.ready(queue), channel.ready(graveyard)) == (2, 1)
    assert channel.get(queue).body == b"first"
    eventually(lambda: channel.ready(graveyard) == 2)
    assert channel.ready(queue) == 0


def test_an_unused_queue_expires(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-expires": 100})
    channel.published(b"x", routing_key=queue)  # which is no use of it
    eventually(lambda: gone(channel, queue))


def gone(channel: WireChannel, queue: str) -> bool:
    """Whether a queue is not there; asked in a way that does not count as its use."""
    channel.publish(b"", queue, mandatory=True)
    channel.round_trip()
    channel.round_trip()
    found = [one for one in channel.waiting if not isinstance(one, Basic.Ack)]
    for _ in found:
        channel.take(Basic.Return)
    return bool(found)


def test_a_consumed_queue_does_not_expire(channel: WireChannel, name: Name) -> None:
    used, unused = channel.declare(name(), {"x-expires": 100}), channel.declare(name(), {"x-expires": 200})
    tag = channel.consume(used, no_ack=True)
    eventually(lambda: gone(channel, unused))
    assert channel.counts(used) == (0, 1)
    channel.call(Basic.Cancel(tag))
    eventually(lambda: gone(channel, used))


# Dead letters -----------------------------------------------------------------------------------------------------


def deaths(message: Any) -> list[dict[str, Any]]:
    """The x-death of a message without its times."""
    return [
        {key: value for key, value in one.items() if key != "time"} for one in message.properties.headers["x-death"]
    ]


def test_a_rejected_message(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard))
    channel.published(b"1", routing_key=queue, headers={"mine": 1}, message_id="7")
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    eventually(lambda: channel.ready(graveyard) == 1)
    dead = channel.get(graveyard)
    assert (dead.body, dead.properties.message_id, dead.method.routing_key) == (b"1", "7", graveyard)
    assert (dead.method.exchange, dead.method.redelivered) == ("", False)
    assert deaths(dead) == [{"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}]
    headers = dead.properties.headers
    assert headers["mine"] == 1
    assert {key: headers[f"x-first-death-{key}"] for key in ("exchange", "queue", "reason")} == {
        "exchange": "", "queue": queue, "reason": "rejected",
    }  # fmt: skip
    assert headers["x-death"][0]["time"].year >= 2024


def test_an_expired_message_loses_its_expiration(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard))
    channel.published(b"1", routing_key=queue, expiration="10")
    eventually(lambda: channel.ready(graveyard) == 1)
    dead = channel.get(graveyard)
    assert dead.properties.expiration is None
    assert deaths(dead) == [
        {
            "count": 1, "reason": "expired", "queue": queue, "exchange": "", "routing-keys": [queue],
            "original-expiration": "10",
        }
    ]  # fmt: skip


def test_the_way_of_a_dead_letter(channel: WireChannel, name: Name) -> None:
    exchange = channel.exchange(name(), "topic")
    queue = channel.declare(name(), {"x-dead-letter-exchange": exchange})
    kept, other = channel.declare(name()), channel.declare(name())
    channel.bind(kept, exchange, queue)
    channel.bind(other, exchange, "other")
    channel.published(b"1", routing_key=queue, headers={"CC": ["other"]})
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    eventually(lambda: channel.ready(kept) == channel.ready(other) == 1)
    # It keeps its routing keys, the copies' included.
    dead = channel.get(kept)
    assert (dead.method.exchange, dead.method.routing_key) == (exchange, queue)
    assert deaths(dead)[0]["routing-keys"] == [queue, "other"]


def test_dying_again_counts(channel: WireChannel, name: Name) -> None:
    first, second = name(), name()
    channel.declare(first, dead_to(second))
    channel.declare(second, dead_to(first))
    channel.published(b"1", routing_key=first)
    for queue in (first, second, first):
        eventually(lambda queue=queue: channel.ready(queue) == 1)
        channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    eventually(lambda: channel.ready(second) == 1)
    dead = channel.get(second)
    assert [(one["queue"], one["reason"], one["count"]) for one in deaths(dead)] == [
        (first, "rejected", 2), (second, "rejected", 1),
    ]  # fmt: skip
    assert dead.properties.headers["x-first-death-queue"] == first


def test_a_circle_without_a_rejection_ends(channel: WireChannel, name: Name) -> None:
    first, second = name(), name()
    channel.declare(first, dead_to(second, message_ttl=20))
    channel.declare(second, dead_to(first, message_ttl=20))
    channel.published(b"round", routing_key=first)
    eventually(lambda: channel.ready(first) == channel.ready(second) == 0)
    for _ in range(20):
        assert (channel.ready(first), channel.ready(second)) in {(0, 0), (0, 1), (1, 0)}
    eventually(lambda: channel.ready(first) == channel.ready(second) == 0)


def test_without_a_way_a_dead_letter_is_dropped(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-dead-letter-exchange": "missing-exchange"})
    channel.published(b"1", routing_key=queue)
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    channel.round_trip()
    channel.close()
    again = channel.client.channel()
    assert again.ready(queue) == 0


def test_what_is_purged_or_deleted_is_no_dead_letter(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard))
    channel.published(b"1", routing_key=queue)
    channel.call(Queue.Purge(queue=queue))
    channel.published(b"2", routing_key=queue)
    channel.call(Queue.Delete(queue=queue))
    channel.round_trip()
    assert channel.ready(graveyard) == 0


# Lengths ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_drops_its_oldest(channel: WireChannel, name: Name, graveyard: str) -> None:
    queue = channel.declare(name(), dead_to(graveyard, max_length=3))
    channel.published(*numbered(5), routing_key=queue)
    assert channel.drain(queue) == [b"2", b"3", b"4"]
    eventually(lambda: channel.ready(graveyard) == 2)
    dead = channel.get(graveyard)
    assert (dead.body, deaths(dead)[0]["reason"]) == (b"0", "maxlen")


def test_unacknowledged_messages_do_not_fill_it(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-length": 2})
    channel.published(b"0", b"1", routing_key=queue)
    channel.get(queue, no_ack=False)
    channel.published(b"2", routing_key=queue)
    assert channel.ready(queue) == 2


def test_a_limit_in_bytes(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-length-bytes": 10})
    channel.published(b"aaaa", b"bbbb", b"cccc", routing_key=queue)
    assert channel.drain(queue) == [b"bbbb", b"cccc"]
    channel.published(b"d" * 11, routing_key=queue)
    assert channel.drain(queue) == []


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}])
def test_a_message_larger_than_the_queue_takes_the_others_along(
    channel: WireChannel, name: Name, graveyard: str, arguments: dict[str, Any]
) -> None:
    queue = channel.declare(name(), {**dead_to(graveyard, max_length_bytes=3), **arguments})
    channel.published(b"1", b"2", b"large", b"3", routing_key=queue)
    eventually(lambda: channel.ready(graveyard) == 3)
    assert channel.drain(graveyard) == [b"1", b"2", b"large"]
    assert channel.drain(queue) == [b"3"]


def test_what_comes_back_together_is_dropped_from_its_head(
    channel: WireChannel, other: WireChannel, name: Name, graveyard: str
) -> None:
    queue = channel.declare(name(), dead_to(graveyard, max_length_bytes=2))
    channel.published(b"12", routing_key=queue)
    first = channel.get(queue, no_ack=False)
    other.consume(queue, "its")
    channel.published(b"345", routing_key=queue)
    assert other.bodies(1) == [b"345"]
    channel.reject(first.tag)
    assert other.bodies(1) == [b"12"]  # later than what is behind it in the queue
    other.call(Basic.Cancel("its"))
    other.nack(multiple=True)
    eventually(lambda: channel.ready(graveyard) == 2)
    assert (channel.drain(graveyard), channel.drain(queue)) == ([b"12", b"345"], [])


def test_a_full_queue_that_refuses(channel: WireChannel, name: Name, graveyard: str) -> None:
    quiet = channel.declare(name(), dead_to(graveyard, max_length=1, overflow="reject-publish"))
    channel.published(b"1", b"2", routing_key=quiet)
    assert channel.drain(quiet) == [b"1"]
    assert channel.ready(graveyard) == 0
    loud = channel.declare(name(), dead_to(graveyard, max_length=1, overflow="reject-publish-dlx"))
    channel.published(b"1", b"2", routing_key=loud)
    assert channel.drain(loud) == [b"1"]
    eventually(lambda: channel.ready(graveyard) == 1)
    dead = channel.get(graveyard)
    assert (dead.body, deaths(dead)[0]["reason"]) == (b"2", "maxlen")


def test_a_queue_of_length_0_gives_only_to_waiting_consumers(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-length": 0})
    channel.published(b"1", routing_key=queue)
    assert channel.ready(queue) == 0
    channel.consume(queue, no_ack=True)
    channel.publish(b"2", queue)
    assert channel.bodies(1) == [b"2"]


# Priorities -------------------------------------------------------------------------------------------------------


def test_priorities(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-priority": 5})
    for body, priority in [(b"a", 1), (b"b", 5), (b"c", None), (b"d", 9), (b"e", 0), (b"f", 1)]:
        channel.published(body, routing_key=queue, priority=priority)
    # None is 0, and what is above the highest is the highest.
    assert channel.drain(queue) == [b"b", b"d", b"a", b"f", b"c", b"e"]


def test_a_full_queue_with_priorities_drops_its_head(channel: WireChannel, name: Name) -> None:
    queue = channel.declare(name(), {"x-max-priority": 5, "x-max-length": 2})
    for body, priority in [(b"a", 1), (b"b", 5), (b"c", 3)]:
        channel.published(body, routing_key=queue, priority=priority)
    # Its head is what is delivered next: the highest priority.
    assert channel.drain(queue) == [b"c", b"a"]
