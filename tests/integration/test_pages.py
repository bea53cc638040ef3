"""Consumers that pages of the manual show, run as they are printed."""

from __future__ import annotations

import contextlib
import os
import queue as queues
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from support.rabbitmq import Node, numbered
from support.waiting import eventually

import fairsched
import fairsched.aio
from fairsched.testing import FakeConsumer

PAGES = Path(__file__).parents[2] / "docs" / "howto"
COUNT = 20


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


GOLD, FREE = "gold", "free"


class Page:
    """Blocks of a page, run in a thread until their queues are empty."""

    def __init__(self, broker: Node, monkeypatch: pytest.MonkeyPatch, queues: list[str]) -> None:
        self.broker, self.queues = broker, queues
        self.made: list[Any] = []
        made = self.made

        def recording(kind: Any) -> Any:
            class Recorded(kind):  # type: ignore[misc]
                def __init__(self, *arguments: Any, **options: Any) -> None:
                    super().__init__(*arguments, **options)
                    made.append(self)

            return Recorded

        for module in (fairsched, fairsched.aio):
            monkeypatch.setattr(module, "Consumer", recording(module.Consumer))
        self.names: dict[str, Any] = {"Consumer": fairsched.Consumer, "url": broker.url}
        broker.delete(*queues)
        broker.declare(*queues)

    def fill(self, **options: Any) -> None:
        for queue in self.queues:
            self.broker.publish(queue, numbered(COUNT), **options)

    def run(self, *codes: str, until: Callable[[], object] | None = None) -> None:
        problems: list[BaseException] = []

        def work() -> None:
            try:
                for code in codes:
                    exec(compile(code, "page", "exec"), self.names)
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            eventually(lambda: problems or (until or self.is_empty)())
        finally:
            for one in self.made:
                one.stop()
            thread.join(30)
        assert not thread.is_alive()
        assert not problems

    def is_empty(self) -> bool:
        return self.broker.left(*self.queues) == 0

    def close(self) -> None:
        self.broker.delete(*self.queues)


@pytest.mark.parametrize(
    ("page", "number", "queues"),
    [
        ("freshness", 0, ["orders"]),
        ("freshness", 1, ["quotes"]),
        ("ordering", 0, ["payments", "mails"]),
        ("prefetch", 1, ["gold", "free"]),
        ("processes", 0, ["gold", "free"]),
        ("tenants", 0, ["jobs"]),
    ],
)
def test_a_consumer(broker: Node, monkeypatch: pytest.MonkeyPatch, page: str, number: int, queues: list[str]) -> None:
    shown, handled = Page(broker, monkeypatch, queues), []
    shown.names |= {
        "CoDel": fairsched.CoDel,
        "handle": lambda message: handled.append(message.body),
        "made": shown.made,
    }
    shown.fill(headers={"tenant": "acme", "account": "1"})
    code = blocks(page)[number].rstrip()
    shown.run(code if code.endswith(".run(handle)") else f"{code}\nmade[0].run(handle)")
    # What waited too long for its turn may have been given up.
    assert set(handled) <= set(numbered(COUNT))
    assert handled
    shown.close()


def test_urgent_messages_are_handled_first(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (code for code in blocks("tenants") if "band=" in code and "key=" in code and "property:priority" in code)
    shown, handled = Page(broker, monkeypatch, ["jobs"]), list[int]()
    for priority in (0, 4, 9):
        shown.fill(headers={"tenant": "acme"}, priority=priority)

    def handle(message: Any) -> None:
        eventually(lambda: shown.made[0].stats()["received"] == 3 * COUNT)
        handled.append(message.priority)

    shown.names["handle"] = handle
    shown.run(code.rstrip())
    assert handled[1:] == sorted(handled[1:], reverse=True)  # the first may have been the only one here
    assert Counter(handled) == {0: COUNT, 4: COUNT, 9: COUNT}


def test_limits_of_several_processes(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, handled = Page(broker, monkeypatch, ["jobs"]), []
    shown.names["handle"] = lambda message: handled.append(message.body)
    shown.fill(headers={"tenant": "acme"})
    shown.run(blocks("limits")[0], until=lambda: len(handled) == 3)
    shown.close()


def test_a_limit_of_several_queues(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = ["invoices", "refunds", "mail"]
    shown, handled = Page(broker, monkeypatch, queues), []
    shown.names["handle"] = lambda message: handled.append(message.queue)
    for queue in queues:
        broker.publish(queue, [b"a", b"b"])
    shown.run(blocks("limits")[1], until=lambda: len(handled) == 6)
    assert Counter(handled) == dict.fromkeys(queues, 2)
    shown.close()


def test_a_service_that_says_slow_down(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, times = Page(broker, monkeypatch, ["jobs"]), []

    def post(_message: Any) -> SimpleNamespace:
        times.append(time.monotonic())
        return SimpleNamespace(status=429 if len(times) == 1 else 200, headers={"Retry-After": "0.5"})

    shown.names["post"] = post
    shown.fill()
    shown.run(blocks("limits")[-1], 'Consumer(url, ["jobs"]).run(handle)')
    assert len(times) == COUNT + 1
    assert times[1] - times[0] >= 0.5
    assert shown.made[0].stats()["errors"] == 0
    shown.close()


def test_a_queue_with_one_active_consumer(broker: Node) -> None:
    broker.delete("payments")
    with broker.connect() as channel:
        exec(blocks("ordering")[1], {"channel": channel})
    broker.delete("payments")


# consuming.md ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def consuming(broker: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    page = Page(broker, monkeypatch, [GOLD, FREE])
    yield page
    page.close()


def awaited(code: str) -> str:
    """Return code that runs a block with `await` in it."""
    return "import asyncio\nasync def main():\n" + textwrap.indent(code, "    ") + "\nasyncio.run(main())\n"


def test_the_consumer_of_several_brokers_its_weights_and_pauses(consuming: Page, broker: Node) -> None:
    first, weight, pause = blocks("consuming")[:3]
    code = re.sub(r"amqp://user:secret@rabbit-[12]", broker.url, first)
    assert code.count(broker.url) == 2
    handled: list[bytes] = []
    consuming.names["handle"] = lambda message: handled.append(message.body)
    consuming.fill()
    changed = False

    def done() -> bool:
        nonlocal changed
        if not changed and consuming.made:
            names = {**consuming.names, "consumer": consuming.made[0]}
            exec(weight, names)
            exec(pause, names)
            changed = True
        return changed and consuming.is_empty()

    consuming.run(code, until=done)
    assert sorted(handled) == sorted(2 * numbered(COUNT))
    assert (
        consuming.made[0].stats()["slots"]["gold"].quantum * 2 == consuming.made[0].stats()["slots"]["free"].quantum * 5
    )


@pytest.mark.parametrize("number", [3, 5, 6])
def test_other_forms_of_consumers(consuming: Page, number: int) -> None:
    handled: list[Any] = []
    consuming.names |= {"handle": lambda message: handled.append(message.body), "insert": handled.extend}
    consuming.fill()
    consuming.run(blocks("consuming")[number])
    assert sorted(handled) == sorted(2 * numbered(COUNT))


def test_messages_one_by_one(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    page, handled = Page(broker, monkeypatch, ["invoices", "mails"]), []
    page.names["work"] = handled.append
    page.fill()
    page.run(blocks("consuming")[4])
    assert sorted(handled) == sorted(2 * numbered(COUNT))
    page.close()


def test_the_asyncio_consumer(consuming: Page) -> None:
    handled: list[bytes] = []

    async def handle(message: Any) -> None:
        handled.append(message.body)

    consuming.names["handle"] = handle
    consuming.fill()
    consuming.run(awaited(blocks("consuming")[8]))
    assert sorted(handled) == sorted(2 * numbered(COUNT))


def test_the_module_of_an_app(consuming: Page, broker: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workers.py").write_text(blocks("consuming")[9])
    consuming.fill()
    command = [sys.executable, "-m", "fairsched.cli", "run", "workers:app", "--url", broker.url]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        eventually(consuming.is_empty)
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_callback_of_pika(consuming: Page, broker: Node) -> None:
    handled: list[bytes] = []

    def on_message(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        handled.append(body)
        channel.basic_ack(method.delivery_tag)

    consuming.names |= {"on_message": on_message, "consumer": fairsched.Consumer(broker.url, [GOLD, FREE])}
    consuming.fill()
    consuming.run(blocks("consuming")[10])
    assert sorted(handled) == sorted(2 * numbered(COUNT))


def test_the_state_of_a_consumer(consuming: Page, broker: Node) -> None:
    with fairsched.Consumer(broker.url, [GOLD, FREE]) as consumer:
        exec(blocks("consuming")[12], {"consumer": consumer})
        assert consumer.state.consuming == {"gold": True, "free": True}


# publishing.md --------------------------------------------------------------------------------------------------------


class Order:
    def __init__(self, number: int) -> None:
        self.id = str(number)

    def to_json(self) -> bytes:
        return b"%d" % int(self.id)


def check_later(broker: Node, later: str, again: str) -> None:
    """Run the blocks that delay messages: those that are due at once arrive at once."""
    with broker.connect() as channel:
        channel.exchange_declare("events", auto_delete=True)
        channel.queue_bind("invoices", "events", "paid")
    with fairsched.Publisher(broker.url) as publisher:
        assert "delay=30" in later
        exec(later.replace("delay=30", "delay=0"), {"publisher": publisher, "body": b"later", "due": datetime.now(UTC)})
        publisher.flush()
    assert broker.left("invoices") == 1
    with broker.connect() as channel:
        channel.queue_purge("invoices")
    app = fairsched.App(broker.url)
    message = FakeConsumer().put(b"again", queue="answers", content_type="t")
    exec(again, {"app": app, "message": message, "seconds": 0})
    assert message.settled
    app.publisher.close()
    with broker.connect() as channel:
        _, properties, body = channel.basic_get("answers", auto_ack=True)
        assert (properties.content_type, body) == ("t", b"again")


def test_what_the_page_on_publishing_shows(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(broker, monkeypatch, ["orders", "invoices", "answers"])
    first, confirmed, collecting, later, again, lanes, handler, asynchronous = (
        code.replace('"amqp://localhost"', repr(broker.url)) for code in blocks("publishing")
    )
    exec(first, {"orders": [Order(number) for number in range(COUNT)]})
    with fairsched.Publisher(broker.url) as publisher:
        done: list[object] = []
        names = {"publisher": publisher, "body": b"one more", "function": done.append}
        exec(confirmed, names)
        assert done == [names["confirmation"]]
        exec(collecting, {"queue": queues, "confirmations": done})
    exec(awaited(asynchronous), {"body": b"and another"})
    assert broker.left("orders") == COUNT + 2
    check_later(broker, later, again)
    exec(lanes, {"body": b"in a lane"})
    bucket = fairsched.Lanes("orders", key="header:tenant").bucket_of("acme")
    assert broker.left(bucket) == 1
    broker.delete(bucket)
    with broker.connect() as channel:
        _, properties, body = channel.basic_get("orders", auto_ack=True)
        assert (properties.content_type, properties.message_id, body) == ("application/json", "0", b"0")
        channel.queue_purge("orders")
    broker.publish("orders", numbered(COUNT), reply_to="answers")
    app = fairsched.App(broker.url)
    exec(handler, {"App": lambda: app, "invoice": lambda body: b"invoice of " + body})
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        eventually(lambda: broker.left("invoices") == broker.left("answers") == COUNT and broker.left("orders") == 0)
    finally:
        app.stop()
        thread.join(30)
    page.close()


# rpc.md ---------------------------------------------------------------------------------------------------------------


def test_what_the_page_on_calls_shows(broker: Node, capsys: pytest.CaptureFixture[str]) -> None:
    queues_ = ["prices", "orders", "invoices"]
    broker.delete(*queues_)
    broker.declare(*queues_)
    ask, server, handler, asynchronous = (
        code.replace('"amqp://localhost"', repr(broker.url)) for code in blocks("rpc")
    )
    names: dict[str, Any] = {"price_of": lambda body: b"price of " + body}
    exec(server, names)
    prices = names["app"]
    exec(handler, names | {"app": (orders := fairsched.App(broker.url))})
    broker.publish("orders", numbered(COUNT))
    threads = [threading.Thread(target=app.run) for app in (prices, orders)]
    for thread in threads:
        thread.start()
    try:
        exec(ask, {})
        assert capsys.readouterr().out == "b'price of 4711' {}\n"
        found: dict[str, Any] = {"bodies": numbered(COUNT)}
        exec(awaited(asynchronous + "    found.extend(replies)\n"), found | {"found": (replies := [])})
        assert [reply.body for reply in replies] == [b"price of %d" % number for number in range(COUNT)]
        eventually(lambda: broker.left("invoices") == COUNT and broker.left("orders") == 0)
    finally:
        orders.stop()
        prices.stop()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    broker.delete(*queues_)


# frameworks.md --------------------------------------------------------------------------------------------------------

WORKERS = {
    "celery": (["celery", "-A", "shop", "worker", "-c", "1"], "@app.task", "celery"),
    "dramatiq": (["dramatiq", "shop", "--processes", "1", "--threads", "1"], "@dramatiq.actor", "default"),
}


@pytest.mark.parametrize("framework", list(WORKERS))
def test_workers_of_other_frameworks(broker: Node, tmp_path: Path, framework: str) -> None:
    """The worker as the first block has it, then with the shares of the second, which sends a job."""
    codes = [code.replace("amqp://localhost", broker.url) for code in blocks("frameworks")]
    place = next(place for place, code in enumerate(codes) if re.search(rf"^(from|import) {framework}\b", code, re.M))
    first, tenants = codes[place : place + 2]
    command, decorator, queue = WORKERS[framework]
    broker.delete(queue)
    shares, sending = tenants.splitlines()
    work = f'{decorator}\ndef invoice(number):\n    print(number, file=open("done", "a"), flush=True)\n'
    # An answer of the broker, after which it has the job.
    sent = "broker.close()"
    if framework == "celery":
        sent = "with app.producer_or_acquire() as producer: producer.channel.basic_qos(0, 1, False)"
    done = tmp_path / "done"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONWARNINGS": "ignore"}
    for count, code in enumerate((first, f"{first}{shares}\n"), 1):
        (tmp_path / "shop.py").write_text(code + work)
        (tmp_path / "send.py").write_text(f"from shop import *\n{sending}\n{sent}\n")
        subprocess.run([sys.executable, "send.py"], cwd=tmp_path, env=environment, check=True, timeout=60)
        with open(tmp_path / "log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=tmp_path, env=environment, stdout=log, stderr=log
            )
        try:
            eventually(lambda count=count: done.exists() and done.read_text() == "42\n" * count, 60)
        finally:
            process.terminate()
            assert process.wait(60) == 0, (tmp_path / "log").read_text()


# kombu.md -------------------------------------------------------------------------------------------------------------


def test_kombu(broker: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first blocks exchange a message, the others publish batches."""
    codes = [code.replace("amqp://localhost", broker.url) for code in blocks("kombu")]
    broker.delete("orders")
    names: dict[str, Any] = {}
    for code in codes:
        exec(code, names)
    assert names["app"].connection_for_read().transport.driver_name == "fairsched"
    assert capsys.readouterr().out == "{'order': 1}\n"
    assert broker.count("orders") == 2001
    broker.delete("orders")


# migrate-from-pika.md -------------------------------------------------------------------------------------------------


def test_a_worker_and_a_publisher_that_leave_pika(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does its work at each step; the publishers of both send the same message."""
    page, handled = Page(broker, monkeypatch, [GOLD, FREE]), []
    page.names["work"] = lambda queue, body: handled.append((queue, body))
    with_pika, callback, handler, confirmed, publishing = (
        code.replace('"amqp://localhost"', repr(broker.url)) for code in blocks("migrate-from-pika")
    )

    def pika_is_done() -> bool:
        if not page.is_empty():
            return False
        page.names["connection"].add_callback_threadsafe(page.names["channel"].stop_consuming)
        return True

    for code, until in (with_pika, pika_is_done), (callback, None), (handler, None):
        handled.clear()
        page.fill()
        page.run(code, until=until)
        assert sorted(handled) == sorted((queue, body) for queue in (GOLD, FREE) for body in numbered(COUNT))
    exec(confirmed, page.names)
    exec(publishing, page.names)
    for _ in range(2):
        _, properties, body = page.names["channel"].basic_get(GOLD, auto_ack=True)
        assert (body, properties.message_id, properties.delivery_mode) == (b"order 1", "1", 2)
    page.names["connection"].close()
    page.close()


# migrate-from-celery.md -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(code: str, names: dict[str, Any]) -> Iterator[fairsched.App]:
    """Run the app that code makes."""
    exec(code, names)
    app: fairsched.App = names["app"]
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        yield app
    finally:
        app.stop()
        thread.join(30)
    assert not thread.is_alive()


def test_a_worker_and_a_producer_that_leave_celery(broker: Node) -> None:
    broker.delete("celery", "invoices")
    worker, tenants, publishing, moved = (
        code.replace('"amqp://localhost"', repr(broker.url)) for code in blocks("migrate-from-celery")
    )
    head, handler = worker.split("@app.consumer")
    done: list[tuple[int, str]] = []

    def invoice(number: int, currency: str = "USD") -> None:
        done.append((number, currency))

    names: dict[str, Any] = {"invoice": invoice}
    with celery.Celery("shop", broker=broker.url) as shop:
        task = shop.task(name="shop.invoice", ignore_result=True)(invoice)
        task.delay(42, currency="EUR")
        with running(worker, names):
            eventually(lambda: done == [(42, "EUR")])
        task.apply_async((43,), headers={"tenant": "acme"})
        with running(f"{head}{tenants}@app.consumer{handler}", names) as app:
            eventually(lambda: done[1:] == [(43, "USD")])
            assert app.stats()["slots"]["acme"].served
    with running(f"{head}{moved}", names) as app:
        eventually(lambda: app.state.consuming.get("invoices"))
        exec(publishing, {})
        eventually(lambda: done[2:] == [(42, "EUR")])
    eventually(lambda: broker.left("celery", "invoices") == 0)
    broker.delete("celery", "invoices")
