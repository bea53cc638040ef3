"""A process whose threads are greenlets, for tests: makes blocking calls, which other greenlets have to end.

Arguments: the library that replaces threads, and the URL of a broker. Each line of its input is a call and a queue of
the broker, which is empty; it answers with a line that says how the call ended.
"""

from __future__ import annotations

import importlib
import sys

LIBRARY, URL = sys.argv[1:]
#: Of the call that is made.
QUEUE = ""
if LIBRARY == "gevent":
    importlib.import_module("gevent.monkey").patch_all()
else:
    importlib.import_module("eventlet").monkey_patch()

import asyncio  # noqa: E402
import faulthandler  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from fairsched import App, Broker, Consumer, FairQueue, Publisher, Retry, aio  # noqa: E402
from fairsched.pullqueue import PullQueue, Target  # noqa: E402
from fairsched.scheduling.greenlets import patched_by  # noqa: E402

#: How often another greenlet must have run before it ends the call.
TURNS = 20


def after_turns(end: Callable[[], object]) -> None:
    """Have another greenlet end a call, after it has had several turns while that waits."""

    def run() -> None:
        turn = threading.Event()
        for _ in range(TURNS):
            turn.wait(0.001)
        end()

    threading.Thread(target=run).start()


def publish(*_: object) -> None:
    with Publisher(URL) as publisher:
        for number in range(4):
            publisher.publish(b"%d" % number, QUEUE)


def get() -> None:
    queue = FairQueue({"a": 1})
    after_turns(lambda: queue.put("a", 1))
    assert queue.get() == ("a", 1)


def get_in_time() -> None:
    queue = FairQueue({"a": 1})
    after_turns(lambda: queue.put("a", 1))
    assert queue.get(timeout=20) == ("a", 1)


def get_many() -> None:
    queue = FairQueue({"a": 1})
    after_turns(lambda: queue.put("a", 1))
    assert list(queue.get_many(3)) == [("a", 1)]


def put() -> None:
    queue = FairQueue({"a": 1}, maxsize=1)
    queue.put("a", 1)
    after_turns(queue.get)
    queue.put("a", 2)
    assert queue.get() == ("a", 2)


def put_many() -> None:
    queue = FairQueue({"a": 1}, maxsize=1)
    queue.put("a", 1)
    after_turns(queue.get)
    queue.put_many("a", [2])
    assert queue.get() == ("a", 2)


def pull() -> None:
    queue = PullQueue()
    after_turns(lambda: queue.put(1))
    assert queue.subscribe().get().item == 1


def pull_from_several() -> None:
    queue = PullQueue()
    target = Target([queue.subscribe()])
    after_turns(lambda: queue.put(1))
    assert target.get().item == 1


def put_into_pull_queue() -> None:
    queue = PullQueue(overflow="flow", max_depth=1)
    subscription = queue.subscribe()
    queue.put(1)
    after_turns(lambda: subscription.get().ack())
    queue.put(2)
    assert queue.available == 1


def start_broker() -> None:
    Broker().start()


def confirm() -> None:
    with Publisher(URL) as publisher:
        publisher.publish(b"", QUEUE).result(20)
        publisher.publish(b"", QUEUE).result()


def flush() -> None:
    publisher = Publisher(URL)
    publisher.open()
    publisher.publish(b"", QUEUE)
    publisher.flush(20)
    publisher.close()


def wait_for_room() -> None:
    with Publisher(URL, confirm_window=2) as publisher:
        for _ in range(50):
            publisher.publish(b"", QUEUE)
        publisher.flush()


def iterate() -> None:
    after_turns(publish)
    with Consumer(URL, [QUEUE]) as consumer:
        for message in consumer:
            message.ack()
            if message.body == b"3":
                consumer.stop()


def batches() -> None:
    after_turns(publish)
    with Consumer(URL, [QUEUE]) as consumer:
        for batch in consumer.batches(max_size=3, max_wait=0.1):
            with batch:
                if batch[-1].body == b"3":
                    consumer.stop()


def arrow_batches() -> None:
    after_turns(publish)
    with Consumer(URL, [QUEUE]) as consumer:
        for batch in consumer.arrow_batches(max_size=3, max_wait=0.1):
            with batch:
                if batch.record_batch["body"][-1].as_py() == b"3":
                    consumer.stop()


def run(**options: Any) -> None:
    consumer = Consumer(URL, [QUEUE], **options)
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        time.sleep(0.001)
        if len(handled) == 4:
            consumer.stop()

    after_turns(publish)
    consumer.run(handle)
    assert sorted(handled) == [b"0", b"1", b"2", b"3"]


def run_workers() -> None:
    run(workers=3)


def run_worker_queues() -> None:
    run(workers=2, ordering_key="header:account")


def run_app() -> None:
    app = App(URL)

    @app.consumer(QUEUE)
    def handle(message: Any) -> None:
        if message.body == b"3":
            app.stop()

    after_turns(publish)
    app.run()


def run_app_until_signal() -> None:
    app = App(URL)

    @app.consumer(QUEUE)
    def handle(message: Any) -> None:
        if message.body == b"3":
            os.kill(os.getpid(), signal.SIGTERM)

    after_turns(publish)
    app.run()


def run_with_retry() -> None:
    consumer = Consumer(URL, [QUEUE], retry=Retry(2, backoff=0.01))
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        if handled.count(message.body) == 1:
            raise ValueError
        if len(handled) == 8:
            consumer.stop()

    after_turns(publish)
    consumer.run(handle)


def run_with_time_limit() -> None:
    Consumer(URL, [QUEUE], time_limit=1).run(print)


def run_plain_in_event_loop() -> None:
    async def main() -> None:
        async with aio.Consumer(URL, [QUEUE]) as consumer:

            def handle(message: Any) -> None:
                time.sleep(0.001)
                if message.body == b"3":
                    consumer.stop()

            await consumer.run(handle)

    after_turns(publish)
    asyncio.run(main())


def run_in_event_loop() -> None:
    async def main() -> None:
        async with aio.Consumer(URL, [QUEUE]) as consumer:

            async def handle(message: Any) -> None:
                if message.body == b"3":
                    consumer.stop()

            await consumer.run(handle)

    after_turns(publish)
    asyncio.run(main())


def publish_in_event_loop() -> None:
    async def main() -> None:
        async with aio.Publisher(URL, confirm_window=2) as publisher:
            for _ in range(20):
                await publisher.publish(b"", QUEUE)
            await publisher.flush()

    asyncio.run(main())


if __name__ == "__main__":
    assert patched_by() == LIBRARY
    for line in iter(sys.stdin.readline, ""):
        call, QUEUE = line.split()
        faulthandler.dump_traceback_later(30, exit=True)
        try:
            globals()[call]()
            outcome = "returned"
        except RuntimeError as error:
            outcome = f"refused: {error}"
        faulthandler.cancel_dump_traceback_later()
        print(outcome, flush=True)
    os._exit(0)
