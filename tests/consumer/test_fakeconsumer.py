"""A consumer without a broker heeds the options of one that has a broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairsched import ConfigurationError, Message, Queue, Retry, UndecodableBody
from fairsched.testing import FakeConsumer

RETRY = Retry(3, backoff=(1, 60), jitter=False)


def fail(_message: Message) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"retry": 5}, "retry must be"), ({"decode": "xml"}, "decode"), ({"middleware": [5]}, "middleware"),
        ({"time_limit": 0}, "time_limit"), ({"on_error": "drop"}, "on_error"),
    ],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        FakeConsumer(**options)


def test_a_copy_waits_in_place_of_what_failed() -> None:
    consumer = FakeConsumer(retry=RETRY)
    first = consumer.put(b"1", queue="orders", headers={"own": 1}, message_id="m", exchange="events", routing_key="k")
    other = consumer.put(b"2", queue="mails")
    consumer.run(fail)
    assert consumer.waiting == [(first, 1.0), (other, 1.0)]
    assert consumer.acked == [first, other]
    assert consumer.unsettled == consumer.dead_letters == []
    copy, _ = consumer.return_waiting()
    assert consumer.waiting == []
    assert (copy.body, copy.queue, copy.redelivered, copy.properties.message_id) == (b"1", "orders", False, "m")
    assert copy.headers == {
        "own": 1, "x-attempts": 1, "x-exception": "ValueError: no", "x-original-queue": "orders",
        "x-original-exchange": "events", "x-original-routing-key": "k",
    }  # fmt: skip
    consumer.run(lambda message: None)
    assert copy in consumer.acked
    assert consumer.waiting == []


def test_the_last_attempt_ends_among_the_dead_letters() -> None:
    consumer = FakeConsumer(retry=RETRY)
    consumer.put(b"1", queue="orders")
    delays = []
    for _ in range(3):
        consumer.run(fail)
        delays += [seconds for _, seconds in consumer.waiting]
        consumer.return_waiting()
    assert delays == [1.0, 2.0]
    [letter] = consumer.dead_letters
    assert (letter.queue, letter.body, letter.headers["x-attempts"]) == ("orders.dead-letter", b"1", 3)
    assert len(consumer.errors) == 3
    consumer.run(fail)  # nothing is left for it
    assert len(consumer.errors) == 3


def test_what_is_not_retried_is_dead_lettered_at_once_or_refused() -> None:
    consumer = FakeConsumer(retry=Retry(on=KeyError))
    consumer.put()
    consumer.run(fail)
    assert len(consumer.dead_letters) == 1
    consumer = FakeConsumer(retry=Retry(1, dead_letter=False))
    message = consumer.put()
    consumer.run(fail)
    assert consumer.rejected == [message]
    assert consumer.dead_letters == []


def test_nothing_waits_for_a_lost_connection() -> None:
    consumer = FakeConsumer(retry=RETRY)
    message = consumer.put()
    consumer.channels["test"].alive = False
    consumer.run(fail)
    assert consumer.waiting == consumer.acked == []
    assert len(consumer.errors) == 1
    assert message.settled or message in consumer.unsettled


def test_batches_are_retried_message_by_message() -> None:
    consumer = FakeConsumer(retry=RETRY)
    messages = [consumer.put(b"%d" % number) for number in range(3)]
    for batch in consumer.batches():
        with pytest.raises(ValueError, match="no"), batch:
            raise ValueError("no")
    assert [message for message, _ in consumer.waiting] == messages


def test_bodies_are_decoded() -> None:
    consumer = FakeConsumer(decode="json")
    good, bad = consumer.put(b'{"a": 1}'), consumer.put(b"{")
    found: list[object] = []
    consumer.run(lambda message: found.append(message.data))
    assert found == [{"a": 1}]
    assert (consumer.acked, consumer.rejected) == ([good], [bad])
    assert isinstance(consumer.errors[0][1], UndecodableBody)


def test_middleware_is_called_round_the_handler() -> None:
    calls: list[str] = []

    def outer(message: Message, call_next: Callable[[Message], object]) -> object:
        calls.append("outer")
        return call_next(message)

    def inner(message: Message, call_next: Callable[[Message], object]) -> object:
        calls.append("inner")
        return call_next(message)

    consumer = FakeConsumer(middleware=[outer, inner])
    consumer.put()
    consumer.run(lambda message: calls.append("handler"))
    assert calls == ["outer", "inner", "handler"]
    consumer.put()
    asyncio.run(consumer.run_async(lambda message: calls.append("handler")))
    assert calls == ["outer", "inner", "handler"] * 2


def test_middleware_of_coroutines() -> None:
    calls: list[str] = []

    async def outer(message: Message, call_next: Callable[[Message], Awaitable[object]]) -> object:
        calls.append("outer")
        return await call_next(message)

    async def handle(message: Message) -> None:
        calls.append(message.data)

    consumer = FakeConsumer(middleware=[outer], decode=bytes.decode)
    consumer.put(b"a")
    asyncio.run(consumer.run_async(handle))
    assert calls == ["outer", "a"]
    with pytest.raises(ConfigurationError, match="middleware"):
        consumer.run(lambda message: None)


@pytest.mark.parametrize("way", ["plain", "thread", "coroutine"])
def test_a_handler_that_takes_too_long_fails(way: str) -> None:
    consumer = FakeConsumer(time_limit=0.05, on_error="reject")
    slow = consumer.put(b"slow", queue="orders")
    quick = consumer.put(b"quick", queue="orders")
    never = threading.Event()

    def wait(message: Message) -> None:
        while message is slow:
            never.wait(0.01)

    async def sleep(message: Message) -> None:
        if message is slow:
            await asyncio.Event().wait()

    if way == "plain":
        consumer.run(wait)
    else:
        asyncio.run(consumer.run_async(sleep if way == "coroutine" else wait))
    assert consumer.rejected == [slow]
    assert consumer.acked == [quick]
    assert isinstance(consumer.errors[0][1], TimeoutError)


AFTER_A_TIME_LIMIT = """
import sys
from fairsched.testing import FakeConsumer

def handler(message):
    while True:
        pass

def traced():
    return "began"

consumer = FakeConsumer(time_limit=0.05, on_error="reject")
consumer.put(b"slow")
consumer.run(handler)
sys.settrace(lambda *event: None)
print(traced())
"""


def test_a_time_limit_leaves_the_interpreter_as_it_was() -> None:
    """An exception that is taken back has CPython before 3.13 look for it forever: no traced function begins then."""
    command = [sys.executable, "-c", AFTER_A_TIME_LIMIT]
    assert subprocess.run(command, timeout=60, check=True, capture_output=True, text=True).stdout == "began\n"


# Queues that come and go ----------------------------------------------------------------------------------------------


def test_queues_are_those_that_were_added_or_have_messages() -> None:
    consumer = FakeConsumer()
    assert [*consumer.queues] == ["test"]
    consumer.add_queue("a")
    consumer.add_queue(Queue("b", weight=3))
    consumer.put(b"1", queue="c")
    assert consumer.queues == {"test": Queue("test"), "a": Queue("a"), "b": Queue("b", weight=3), "c": Queue("c")}
    consumer.add_queue("c")  # as it is
    consumer.remove_queue("test")
    assert [*consumer.queues] == ["a", "b", "c"]


def test_a_handler_adds_a_queue_with_options_of_its_own() -> None:
    consumer = FakeConsumer()
    consumer.put(b"tenant")

    def handler(message: Message) -> None:
        if message.queue == "test":
            consumer.add_queue(Queue("tenant", on_error="reject"))
            consumer.add_queue(Queue("retried", retry=RETRY))
        else:
            fail(message)

    consumer.run(handler)
    rejected, retried = consumer.put(b"1", queue="tenant"), consumer.put(b"2", queue="retried")
    consumer.run(handler)
    assert consumer.rejected == [rejected]
    assert consumer.waiting == [(retried, 1.0)]


@pytest.mark.parametrize("again", [Queue("a", weight=2), Queue("a", on_error="reject")])
def test_a_queue_with_other_options_is_refused(again: Queue) -> None:
    consumer = FakeConsumer()
    consumer.add_queue("a")
    with pytest.raises(ConfigurationError, match="queue 'a' is consumed already, with other options"):
        consumer.add_queue(again)
    consumer.remove_queue("a")
    consumer.add_queue(again)
    assert consumer.queues["a"] == again


def test_what_was_not_handled_returns_to_a_removed_queue() -> None:
    consumer = FakeConsumer(retry=RETRY)
    in_hand, buffered, other = consumer.put(b"1", queue="a"), consumer.put(b"2", queue="a"), consumer.put(b"3")
    handled = []

    def handler(message: Message) -> None:
        handled.append(message)
        if message is in_hand:
            consumer.remove_queue("a")
            assert consumer.requeued == [buffered]

    consumer.run(handler)
    assert handled == [in_hand, other]
    assert {*consumer.acked} == {in_hand, other}
    with pytest.raises(ConfigurationError, match="queue 'a' was removed, so no message can come from it"):
        consumer.put(b"4", queue="a")
    with pytest.raises(ConfigurationError, match="queue 'a' is not consumed"):
        consumer.remove_queue("a")
    consumer.add_queue("a")
    again = consumer.put(b"2", queue="a", redelivered=True)
    consumer.run(handler)
    assert again in consumer.acked


def test_copies_stay_in_a_queue_that_was_removed_meanwhile() -> None:
    consumer = FakeConsumer(retry=RETRY)
    consumer.put(b"1", queue="a")
    consumer.put(b"2")
    consumer.run(fail)
    consumer.remove_queue("a")
    assert [copy.queue for copy in consumer.return_waiting()] == ["test"]


@pytest.mark.parametrize("awaited", [False, True])
def test_an_added_queue_may_have_a_time_limit(awaited: bool) -> None:
    consumer = FakeConsumer(time_limit=60.0)
    consumer.put(b"1")
    consumer.add_queue(Queue("short", time_limit=0.05, on_error="reject"))
    late = consumer.put(b"2", queue="short")

    def plain(message: Message) -> None:
        if message is late:
            while True:
                threading.Event().wait(0.01)

    async def coroutine(message: Message) -> None:
        if message is late:
            await asyncio.sleep(60)

    if awaited:
        asyncio.run(consumer.run_async(coroutine))
    else:
        consumer.run(plain)
    [(message, error)] = consumer.errors
    assert message is late
    assert isinstance(error, TimeoutError)
    assert consumer.rejected == [late]


def test_a_time_limit_needs_a_run_that_began_with_one() -> None:
    consumer = FakeConsumer()
    consumer.put(b"1")
    refused = []

    def handler(_message: Message) -> None:
        with pytest.raises(ConfigurationError, match="time_limit of a queue needs a run that began with one") as error:
            consumer.add_queue(Queue("short", time_limit=1.0))
        refused.append(error)
        assert [*consumer.queues] == ["test"]

    consumer.run(handler)
    assert len(refused) == 1


def test_handlers_reply_and_call() -> None:
    consumer = FakeConsumer(answer=lambda request: bytearray(request.body[::-1]))
    first = consumer.put(b"abc", reply_to="answers", correlation_id="c-1")
    found: list[Any] = []

    def handle(message: Message) -> None:
        reply = message.call(b"xyz", "key", exchange="there", timeout=3, headers={"a": 1})
        found.extend((reply.body, reply.settled, reply.ack(), reply.properties.correlation_id))
        found.append(message.reply(reply.body, content_type="t").result(0))

    consumer.run(handle)
    [request], [answer] = consumer.requests, consumer.replies
    assert consumer.acked == [first]
    assert found == [b"zyx", True, False, request.properties.correlation_id, None]
    assert (request.exchange, request.routing_key, request.body, request.headers) == ("there", "key", b"xyz", {"a": 1})
    assert request.properties.reply_to == "amq.rabbitmq.reply-to"
    assert (answer.exchange, answer.routing_key, answer.body) == ("", "answers", b"zyx")
    assert (answer.properties.correlation_id, answer.properties.content_type) == ("c-1", "t")
    assert answer.properties.delivery_mode == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(None, TimeoutError), (lambda request: 1 / 0, ZeroDivisionError), (lambda request: "text", TypeError)],
)
def test_a_call_without_a_reply_fails(answer: Any, kind: type[Exception]) -> None:
    consumer = FakeConsumer(answer=answer, on_error="reject")
    first, second = consumer.put(b"abc"), consumer.put(b"abc")
    errors: list[str] = []

    def handle(message: Message) -> None:
        if message is second:
            message.reply(b"nowhere")
        try:
            message.call(b"xyz", "prices", correlation_id="mine")
        except ValueError as error:
            errors.append(str(error))
        message.call(b"xyz", "prices", timeout=1)

    consumer.run(handle)
    assert errors == ["correlation_id of a call is its own and cannot be given, got 'mine'"]
    assert consumer.rejected == [first, second]
    assert [type(error) for _, error in consumer.errors] == [kind, ValueError]
    assert len(consumer.requests) == 1
    assert consumer.replies == []


def test_an_answer_is_a_function() -> None:
    with pytest.raises(ConfigurationError, match="answer must be a function of a request, got b'reply'"):
        FakeConsumer(answer=b"reply")  # type: ignore[arg-type]
