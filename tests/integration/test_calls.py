"""Calls over direct reply-to: each gets its own reply, or an error that says why there is none."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Broker
from support.waiting import eventually, reach_in_loop

from fairsched import (
    App,
    Confirmation,
    ConnectionFailed,
    Consumer,
    Lanes,
    Message,
    MessageReturned,
    Publisher,
    PublishFailed,
    aio,
)
from fairsched.amqp.transport import Transport
from fairsched.publisher.calls import Call
from fairsched.publisher.transport import PublisherTransport

Answer = Callable[[Publisher, Message], object]


def digest(body: bytes) -> bytes:
    """Return the reply that belongs to a request, and to no other."""
    return hashlib.sha256(body).digest()


def give_digest(publisher: Publisher, request: Message) -> None:
    if request.properties.reply_to:
        publisher.reply(request, digest(request.body))


@contextmanager
def serving(url: str, queue: str, answer: Answer = give_digest, **options: Any) -> Iterator[Consumer]:
    """Have each message of a queue answered in threads."""
    consumer = Consumer(url, [queue], **options)
    with Publisher(url) as publisher:
        thread = threading.Thread(target=consumer.run, args=(lambda message: answer(publisher, message),))
        thread.start()
        try:
            eventually(lambda: consumer.state.consuming.get(queue))
            yield consumer
        finally:
            consumer.stop()
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def in_thread(call: Callable[[], Message]) -> Iterator[Future[Message]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def waiting(publisher: Publisher | aio.Publisher) -> list[Call]:
    """Return the calls that wait for their replies."""
    return list(publisher._client.io_thread.calls._waiting.values())


def accepted(publisher: Publisher, count: int = 1) -> Callable[[], bool]:
    """Return whether so many calls wait, whose requests the broker has confirmed."""
    return lambda: [call.confirmed for call in waiting(publisher)] == [True] * count


def test_a_reply_has_body_and_properties_and_is_settled(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("requests")
    seen: list[Message] = []

    def answer(publisher: Publisher, request: Message) -> None:
        seen.append(request)
        publisher.reply(request, b"4", content_type="text/plain", headers={"a": 1}, type="sum")

    with serving(broker.url, requests, answer), Publisher(broker.url) as publisher:
        reply = publisher.call(b"2 + 2", requests, timeout=30, headers={"tenant": "acme"}, message_id="m")
        assert (reply.body, reply.headers, reply.properties.content_type) == (b"4", {"a": 1}, "text/plain")
        assert (reply.properties.type, reply.settled, reply.ack(), reply.alive) == ("sum", True, False, False)
        assert reply.properties.correlation_id == seen[0].properties.correlation_id
        assert (seen[0].headers, seen[0].properties.message_id) == ({"tenant": "acme"}, "m")
        assert seen[0].properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        assert not waiting(publisher)
        assert publisher.stats()["published"] == 1


@pytest.mark.parametrize("way", ["compiled", "pika"])
def test_replies_of_all_sizes(broker: Broker, new_queue: Declare, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "pika":
        monkeypatch.setattr(
            PublisherTransport, "open_shortcut", lambda self, _fast: Transport.open_shortcut(self, False)
        )
    requests = new_queue("sizes")

    def answer(publisher: Publisher, request: Message) -> None:
        publisher.reply(request, b"x" * int(request.body))

    with serving(broker.url, requests, answer), Publisher(broker.url) as publisher:
        for size in (0, 1, 131_063, 131_064, 131_065, 3_000_000, 2):
            ones = [publisher.publish(b"0", requests) for _ in range(3)]  # without a reply_to: not answered
            assert len(publisher.call(b"%d" % size, requests, timeout=30).body) == size
            assert all(one.done() or one.result(30) is None for one in ones)


def test_10_000_calls_from_8_threads_each_get_their_own_reply(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("many")
    begin = threading.Barrier(8)

    def ask(publisher: Publisher, thread: int) -> list[int]:
        begin.wait()
        bodies = [b"%d/%d" % (thread, number) for number in range(1250)]
        return [n for n, body in enumerate(bodies) if publisher.call(body, requests, timeout=60).body != digest(body)]

    with serving(broker.url, requests, workers=2), Publisher(broker.url) as publisher, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, [publisher] * 8, range(8))) == [[]] * 8
        assert not waiting(publisher)
        stats = publisher.stats()
        assert (stats["published"], stats["failed"], stats["republished"]) == (10_000, 0, 0)


def test_replies_out_of_order_and_twice(broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    requests = new_queue("shuffled")
    count, chance = 500, random.Random(1)
    held: list[Message] = []

    def answer(publisher: Publisher, request: Message) -> None:
        request.defer()
        held.append(request)
        if len(held) == count:
            chance.shuffle(held)
            for one in held:
                publisher.reply(one, digest(one.body))
                publisher.reply(one, b"the second reply, which no call may get")
                one.ack()

    async def main() -> None:
        async with aio.Publisher(broker.url) as publisher:
            bodies = [b"%d" % number for number in range(count)]
            replies = await asyncio.gather(*(publisher.call(body, requests, timeout=60) for body in bodies))
            assert [reply.body for reply in replies] == [digest(body) for body in bodies]
            assert not waiting(publisher)
            await reach_in_loop(lambda: caplog.text.count("a reply was dropped: no call waits for") == count)

    with caplog.at_level(logging.DEBUG, "fairsched.publisher"), serving(broker.url, requests, answer, prefetch=count):
        asyncio.run(main())


def test_a_late_reply_is_dropped_and_logged(
    broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    requests = new_queue("late")
    over = threading.Event()

    def answer(publisher: Publisher, request: Message) -> None:
        if request.body == b"slow":
            assert over.wait(30)
        give_digest(publisher, request)

    caplog.set_level(logging.DEBUG, "fairsched.publisher")
    with serving(broker.url, requests, answer), Publisher(broker.url) as publisher:
        with pytest.raises(
            TimeoutError, match=rf"'{requests}' within 0\.3 s: .* accepted the request, and no consumer has replied"
        ):
            publisher.call(b"slow", requests, timeout=0.3)
        assert not waiting(publisher)
        over.set()
        assert publisher.call(b"next", requests, timeout=30).body == digest(b"next")
        assert caplog.text.count("a reply was dropped: no call waits for") == 1


def test_without_a_consumer_the_time_runs_out(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("nobody")
    with Publisher(broker.url) as publisher:
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=rf"routing key '{requests}' within 0\.2 s"):
            publisher.call(b"x", requests, timeout=0.2, expiration=600)
        assert time.monotonic() - begin >= 0.2
        assert not waiting(publisher)
    assert broker.count(requests) == 1


def test_a_server_that_dies_leaves_its_request_to_another(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("dying")
    taken = threading.Event()
    with Publisher(broker.url) as publisher, in_thread(lambda: publisher.call(b"x", requests, timeout=60)) as called:
        with Proxy(broker.port) as proxy:
            url = behind(proxy, broker.url)

            def hold(_publisher: Publisher, request: Message) -> None:
                request.defer()
                taken.set()

            with serving(url, requests, hold, shutdown_timeout=1.0):
                assert taken.wait(30)
                proxy.accepting = False
                proxy.cut()
        with serving(broker.url, requests):
            assert called.result(60).body == digest(b"x")


def test_the_unroutable_is_returned_at_once(broker: Broker) -> None:
    with Publisher(broker.url, mandatory=False) as publisher:
        begin = time.monotonic()
        with pytest.raises(MessageReturned, match="no queue takes a message with routing key 'nowhere'"):
            publisher.call(b"x", "nowhere", timeout=60)
        assert time.monotonic() - begin < 30
        publisher.flush()  # the failure was raised, and is not raised again
        assert publisher.stats()["failed"] == 1


def test_of_equal_keys_the_call_that_was_returned_fails(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("some")
    exchange = f"{requests}-headers"
    with broker.connect() as channel:
        channel.exchange_declare(exchange, "headers")
        channel.queue_bind(requests, exchange, "", {"to": "some", "x-match": "all"})

    def ask(publisher: Publisher, number: int) -> bool:
        try:
            headers = {"to": "some" if number % 3 else "none", "list": [1, "ä", {"deep": True}]}
            reply = publisher.call(b"%d" % number, "key", exchange=exchange, timeout=30, headers=headers)
        except MessageReturned:
            return False
        assert reply.body == digest(b"%d" % number)
        return True

    with serving(broker.url, requests), Publisher(broker.url) as publisher, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, [publisher] * 300, range(300))) == [bool(number % 3) for number in range(300)]


def test_a_refused_request_fails(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with Publisher(broker.url) as publisher:
        ones = [publisher.publish(b"x", requests) for _ in range(50)]
        eventually(lambda: all(one.done() for one in ones))
        assert sum(one.exception(0) is not None for one in ones)
        with pytest.raises(PublishFailed, match=r"refused the message \(basic\.nack\)"):
            publisher.call(b"x", requests, timeout=60)
        publisher.flush()


def test_what_a_call_takes(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("values")
    with Publisher(broker.url) as publisher:
        for name in ("reply_to", "correlation_id"):
            with pytest.raises(ValueError, match=f"{name} of a call is its own and cannot be given, got 'mine'"):
                publisher.call(b"x", requests, **{name: "mine"})
        with pytest.raises(TypeError, match="unknown property 'mandatory'"):
            publisher.call(b"x", requests, mandatory=False)
        with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more, got -1"):
            publisher.call(b"x", requests, timeout=-1)
        with pytest.raises(TypeError, match="timeout must be"):
            publisher.call(b"x", requests, timeout="1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="body must be bytes-like"):
            publisher.call("x", requests)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="routing_key must be"):
            publisher.call(b"x", 1)  # type: ignore[arg-type]
        assert not waiting(publisher)
        assert publisher.stats()["published"] == 0
    with pytest.raises(RuntimeError, match="closed"):
        publisher.call(b"x", requests)
    with pytest.raises(RuntimeError, match="publish inside"):
        Publisher(broker.url).call(b"x", requests)


def test_a_request_is_forwarded_as_a_call(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("forwarded")
    seen: list[Message] = []

    def answer(publisher: Publisher, request: Message) -> None:
        seen.append(request)
        give_digest(publisher, request)

    with serving(broker.url, requests, answer), Publisher(broker.url) as publisher:
        publisher.call(b"1", requests, timeout=30, headers={"a": 1})
        assert publisher.call(b"2", requests, timeout=30, properties=seen[0].properties).body == digest(b"2")
    assert seen[1].headers == {"a": 1}
    assert seen[0].properties.correlation_id != seen[1].properties.correlation_id


# Lost connections -----------------------------------------------------------------------------------------------------


def test_a_call_whose_address_is_gone_fails_at_once(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("cut")
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        with in_thread(lambda: publisher.call(b"x", requests, timeout=600)) as called:
            eventually(accepted(publisher))
            proxy.cut()
            with pytest.raises(
                ConnectionFailed, match=rf"'{requests}': the connection was lost: .*reply address is gone"
            ):
                called.result(60)
        with serving(broker.url, requests):
            assert publisher.call(b"y", requests, timeout=60).body == digest(b"y")
        assert publisher.stats()["reconnects"] == 1


def test_a_request_without_a_connection_is_sent_when_there_is_one(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("unsent")
    with serving(broker.url, requests), Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        proxy.accepting = False
        proxy.cut()
        eventually(lambda: not publisher._client.io_thread.connected)
        with pytest.raises(TimeoutError, match=r"has not confirmed the request; there is no connection, last error: "):
            publisher.call(b"early", requests, timeout=0.2)
        with in_thread(lambda: publisher.call(b"x", requests, timeout=60)) as called:
            eventually(lambda: len(waiting(publisher)) == 1)
            proxy.accepting = True
            assert called.result(60).body == digest(b"x")


def test_an_unconfirmed_request_gets_its_reply_on_the_next_connection(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("unconfirmed")
    with serving(broker.url, requests), Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        assert publisher.call(b"1", requests, timeout=60).body == digest(b"1")
        publisher.flush()  # a reply may come before the confirm
        proxy.silence()
        with ThreadPoolExecutor(20) as pool:
            called = [pool.submit(publisher.call, b"%d" % number, requests, timeout=60) for number in range(20)]
            eventually(lambda: publisher._client.window.in_flight == 20)
            proxy.cut()
            assert [one.result(60).body for one in called] == [digest(b"%d" % number) for number in range(20)]
        assert publisher.stats()["republished"] == 20


def test_a_message_that_ends_the_channel_ends_the_calls_on_it(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("channel")
    with Publisher(broker.url) as publisher:
        with in_thread(lambda: publisher.call(b"x", requests, timeout=600)) as called:
            eventually(accepted(publisher))
            one = publisher.publish(b"x", "key", exchange="there is no such exchange")
            with pytest.raises(ConnectionFailed, match=r"closed the channel: 404 .* reply address is gone"):
                called.result(60)
        assert isinstance(one.exception(30), PublishFailed)
        with serving(broker.url, requests):
            assert publisher.call(b"y", requests, timeout=60).body == digest(b"y")


def test_a_broker_that_is_killed(mortal: Broker) -> None:
    mortal.declare("requests", "silent")
    over = threading.Event()
    found: Counter[str] = Counter()

    def ask(publisher: Publisher, thread: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            body = b"%d/%d" % (thread, number)
            try:
                reply = publisher.call(body, "requests", timeout=5)
            except (ConnectionFailed, TimeoutError):
                continue
            found["right" if reply.body == digest(body) else "wrong"] += 1

    def go_on() -> None:
        before = found["right"]
        eventually(lambda: found["right"] > before + 100)

    with serving(mortal.url, "requests", workers=2), Publisher(mortal.url) as publisher, ThreadPoolExecutor(9) as pool:
        unanswered = pool.submit(publisher.call, b"x", "silent", timeout=600)
        eventually(accepted(publisher))
        asked = [pool.submit(ask, publisher, thread) for thread in range(8)]
        try:
            go_on()
            mortal.restart()
            with pytest.raises(ConnectionFailed, match="whose reply address is gone"):
                unanswered.result(30)
            go_on()
        finally:
            over.set()
        for one in asked:
            one.result(30)
        assert not waiting(publisher)
    assert found["wrong"] == 0


class Renaming(Proxy):
    """Gives direct reply-to another name on the way to the broker, which therefore has none."""

    renames = True

    def translate(self, data: bytes) -> bytes:
        there, here = b"amq.rabbitmq.reply-no", b"amq.rabbitmq.reply-to"
        return data.replace(here, there) if here in data else data.replace(there, here)

    async def _pass_on(self, source: Any, sink: Any, allowance: int | None = None) -> None:
        read = source.read

        async def translated(size: int) -> bytes:
            data: bytes = await read(size)
            return self.translate(data) if self.renames else data

        source.read = translated
        await super()._pass_on(source, sink, allowance)


def test_without_direct_reply_to_calls_fail_and_messages_do_not(broker: Broker, new_queue: Declare) -> None:
    requests, others = new_queue("plain"), new_queue("others")
    with Renaming(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        for _ in range(3):
            before = publisher.publish(b"before", requests)
            with pytest.raises(ConnectionFailed, match=r"calls need direct reply-to: .* 404"):
                publisher.call(b"x", requests, timeout=60)
            before.result(30)
            publisher.publish(b"after", requests).result(30)
        proxy.renames = False
        proxy.cut()
        with serving(broker.url, others):
            eventually(lambda: publisher._client.io_thread.calls.refusal is None)
            assert publisher.call(b"y", others, timeout=60).body == digest(b"y")


# Callers --------------------------------------------------------------------------------------------------------------


def test_a_full_window_counts_towards_the_timeout(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("full")
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url), confirm_window=1) as publisher:
        proxy.accepting = False
        proxy.cut()
        eventually(lambda: not publisher._client.io_thread.connected)
        first = publisher.publish(b"x", requests)
        with pytest.raises(TimeoutError, match=rf"'{requests}' within 0\.2 s: .* confirmed nothing for"):
            publisher.call(b"y", requests, timeout=0.2)
        assert not waiting(publisher)
        proxy.accepting = True
        first.result(60)
    assert broker.count(requests) == 1


def test_a_call_waits_for_room(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("room")
    bodies = [b"%d" % number for number in range(400)]
    with (
        serving(broker.url, requests),
        Publisher(broker.url, confirm_window=1) as publisher,
        ThreadPoolExecutor(8) as pool,
    ):
        replies = list(pool.map(lambda body: publisher.call(body, requests, timeout=60).body, bodies))
    assert replies == [digest(body) for body in bodies]


def test_closing_ends_calls(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("closed")
    publisher = Publisher(broker.url)
    publisher.open()
    with ThreadPoolExecutor(5) as pool:
        called = [pool.submit(publisher.call, b"x", requests, timeout=600) for _ in range(5)]
        eventually(accepted(publisher, 5))
        publisher.close()
        for one in called:
            with pytest.raises(ConnectionFailed, match="the publisher was closed"):
                one.result(30)


def test_a_first_call_while_the_connection_closes(
    broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    requests = new_queue("closing")
    publisher = Publisher(broker.url, confirm_timeout=0.5)
    publisher.open()
    thread = publisher._client.io_thread
    call = thread.calls.create(requests, 60, lambda: None)

    def close_and_send() -> None:
        thread._close(5)
        thread.calls.add(call)
        thread.window.put("", requests, publisher._client.contents.plain, b"x", True, callback=call)
        thread._send()

    thread.after(0, close_and_send)
    eventually(lambda: thread.ended)
    with pytest.raises(PublishFailed):
        publisher.close()
    assert isinstance(call.problem, PublishFailed)
    assert "the I/O thread ended" not in caplog.text


def test_a_done_callback_must_not_call(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("callbacks")
    errors: list[BaseException] = []

    def call(_confirmation: Confirmation) -> None:
        try:
            publisher.call(b"x", requests)
        except BaseException as error:
            errors.append(error)

    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        proxy.accepting = False
        proxy.cut()
        eventually(lambda: not publisher._client.io_thread.connected)
        publisher.publish(b"first", requests).add_done_callback(call)
        proxy.accepting = True
        eventually(lambda: errors)
        # The I/O thread runs finalizers, too, outside of done callbacks.
        publisher._client.io_thread.after(0, lambda: call(None))  # type: ignore[arg-type]
        eventually(lambda: len(errors) == 2)
        assert publisher.stats()["published"] == 1
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
    assert "a done callback runs in the publisher's I/O thread" in str(errors[0])
    assert "the publisher's I/O thread receives replies, and so cannot wait for one" in str(errors[1])


def test_ctrl_c_in_a_waiting_call_forgets_it(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("interrupted")
    with Publisher(broker.url) as publisher:

        def interrupt() -> None:
            eventually(accepted(publisher))
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            publisher.call(b"x", requests, timeout=600)
        thread.join()
        assert not waiting(publisher)
        with serving(broker.url, requests):
            assert publisher.call(b"y", requests, timeout=60).body == digest(b"y")


def test_handlers_call(broker: Broker, new_queue: Declare) -> None:
    orders, prices, done = new_queue("orders"), new_queue("prices"), new_queue("done")
    broker.publish(orders, [b"4711"], reply_to=done, correlation_id="c-1")
    app = App(broker.url)
    errors: list[Exception] = []

    @app.consumer(orders)
    def handle(message: Message) -> None:
        price = message.call(message.body, prices, timeout=30, headers={"currency": "EUR"})
        try:
            message.call(b"x", "nowhere", timeout=30)
        except MessageReturned as error:
            errors.append(error)
        message.reply(price.body).result(30)
        app.stop()

    with serving(broker.url, prices):
        app.run()
    assert len(errors) == 1
    with broker.connect() as channel:
        method, properties, body = channel.basic_get(done, auto_ack=True)
        assert (method is not None, properties.correlation_id, body) == (True, "c-1", digest(b"4711"))


def test_only_an_app_has_a_publisher_for_calls(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("questions")
    broker.publish(requests, [b"2"])
    with Consumer(broker.url, [requests]) as consumer:
        message = next(iter(consumer))
        with message, pytest.raises(RuntimeError, match=r"use one of your own: publisher\.call"):
            message.call(b"4", requests)


def test_a_request_to_lanes_declares_the_bucket_and_gets_its_reply(broker: Broker, new_queue: Declare) -> None:
    lanes = Lanes(new_queue("spread"), key="header:tenant", buckets=4)
    bucket = lanes.bucket_of("acme")
    with (
        Publisher(broker.url, lanes=lanes) as publisher,
        in_thread(lambda: publisher.call(b"x", lanes.name, timeout=60, headers={"tenant": "acme"})) as called,
    ):
        eventually(accepted(publisher))  # the bucket was missing: the request was returned and published again
        assert broker.count(bucket) >= 1
        with serving(broker.url, bucket):
            assert called.result(60).body == digest(b"x")
    broker.delete(bucket)


# asyncio --------------------------------------------------------------------------------------------------------------


def test_tasks_call_at_once(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("tasks")

    async def main() -> None:
        async with aio.Publisher(broker.url, confirm_window=50) as publisher:
            bodies = [b"%d" % number for number in range(2000)]
            replies = await asyncio.gather(*(publisher.call(body, requests, timeout=60) for body in bodies))
            assert [reply.body for reply in replies] == [digest(body) for body in bodies]
            with pytest.raises(MessageReturned):
                await publisher.call(b"x", "nowhere", timeout=60)
            assert not waiting(publisher)
            await publisher.flush()

    with serving(broker.url, requests):
        asyncio.run(main())


def test_a_cancelled_call_is_forgotten(broker: Broker, new_queue: Declare, caplog: pytest.LogCaptureFixture) -> None:
    requests = new_queue("cancelled")

    async def main() -> None:
        async with aio.Publisher(broker.url) as publisher:
            task = asyncio.create_task(publisher.call(b"x", requests, timeout=600))
            await reach_in_loop(lambda: [call.confirmed for call in waiting(publisher)] == [True])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not waiting(publisher)
            with pytest.raises(TimeoutError, match=r"within 0\.1 s: .* accepted the request"):
                await publisher.call(b"y", requests, timeout=0.1)
            assert not waiting(publisher)
            with caplog.at_level(logging.DEBUG, "fairsched.publisher"), serving(broker.url, requests):
                reply = await publisher.call(b"z", requests, timeout=60)
                assert reply.body == digest(b"z")
            assert caplog.text.count("a reply was dropped: no call waits for") == 2

    asyncio.run(main())


def test_a_cancelled_call_that_waits_for_room_publishes_nothing(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("roomless")

    async def main(proxy: Proxy) -> None:
        async with aio.Publisher(behind(proxy, broker.url), confirm_window=1) as publisher:
            proxy.accepting = False
            proxy.cut()
            first = await publisher.publish(b"first", requests)
            task = asyncio.create_task(publisher.call(b"never", requests))
            await reach_in_loop(lambda: publisher._client.window.queueing)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError, match=r"within 0\.1 s: .* has not confirmed the request"):
                await publisher.call(b"never", requests, timeout=0.1)
            assert not waiting(publisher)
            proxy.accepting = True
            await first
            assert publisher.stats()["published"] == 1

    with Proxy(broker.port) as proxy:
        asyncio.run(main(proxy))


def test_a_lost_connection_and_a_close_end_calls_of_tasks(broker: Broker, new_queue: Declare) -> None:
    requests = new_queue("lost")

    async def main(proxy: Proxy) -> None:
        publisher = aio.Publisher(behind(proxy, broker.url))
        await publisher.open()
        for end in ("cut", "close"):
            task = asyncio.create_task(publisher.call(b"x", requests, timeout=600))
            await reach_in_loop(lambda: [call.confirmed for call in waiting(publisher)] == [True])
            if end == "cut":
                proxy.cut()
            else:
                await publisher.close()
            with pytest.raises(ConnectionFailed, match="connection was lost" if end == "cut" else "was closed"):
                await task

    with Proxy(broker.port) as proxy:
        asyncio.run(main(proxy))


def test_a_call_in_another_loop_is_refused(broker: Broker) -> None:
    async def main() -> None:
        async with aio.Publisher(broker.url) as publisher:

            def in_another() -> None:
                with pytest.raises(RuntimeError, match="belongs to the event loop in which it was opened"):
                    asyncio.run(publisher.call(b"x", "nowhere"))

            await asyncio.to_thread(in_another)

    asyncio.run(main())
