"""The calls around handlers, on a real broker: middleware, decoding, the time limit."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node, numbered
from support.waiting import eventually

from fairsched import App, ConfigurationError, Consumer, Queue, TimeLimitExceeded, UndecodableBody, aio


def run(
    url: str, queue: str | list[Queue], handler: Callable[[Any], object], count: int, **options: Any
) -> dict[str, Any]:
    """Run a plain handler until so many messages were settled; return the figures."""
    queues = [queue] if isinstance(queue, str) else queue
    settled = 0

    def counting(message: Any, call_next: Callable[[Any], object]) -> object:
        nonlocal settled
        try:
            return call_next(message)
        finally:
            settled += 1
            if settled == count:
                consumer.stop()

    options["middleware"] = [counting, *options.get("middleware", ())]
    consumer = Consumer(url, queues, **options)
    consumer.run(handler)
    return consumer.stats()


def run_async(
    url: str, queue: str | list[Queue], handler: Callable[..., Any], count: int = 1, **options: Any
) -> dict[str, Any]:
    """Run a handler of the asyncio consumer until the queue is settled, and so many messages at least."""
    queues = [queue] if isinstance(queue, str) else queue

    async def main() -> dict[str, Any]:
        async with aio.Consumer(url, queues, **options) as consumer:

            def settled() -> bool:
                found = consumer.stats()
                return found["acked"] + found["rejected"] + found["nacked"] >= max(count, found["received"])

            running = asyncio.create_task(consumer.run(handler))
            await asyncio.to_thread(eventually, lambda: running.done() or settled(), 60)
            consumer.stop()
            await asyncio.wait_for(running, 60)
        return consumer.stats()

    return asyncio.run(main())


# Middleware --------------------------------------------------------------------------------------------------------


def noting(said: list[str], name: str) -> Callable[..., object]:
    def middleware(message: Any, call_next: Callable[[Any], object]) -> object:
        said.append(f"{name} before")
        try:
            return call_next(message)
        except ValueError as error:
            said.append(f"{name} saw {error}")
            raise
        finally:
            said.append(f"{name} after")

    return middleware


def noting_async(said: list[str], name: str) -> Callable[..., object]:
    async def middleware(message: Any, call_next: Callable[[Any], Any]) -> object:
        said.append(f"{name} before")
        try:
            return await call_next(message)
        except ValueError as error:
            said.append(f"{name} saw {error}")
            raise
        finally:
            said.append(f"{name} after")

    return middleware


ORDER = ["a before", "b before", "handler", "b saw bad", "a saw bad"]


def without_after(said: list[str]) -> list[str]:
    return [line for line in said if not line.endswith("after")]


def test_the_first_is_the_outermost_and_sees_what_is_raised(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    said: list[str] = []

    def handler(message: Any) -> None:
        said.append("handler")
        raise ValueError("bad")

    stats = run(
        broker.url, queue, handler, 1, on_error="reject", middleware=[noting(said, "a"), noting(said, "b")]
    )  # fmt: skip
    assert without_after(said) == ORDER
    assert said[-2:] == ["a saw bad", "a after"]
    assert (stats["rejected"], stats["errors"]) == (1, 1)


@pytest.mark.parametrize("kind", ["coroutine", "thread", "mixed"])
def test_middleware_of_the_asyncio_consumer(broker: Node, new_queue: Declare, kind: str) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    said: list[str] = []

    def plain(message: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        said.append("handler")
        raise ValueError("bad")

    async def coroutine(message: Any) -> None:
        said.append("handler")
        raise ValueError("bad")

    first = noting(said, "a") if kind == "thread" else noting_async(said, "a")
    second = noting_async(said, "b") if kind == "coroutine" else noting(said, "b")
    handler = coroutine if kind == "coroutine" else plain
    stats = run_async(broker.url, queue, handler, on_error="reject", middleware=[first, second])
    assert without_after(said) == ORDER
    assert (stats["rejected"], stats["errors"]) == (1, 1)


def test_middleware_may_do_the_work_or_do_it_again(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(3))
    handled: list[bytes] = []

    def choosing(message: Any, call_next: Callable[[Any], object]) -> object:
        if message.body == b"0":
            return None  # and that acks it
        if message.body == b"1":
            message.reject()
            return None
        call_next(message)
        return call_next(message)

    stats = run(broker.url, queue, lambda message: handled.append(message.body), 3, middleware=[choosing])
    assert handled == [b"2", b"2"]
    assert (stats["acked"], stats["rejected"], stats["errors"]) == (2, 1, 0)


def test_middleware_in_many_threads_at_once(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, numbered(40))
    barrier = threading.Barrier(4)
    handled: list[bytes] = []

    def together(message: Any, call_next: Callable[[Any], object]) -> object:
        barrier.wait(30)
        return call_next(message)

    stats = run(broker.url, queue, lambda message: handled.append(message.body), 40, workers=4, middleware=[together])
    assert sorted(handled, key=int) == numbered(40)
    assert stats["acked"] == 40


def test_middleware_of_an_app(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    app, said = App(broker.url, middleware=[lambda message, call_next: call_next(message)]), list[str]()

    @app.middleware
    def outer(message: Any, call_next: Callable[[Any], object]) -> object:
        said.append(message.queue)
        return call_next(message)

    @app.consumer(queue)
    def handler(message: Any) -> None:
        said.append("handler")
        app.stop()

    app.run()
    assert said == [queue, "handler"]


async def coroutine_middleware(message: Any, call_next: Callable[[Any], Any]) -> object:
    return await call_next(message)


def plain_middleware(message: Any, call_next: Callable[[Any], object]) -> object:
    return call_next(message)


def test_middleware_of_the_wrong_kind(broker: Node, new_queue: Declare) -> None:
    with pytest.raises(ConfigurationError, match="middleware must be a plain function, got the coroutine function"):
        Consumer(broker.url, ["q"], middleware=[coroutine_middleware]).run(print)
    with pytest.raises(ConfigurationError, match="middleware must be a list of functions, got 3"):
        Consumer(broker.url, ["q"], middleware=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="middleware must be a plain function"):
        App().middleware(coroutine_middleware)
    queue = new_queue()

    async def handler(message: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="middleware of a coroutine handler must be coroutine functions"):
        run_async(broker.url, queue, handler, middleware=[plain_middleware])
    with pytest.raises(ConfigurationError, match=r"must name coroutine functions, .*, before plain ones"):
        run_async(broker.url, queue, print, middleware=[plain_middleware, coroutine_middleware])


# Decoding ----------------------------------------------------------------------------------------------------------

BAD = [b"{", b"\xff\xfe\xfd", b"", b"[" * 100_000]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_decoded_value_and_what_has_none(
    broker: Node, new_queue: Declare, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dead, queue = new_queue("dead"), ""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = new_queue("decoded", arguments=arguments)
    values = [{"id": 1}, [1, 2], "x", None, 3]
    broker.publish(queue, [*map(str.encode, map(json.dumps, values)), *BAD])
    found: list[Any] = []
    if asynchronous:

        async def handler(message: Any) -> None:
            found.append(message.data)

        stats = run_async(broker.url, queue, handler, decode="json")
    else:
        consumer = Consumer(broker.url, [queue], decode="json")
        thread = threading.Thread(target=consumer.run, args=(lambda message: found.append(message.data),))
        thread.start()
        eventually(lambda: consumer.stats()["acked"] + consumer.stats()["rejected"] == 9)
        consumer.stop()
        thread.join(40)
        stats = consumer.stats()
    assert found == values
    # Under the default, "requeue", they would come again for ever.
    assert (stats["acked"], stats["rejected"], stats["nacked"], stats["errors"]) == (5, 4, 0, 4)
    eventually(lambda: broker.count(dead) == 4)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(lines) == 4
    assert all(f"of queue {queue!r} cannot be decoded and is rejected: " in line for line in lines)
    assert lines[0].endswith(
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


def test_a_decoder_of_ones_own_shows_no_body(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue()
    broker.publish(queue, [b"12", b"secret"])
    found: list[int] = []
    consumer = Consumer(broker.url, [queue], decode=int)
    thread = threading.Thread(target=consumer.run, args=(lambda message: found.append(message.data),))
    thread.start()
    eventually(lambda: consumer.stats()["rejected"] == 1)
    consumer.stop()
    thread.join(40)
    assert found == [12]
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_a_batch_with_one_that_cannot_be_decoded(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"1", b"{", b"3"])
    seen: list[Any] = []
    with Consumer(broker.url, [queue], decode="json") as consumer:
        eventually(lambda: consumer.state.buffered == 3)
        for batch in consumer.batches(max_wait=0):
            with pytest.raises(UndecodableBody) if len(batch) == 3 else batch, batch:
                seen += [message.data for message in batch]
            if len(seen) == 2:
                break
        # The others come again, the bad one does not.
        assert sorted(seen) == [1, 3]
        assert (consumer.stats()["rejected"], consumer.stats()["nacked"]) == (1, 2)


def test_data_without_a_decoder(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"1"])
    with Consumer(broker.url, [queue]) as consumer:
        message = next(iter(consumer))
        with pytest.raises(RuntimeError, match=r"message\.data needs a consumer with decode="):
            _ = message.data


# The time limit ----------------------------------------------------------------------------------------------------


def spin(message: Any) -> None:
    """Work for ever, in Python."""
    while True:
        time.sleep(0.001)


def test_a_handler_in_a_thread_is_interrupted(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue()
    broker.publish(queue, [b"stuck", b"fine"])
    left: list[str] = []
    errors: list[Exception] = []

    def handler(message: Any) -> None:
        if message.body == b"fine":
            return
        try:
            spin(message)
        except TimeLimitExceeded:
            left.append("cleaned up")
            raise

    def on_error(message: Any, error: Exception) -> None:
        errors.append(error)
        message.reject()

    stats = run(broker.url, queue, handler, 2, time_limit=0.2, on_error=on_error)
    assert left == ["cleaned up"]
    assert [(type(error), str(error)) for error in errors] == [
        (TimeoutError, "the handler exceeded its time limit of 0.2 s")
    ]
    assert (stats["acked"], stats["rejected"], stats["errors"], stats["timed_out"]) == (1, 1, 1, 1)
    assert f"of queue {queue!r} has run for 0.2 s, its time limit, and is interrupted" in caplog.text
    # Where it was.
    assert "in spin" in caplog.text
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("fairsched-")])


@pytest.mark.parametrize("kind", ["threads", "coroutines", "asyncio, threads"])
def test_the_time_limit_of_a_queue(broker: Node, new_queue: Declare, kind: str) -> None:
    limited, unlimited = new_queue(), new_queue()
    broker.publish(limited, [b"x"])
    broker.publish(unlimited, [b"y"])
    interrupted = threading.Event()

    def handler(message: Any) -> None:
        if message.queue == unlimited:
            assert interrupted.wait(30)
        else:
            spin(message)

    async def coroutine(message: Any) -> None:
        if message.queue == unlimited:
            assert await asyncio.to_thread(interrupted.wait, 30)
        else:
            await asyncio.sleep(60)

    def on_error(message: Any, error: Exception) -> None:
        message.reject()
        interrupted.set()

    queues = [Queue(limited, time_limit=0.2), Queue(unlimited, time_limit=False)]
    options: dict[str, Any] = {"time_limit": 0.1, "on_error": on_error, "workers": 2}
    if kind == "threads":
        stats = run(broker.url, queues, handler, 2, **options)
    else:
        stats = run_async(broker.url, queues, coroutine if kind == "coroutines" else handler, 2, **options)
    assert (stats["acked"], stats["rejected"], stats["timed_out"]) == (1, 1, 1)


def test_a_handler_that_ignores_it_has_failed_when_it_ends(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])

    def handler(message: Any) -> None:
        try:
            spin(message)
        except BaseException:
            return

    stats = run(broker.url, queue, handler, 1, time_limit=0.1, on_error="reject")
    assert (stats["acked"], stats["rejected"], stats["timed_out"]) == (0, 1, 1)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_its_worker_when_it_is_interrupted(
    broker: Node, new_queue: Declare, kind: type[BaseException]
) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])

    def handler(message: Any) -> None:
        try:
            spin(message)
        except TimeLimitExceeded:
            raise kind(3) from None

    consumer = Consumer(broker.url, [queue], time_limit=0.1, on_error="reject")
    with pytest.raises(kind):
        consumer.run(handler)
    eventually(lambda: broker.count(queue) == 1)


def test_a_handler_in_c_code_is_interrupted_when_that_returns_and_shown_meanwhile(
    broker: Node, new_queue: Declare
) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    lock = threading.Lock()
    lock.acquire()
    consumer = Consumer(broker.url, [queue], time_limit=0.2, on_error="reject")
    thread = threading.Thread(target=consumer.run, args=(lambda message: lock.acquire(),))
    thread.start()
    eventually(lambda: consumer.state.problem)
    assert re.fullmatch(r"a handler has run for \d+ s, more than twice its time limit", consumer.state.problem or "")
    # It is its own as long as the handler runs.
    assert (consumer.state.in_hand, consumer.stats()["rejected"]) == (1, 0)
    lock.release()
    eventually(lambda: consumer.stats()["rejected"] == 1)
    assert consumer.state.alive
    consumer.stop()
    thread.join(40)


def test_limits_that_end_with_the_handler_hit_no_other_handler(broker: Node, new_queue: Declare) -> None:
    """Handlers that take as long as they may: each has failed or succeeded, and nothing else is interrupted."""
    queue = new_queue()
    broker.publish(queue, numbered(200))
    limit = 0.01

    def handler(message: Any) -> None:
        until = time.monotonic() + limit + (int(message.body) % 21 - 10) * 1e-4
        while time.monotonic() < until:
            pass

    stats = run(broker.url, queue, handler, 200, time_limit=limit, workers=2, on_error="reject")
    assert stats["acked"] + stats["rejected"] == 200
    assert stats["errors"] == stats["rejected"] == stats["timed_out"]


def test_a_coroutine_is_cancelled(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"stuck", b"own", b"fine"])
    left: list[str] = []

    async def handler(message: Any) -> None:
        if message.body == b"own":
            raise TimeoutError("of a socket")
        if message.body == b"stuck":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                left.append("cancelled")
                raise

    errors: list[str] = []

    def on_error(message: Any, error: Exception) -> None:
        errors.append(str(error))
        message.reject()

    stats = run_async(broker.url, queue, handler, time_limit=0.2, on_error=on_error)
    assert left == ["cancelled"]
    assert errors == ["the handler exceeded its time limit of 0.2 s", "of a socket"]
    assert (stats["acked"], stats["rejected"], stats["timed_out"]) == (1, 2, 1)


def test_a_plain_handler_of_the_asyncio_consumer_is_interrupted(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    stats = run_async(broker.url, queue, spin, time_limit=0.2, on_error="reject")
    assert (stats["acked"], stats["rejected"], stats["timed_out"]) == (0, 1, 1)


def test_middleware_sees_a_failure(broker: Node, new_queue: Declare) -> None:
    queue = new_queue()
    broker.publish(queue, [b"x"])
    seen: list[str] = []

    def reporting(message: Any, call_next: Callable[[Any], object]) -> object:
        try:
            return call_next(message)
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    run(broker.url, queue, spin, 1, time_limit=0.1, on_error="reject", middleware=[reporting])
    assert seen == ["TimeoutError"]


# Examples of the documents -----------------------------------------------------------------------------------------


def test_the_examples_of_the_page(broker: Node, new_queue: Declare) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/consuming.md").read_text(encoding="utf-8")
    [code] = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "@app.middleware" in one]
    queue = new_queue()
    broker.publish(queue, [b'{"id": 7}', b"{"])
    names: dict[str, Any] = {}
    exec(code.replace('"orders"', repr(queue)), names)
    app, done = names["app"], list[object]()
    names["place"] = done.append
    thread = threading.Thread(target=app.run, args=(broker.url,))
    thread.start()
    eventually(lambda: app.stats() and app.stats()["acked"] + app.stats()["rejected"] == 2)
    app.stop()
    thread.join(40)
    assert done == [7]
