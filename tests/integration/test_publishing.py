"""Publishing to a real broker: order, confirms, returns, lost and blocked connections, threads, tasks, forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from support.declare import Declare
from support.outcomes import Outcomes
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import App, Confirmation, ConnectionFailed, Message, MessageReturned, Publisher, PublishFailed, aio
from fairsched.amqp.transport import Transport
from fairsched.consumer import Consumer
from fairsched.publisher.transport import PublisherTransport

#: What a broker begins with.
START = pika.frame.Method(0, pika.spec.Connection.Start(0, 9, {}, b"PLAIN", b"en_US")).marshal()


def bodies(node: Node, queue: str) -> list[bytes]:
    """Take all messages of a queue, in their order."""
    return [body for _properties, body in messages(node, queue)]


def messages(node: Node, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    found = []
    with node.connect() as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def first_seen(found: list[bytes]) -> list[bytes]:
    """Return what came, without what came again."""
    return list(dict.fromkeys(found))


def test_all_messages_arrive_in_order(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("all")
    expected = numbered(20_000)
    with Publisher(broker.url) as publisher:
        for body in expected:
            publisher.publish(body, queue, delivery_mode=1)
        publisher.flush()
        assert publisher.stats() == {
            "published": 20_000, "confirmed": 20_000, "failed": 0, "unconfirmed": 0, "republished": 0, "reconnects": 0,
        }  # fmt: skip
    received: list[bytes] = []
    with Consumer(broker.url, [queue]) as consumer:
        for message in consumer:
            received.append(message.body)
            message.ack()
            if len(received) == len(expected):
                consumer.stop()
    assert received == expected


def test_properties_and_bodies_of_all_sizes_arrive(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("sizes")
    sizes = [0, 1, 131_063, 131_064, 131_065, 3_000_000]
    headers = {"int": 3, "float": 0.25, "text": "ä", "list": [1, None, True], "table": {"deep": "er"}}
    with Publisher(broker.url) as publisher:
        for size in sizes:
            publisher.publish(bytearray(b"x" * size), queue)
        publisher.publish(
            b"last", queue, headers=headers, content_type="text/plain", priority=7, correlation_id="c", reply_to="r",
            expiration=600.0, message_id="m", timestamp=1_700_000_000, type="t", user_id="guest", app_id="a",
        )  # fmt: skip
    *plain, (properties, _) = messages(broker, queue)
    assert [len(body) for _, body in plain] == sizes
    assert {properties.delivery_mode for properties, _ in plain} == {2}
    assert (properties.content_type, properties.priority, properties.correlation_id) == ("text/plain", 7, "c")
    assert (properties.reply_to, properties.expiration, properties.message_id) == ("r", "600000", "m")
    assert (properties.timestamp, properties.type, properties.user_id, properties.app_id) == (
        1_700_000_000, "t", "guest", "a",
    )  # fmt: skip
    assert properties.headers == {**headers, "float": 0}  # pika cuts its fraction off


def test_a_message_is_passed_on_as_it_came(broker: Node, new_queue: Declare) -> None:
    source, target = new_queue("from"), new_queue("to")
    broker.publish(source, [b"x"], headers={"a": 1}, content_type="t", delivery_mode=1)
    with Publisher(broker.url) as publisher, Consumer(broker.url, [source]) as consumer:
        for message in consumer:
            publisher.publish(message.body, target, properties=message.properties, priority=3).result(30)
            message.ack()
            consumer.stop()
    [(properties, body)] = messages(broker, target)
    assert (body, properties.headers, properties.content_type) == (b"x", {"a": 1}, "t")
    assert (properties.delivery_mode, properties.priority) == (1, 3)


def test_the_unroutable_is_returned_and_never_forgotten(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("routable")
    with Publisher(broker.url) as publisher:
        ones = [publisher.publish(b"%d" % number, queue if number % 3 else "nowhere") for number in range(300)]
        with pytest.raises(PublishFailed, match="100 messages were not published; one of them: no queue takes"):
            publisher.flush()
        failed = [number for number, one in enumerate(ones) if one.exception(0) is not None]
        assert failed == list(range(0, 300, 3))
        assert all(one.done() for one in ones)
        one = publisher.publish(b"x", "nowhere", message_id="m-1")
        with pytest.raises(
            MessageReturned, match=r"routing key 'nowhere' on exchange '' \(312 NO_ROUTE, .* 'm-1'"
        ) as why:
            one.result(30)
        assert (why.value.reply_code, why.value.routing_key, why.value.exchange) == (312, "nowhere", "")
        publisher.flush()  # a caller has asked
        publisher.publish(b"x", "nowhere", mandatory=False).result(30)
    assert len(bodies(broker, queue)) == 200


def test_leaving_tells_what_failed(broker: Node) -> None:
    with pytest.raises(MessageReturned, match="nowhere"), Publisher(broker.url) as publisher:
        publisher.publish(b"x", "nowhere")
    with Publisher(broker.url, mandatory=False) as publisher:
        publisher.publish(b"x", "nowhere")


def test_the_refused_fails(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with Publisher(broker.url) as publisher:
        ones = [publisher.publish(b"x", queue) for _ in range(50)]
        with pytest.raises(PublishFailed, match="refused"):
            publisher.flush()
        assert sum(one.exception(0) is None for one in ones) == broker.count(queue) < 50


def test_one_message_that_ends_the_channel_costs_no_other(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("survivors")
    with Publisher(broker.url) as publisher:
        ones = [
            publisher.publish(b"%d" % number, queue, exchange="" if number % 50 else "no-such-exchange")
            for number in range(200)
        ]
        with pytest.raises(PublishFailed, match=r"4 messages .* 404 NOT_FOUND - no exchange 'no-such-exchange'"):
            publisher.flush()
        assert [number for number, one in enumerate(ones) if one.exception(0) is not None] == [0, 50, 100, 150]
        publisher.publish(b"after", queue).result(30)
    assert first_seen(bodies(broker, queue)) == [b"%d" % number for number in range(200) if number % 50] + [b"after"]


@pytest.mark.rabbitmq("the embedded one reads any float")
def test_one_message_that_ends_the_connection_costs_no_other(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue("scores")
    # RabbitMQ cannot read a float that is no number; nothing that `publish` accepts holds one.
    table = b"\0\0\0\x0b\1xd\x7f\xf8" + bytes(6)
    monkeypatch.setattr("fairsched.publisher.contents.write_table", lambda _headers: table)
    with Publisher(broker.url) as publisher:
        ones = [publisher.publish(b"%d" % number, queue) for number in range(5)]
        bad = publisher.publish(b"bad", queue, headers={})
        ones += [publisher.publish(b"%d" % number, queue) for number in range(5, 10)]
        with pytest.raises(PublishFailed, match="the broker closed the connection: 5"):
            bad.result(60)
        for one in ones:
            one.result(60)
    arrived = bodies(broker, queue)
    assert first_seen(arrived) == [b"%d" % number for number in range(10)]
    assert len(arrived) <= 30


@pytest.mark.chaos
@pytest.mark.parametrize("cuts", [1, 5])
def test_no_message_is_lost_when_the_connection_is_cut(
    broker: Node, new_queue: Declare, cuts: int, outcomes: Outcomes
) -> None:
    queue = new_queue("cut")
    expected = numbered(8_000)
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        for number, body in enumerate(expected):
            publisher.publish(body, queue, delivery_mode=1)
            if number % (len(expected) // cuts) == len(expected) // cuts // 2:
                proxy.cut()
        publisher.flush()
        stats = publisher.stats()
    found = bodies(broker, queue)
    outcomes.note("connection reset", "publisher", (expected, found))
    # Sorted by their first arrival they are in order: what is published again comes before anything newer.
    assert first_seen(found) == expected
    assert stats["confirmed"] == len(expected)
    assert 1 <= stats["reconnects"] <= cuts
    assert len(found) - len(expected) <= stats["republished"] <= cuts * 2000


def test_what_is_published_without_a_connection_arrives_when_there_is_one(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("later")
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url)) as publisher:
        proxy.accepting = False
        proxy.cut()
        eventually(lambda: not publisher._client.io_thread.connected)
        ones = [publisher.publish(body, queue) for body in numbered(100)]
        with pytest.raises(PublishFailed, match=r"the broker has not confirmed 100 messages within 0\.2 s"):
            publisher.flush(0.2)
        with pytest.raises(TimeoutError):
            ones[0].result(0.01)
        proxy.accepting = True
        publisher.flush()
    assert bodies(broker, queue) == numbered(100)


def test_a_half_open_connection_is_given_up(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("silent")
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url) + "?heartbeat=1") as publisher:
        publisher.publish(b"before", queue).result(30)
        proxy.silence()
        one = publisher.publish(b"after", queue)
        one.result(60)
        assert publisher.stats()["reconnects"] == 1
    assert first_seen(bodies(broker, queue)) == [b"before", b"after"]


def test_a_broker_that_confirms_nothing_is_an_error(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("deaf")
    with Proxy(broker.port) as proxy:
        publisher = Publisher(behind(proxy, broker.url), confirm_window=3, confirm_timeout=0.3)
        publisher.open()
        proxy.accepting = False
        proxy.cut()
        for _ in range(3):
            publisher.publish(b"x", queue)
        begin = time.monotonic()
        with pytest.raises(PublishFailed, match=r"not published: .* nothing for 0\.3 s; 3 messages are unconfirmed"):
            publisher.publish(b"x", queue)
        assert time.monotonic() - begin > 0.25
        with pytest.raises(PublishFailed, match=r"nothing for 0\.3 s; 3 messages are unconfirmed; there is no"):
            publisher.close()
        with pytest.raises(RuntimeError, match="closed"):
            publisher.publish(b"x", queue)
        assert publisher.stats()["failed"] == 3


def test_an_exception_in_the_block_does_not_hang(broker: Node, new_queue: Declare, caplog: Any) -> None:
    queue = new_queue("raised")
    ones: list[Any] = []

    def fail(publisher: Publisher, proxy: Proxy | None = None) -> None:
        if proxy is not None:
            proxy.accepting = False
            proxy.cut()
            eventually(lambda: not publisher._client.io_thread.connected)
        ones.append(publisher.publish(b"x", queue))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Publisher(broker.url) as publisher:
        fail(publisher)
    assert bodies(broker, queue) == [b"x"]
    with (
        Proxy(broker.port) as proxy,
        pytest.raises(ZeroDivisionError),
        Publisher(behind(proxy, broker.url), confirm_timeout=0.3) as publisher,
    ):
        fail(publisher, proxy)
    assert isinstance(ones[-1].exception(0), PublishFailed)
    assert "1 message of the publisher were not confirmed" in caplog.text


def test_the_end_of_the_io_thread_is_told(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("broken")
    publisher = Publisher(broker.url)
    publisher.open()
    thread = publisher._client.io_thread

    def fail() -> None:
        publisher.publish(b"x", queue)
        raise ZeroDivisionError

    thread._loop.add_callback_threadsafe(fail)
    eventually(lambda: thread.ended)
    with pytest.raises(PublishFailed, match="publishing cannot continue"):
        publisher.publish(b"x", queue)
    with pytest.raises(PublishFailed, match="publishing cannot continue"):
        publisher.close()
    publisher.close()  # has been told


def test_threads_publish_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("threads")
    start = threading.Barrier(16)
    with Publisher(broker.url, confirm_window=100) as publisher:

        def work(name: int) -> None:
            start.wait()
            for number in range(500):
                one = publisher.publish(b"%d:%d" % (name, number), queue, delivery_mode=1)
                if number % 100 == 99:
                    one.result(60)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush()
        assert publisher.stats()["confirmed"] == 8000
    found = [tuple(map(int, body.split(b":"))) for body in bodies(broker, queue)]
    assert len(found) == 8000
    for name in range(16):
        assert [number for one, number in found if one == name] == list(range(500))


def test_a_property_that_publishes_while_it_is_looked_at(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("sly")
    with Publisher(broker.url) as publisher:

        class Sly(str):
            __slots__ = ()

            def __hash__(self) -> int:
                publisher.publish(b"hash", queue)
                return 1

            def __eq__(self, other: object) -> bool:
                publisher.publish(b"eq", queue)
                return True

            def __str__(self) -> str:
                publisher.publish(b"str", queue)
                return "sly"

            def __repr__(self) -> str:
                publisher.publish(b"repr", queue)
                return "sly"

        for _ in range(3):
            publisher.publish(b"x", queue, content_type=Sly("text"), headers={Sly("a"): Sly("b")})
        with pytest.raises(ValueError, match="priority must be an int"):
            publisher.publish(b"never", queue, priority=Sly("high"))
    found = bodies(broker, queue)
    assert found.count(b"x") == 3
    assert b"never" not in found


def test_a_blocked_connection_makes_publishing_wait(mortal: Node, caplog: pytest.LogCaptureFixture) -> None:
    mortal.declare("blocked")
    with Publisher(mortal.url, confirm_timeout=0.5) as publisher:
        publisher.publish(b"before", "blocked").result(30)
        mortal.raise_memory_alarm()
        # The broker blocks connections that publish, so this one does once more.
        one = publisher.publish(b"during", "blocked")
        eventually(lambda: publisher._client.io_thread.blocked is not None)
        with pytest.raises(PublishFailed, match=r"not published: .* it blocked the connection: low on memory"):
            publisher.publish(b"never", "blocked")
        waiting = threading.Thread(target=publisher.publish, args=(b"after", "blocked"))
        publisher._client.settings.confirm_timeout = 60
        waiting.start()
        eventually(lambda: publisher._client.window.queueing)
        assert not one.done()
        mortal.clear_memory_alarm()
        waiting.join(30)
        one.result(30)
    assert bodies(mortal, "blocked") == [b"before", b"during", b"after"]
    assert caplog.text.count("blocked the connection: low on memory; publishing waits") == 1


def test_a_child_process_is_refused(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("fork")
    with Publisher(broker.url) as publisher:
        one = publisher.publish(b"parent", queue)

        def child(answers: Any) -> None:
            for call in (lambda: publisher.publish(b"child", queue), publisher.flush, lambda: one.result(1)):
                try:
                    call()
                except (RuntimeError, PublishFailed) as error:
                    answers.put(str(error))
            publisher.close()
            answers.put("closed")

        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(answers,))
        process.start()
        found = [answers.get() for _ in range(3)]
        process.join(30)
        assert process.exitcode == 0
        assert all("forked" in text or "fork" in text for text in found[:2])
        publisher.publish(b"again", queue).result(30)
    assert bodies(broker, queue) == [b"parent", b"again"]


def test_ctrl_c_in_a_waiting_publish_leaves_it_usable(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("interrupted")
    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url), confirm_window=2) as publisher:
        proxy.accepting = False
        proxy.cut()
        for body in (b"0", b"1"):
            publisher.publish(body, queue)

        def interrupt() -> None:
            eventually(lambda: publisher._client.window.queueing)
            os.kill(os.getpid(), signal.SIGINT)

        for wait in (lambda: publisher.publish(b"never", queue),):
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            thread.join()
        proxy.accepting = True
        publisher.publish(b"2", queue)
        publisher.flush()
    assert first_seen(bodies(broker, queue)) == [b"0", b"1", b"2"]


def test_a_refused_connection_is_an_error_without_the_password(broker: Node) -> None:
    url = broker.url.replace("guest:guest", "guest:s3cret")
    with pytest.raises(ConnectionFailed, match="refused") as why:
        Publisher(url).open()
    assert "s3cret" not in str(why.value)


@pytest.mark.parametrize("kind", [Publisher, lambda urls, **options: Consumer(urls, ["q"], **options)])
@pytest.mark.parametrize("sent", [b"", START])
def test_a_port_that_accepts_and_closes_is_no_refusal(kind: Callable[..., Any], sent: bytes) -> None:
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    one, _ = server.accept()
                except OSError:
                    return
                with one:
                    accepted.append(one.recv(8))
                    if sent:
                        one.sendall(sent)
                        one.recv(4096)

        threading.Thread(target=serve, daemon=True).start()
        url = f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(ConnectionFailed) as caught, kind([url, url], connect_timeout=1):
            pass
        server.shutdown(socket.SHUT_RDWR)
    assert "refused the connection" not in str(caught.value)
    assert len(accepted) > 2


def test_no_broker_is_an_error_in_time() -> None:
    with pytest.raises(ConnectionFailed, match=r"no connection to 127\.0\.0\.1:1 within 0\.3 s; last error"):
        Publisher("amqp://guest:s3cret@127.0.0.1:1", connect_timeout=0.3).open()


def test_it_is_used_open(broker: Node) -> None:
    publisher = Publisher(broker.url)
    with pytest.raises(RuntimeError, match="publish inside 'with publisher:'"):
        publisher.publish(b"", "q")
    publisher.close()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(b"", "q")
    with Publisher(broker.url) as publisher, pytest.raises(RuntimeError, match="opened only once"):
        publisher.open()


def test_a_dropped_publisher_sends_what_it_has_and_ends(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("dropped")
    publisher = Publisher(broker.url)
    publisher.open()
    io_thread = publisher._client.io_thread
    publisher.publish(b"x", queue)
    with pytest.warns(ResourceWarning, match="Publisher was dropped"):
        del publisher
    eventually(lambda: io_thread.ended)
    assert bodies(broker, queue) == [b"x"]


def test_handlers_publish_and_answer(broker: Node, new_queue: Declare) -> None:
    questions, answers, copies = new_queue("questions"), new_queue("answers"), new_queue("copies")
    broker.publish(questions, [b"2"], reply_to=answers, correlation_id="c-1")
    app = App(broker.url)
    problems: list[Exception] = []

    @app.consumer(questions)
    def handle(message: Message) -> None:
        if message.properties.reply_to:
            message.reply(b"4", content_type="text/plain").result(30)
            app.publish(b"again", questions).result(30)
        else:
            try:
                message.reply(b"never")
            except ValueError as error:
                problems.append(error)
            app.publish(message.body, copies)
            app.stop()

    app.run()
    [(properties, body)] = messages(broker, answers)
    assert (body, properties.correlation_id, properties.content_type) == (b"4", "c-1", "text/plain")
    assert bodies(broker, copies) == [b"again"]
    assert "has no reply_to, so a reply cannot be routed" in str(problems[0])
    assert broker.count(questions) == 0


def test_a_direct_reply_is_not_returned(broker: Node, new_queue: Declare) -> None:
    questions = new_queue("direct")
    with broker.connect() as channel, Publisher(broker.url) as publisher:
        answers: list[bytes] = []
        channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda _channel, _method, _properties, body: answers.append(body), auto_ack=True
        )
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        channel.basic_publish("", questions, b"question", properties)
        [(asked, _body)] = messages(broker, questions)
        publisher.publish(b"answer", asked.reply_to, mandatory=True).result(30)
        eventually(lambda: channel.connection.process_data_events(0.05) or answers == [b"answer"])


def test_only_an_app_has_a_publisher_for_answers(broker: Node, new_queue: Declare) -> None:
    questions, answers = new_queue("questions"), new_queue("answers")
    broker.publish(questions, [b"2"], reply_to=answers, correlation_id="c-1")
    with Consumer(broker.url, [questions]) as consumer, Publisher(broker.url) as publisher:
        message = next(iter(consumer))
        with message:
            with pytest.raises(RuntimeError, match="give the message to one of your own"):
                message.reply(b"4")
            publisher.reply(message, b"4").result(30)
    assert bodies(broker, answers) == [b"4"]


def test_callbacks_run_in_the_io_thread_and_cannot_wait_there(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("callbacks")
    found: list[Any] = []
    errors: list[str] = []
    called = threading.Event()

    def call(confirmation: Confirmation) -> None:
        second = publisher.publish(b"second", queue)
        found.extend((confirmation, confirmation.exception(0), threading.current_thread().name, second))
        for wait in (second.result, publisher.flush, publisher.close, lambda: publisher.publish(b"no room", queue)):
            try:
                wait()
            except RuntimeError as error:
                errors.append(str(error).partition(" and ")[0])
        called.set()

    with Proxy(broker.port) as proxy, Publisher(behind(proxy, broker.url), confirm_window=1) as publisher:
        proxy.accepting = False
        proxy.cut()
        eventually(lambda: not publisher._client.io_thread.connected)
        first = publisher.publish(b"first", "nowhere")
        first.add_done_callback(call)
        proxy.accepting = True
        assert called.wait(30)
        found[3].result(30)
        publisher.publish(b"third", queue)
    assert found[0] is first
    assert isinstance(found[1], MessageReturned)
    assert found[2] == "fairsched-publisher"
    assert errors == ["a done callback runs in the publisher's I/O thread"] * 4
    assert bodies(broker, queue) == [b"second", b"third"]


def test_pikas_way_is_as_good(broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = new_queue("slower")
    monkeypatch.setattr(PublisherTransport, "open_shortcut", lambda self, _fast: Transport.open_shortcut(self, False))
    with Publisher(broker.url, confirm_window=100) as publisher:
        ones = [publisher.publish(body, queue if number % 9 else "no") for number, body in enumerate(numbered(500))]
        with pytest.raises(PublishFailed, match="56 messages"):
            publisher.flush()
        assert [one.exception(0) is not None for one in ones] == [number % 9 == 0 for number in range(500)]
    assert len(bodies(broker, queue)) == 444


# asyncio --------------------------------------------------------------------------------------------------------------


def test_tasks_publish_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("tasks")

    async def main() -> None:
        async with aio.Publisher(broker.url, confirm_window=50) as publisher:

            async def work(name: int) -> None:
                for number in range(100):
                    one = await publisher.publish(b"%d:%d" % (name, number), queue, delivery_mode=1)
                    if number % 30 == 0:
                        await one

            async with asyncio.TaskGroup() as group:
                for name in range(40):
                    group.create_task(work(name))
            await publisher.flush()
            assert publisher.stats()["confirmed"] == 4000
            with pytest.raises(MessageReturned, match="nowhere"):
                await (await publisher.publish(b"x", "nowhere"))

    asyncio.run(main())
    found = [tuple(map(int, body.split(b":"))) for body in bodies(broker, queue)]
    assert len(found) == 4000
    for name in range(40):
        assert [number for one, number in found if one == name] == list(range(100))


def test_cancelling_a_waiting_task_publishes_nothing_and_harms_no_other(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("cancelled")

    async def main(proxy: Proxy) -> None:
        async with aio.Publisher(behind(proxy, broker.url), confirm_window=2) as publisher:
            proxy.accepting = False
            proxy.cut()
            ones = [await publisher.publish(body, queue) for body in (b"0", b"1")]
            tasks = [asyncio.create_task(publisher.publish(b"%d" % number, queue)) for number in range(2, 6)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ones[0]
            for number in (0, 2):
                tasks[number].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
            flush = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            flush.cancel()
            proxy.accepting = True
            await asyncio.gather(tasks[1], tasks[3])
            await publisher.flush()

    with Proxy(broker.port) as proxy:
        asyncio.run(main(proxy))
    assert first_seen(bodies(broker, queue)) == [b"0", b"1", b"3", b"5"]


def test_leaving_in_asyncio_tells_what_failed_and_an_exception_does_not_hang(broker: Node, caplog: Any) -> None:
    async def fail() -> None:
        async with aio.Publisher(broker.url) as publisher:
            await publisher.publish(b"x", "nowhere")
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(MessageReturned):
            async with aio.Publisher(broker.url) as publisher:
                await publisher.publish(b"x", "nowhere")
        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(ConnectionFailed, match="refused"):
            await aio.Publisher(broker.url.replace("guest:guest", "guest:s3cret")).open()

    asyncio.run(main())
    assert "an exception ends the publisher: no queue takes" in caplog.text
    assert "s3cret" not in caplog.text
