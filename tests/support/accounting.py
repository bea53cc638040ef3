"""One random session of a consumer, from a seed: which of its messages were handled. URL, queue, seed, seconds, file,
and the arguments of a queue that delays its retries, as JSON, or nothing.

The handlers use everything that a message offers. A message counts as handled, and its body goes to the file, when a
settlement by an ack is decided; whatever else becomes of it, it has to be in a queue afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fairsched import Consumer, Queue, Retry, aio

#: Seconds for which a queue delays a retry, if it does.
DELAY = 0.1


class Session:
    """The choices of a seed about a consumer and its handlers."""

    def __init__(
        self, url: str, queue: str, seed: int, seconds: float, path: str, delaying: dict[str, Any] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.url, self.seconds, self.delays = url, seconds, bool(delaying)
        self.queue = Queue(queue, arguments=delaying) if delaying else Queue(queue)
        self.kind = self.random.choice(["run", "iterate", "batches", "arrow", "coroutines", "threads"])
        self.stop_now = self.random.random() < 0.3
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._later: list[threading.Thread] = []

    def options(self) -> dict[str, Any]:
        choice = self.random.choice
        found: dict[str, Any] = {"prefetch": choice([1, 3, 20, 100]), "shutdown_timeout": 5}
        if self.kind in ("run", "coroutines", "threads"):
            found["workers"] = choice([1, 1, 4])
            if found["workers"] == 4 and choice([True, False]):
                found["ordering_key"] = lambda message: message.body
        if choice([True, False]):
            backoff = choice([0.03, 0.1])
            found["retry"] = Retry(choice([1, 2, 3]), backoff=DELAY if self.delays else backoff, jitter=not self.delays)
        else:
            found["on_error"] = choice(["requeue", "reject", self.on_error])
        return found

    def handled(self, message: Any) -> None:
        os.write(self._file, message.body + b"\n")

    def on_error(self, message: Any, _error: Exception) -> None:
        deed = self.random.choice(["ack", "nack", "reject", "defer", "nothing", "raise"])
        if deed == "ack":
            self.ack(message)
        elif deed == "defer":
            message.defer()
            self.settle_later(message)
        elif deed == "raise":
            raise ValueError("in on_error")
        elif deed != "nothing":
            getattr(message, deed)()

    # What a handler does ------------------------------------------------------------------------------------------

    def ack(self, message: Any) -> None:
        if message.ack():
            self.handled(message)

    def settle_later(self, message: Any) -> None:
        """Settle a deferred message in another thread, soon."""

        def settle(deed: str = self.random.choice(["ack", "nack", "fail", "block"]), wait: float = 0.02) -> None:
            time.sleep(wait * self.random.random())
            if deed == "fail":
                self.fail_in_block(message)
            elif deed == "block":
                before = message.settled
                with message:
                    pass
                assert message.settled in (before, False)  # it stays deferred
                self.ack(message)
            elif deed == "ack":
                self.ack(message)
            else:
                message.nack()

        thread = threading.Thread(target=settle)
        self._later.append(thread)
        thread.start()

    def fail_in_block(self, message: Any) -> None:
        with contextlib.suppress(ValueError), message:
            raise ValueError("in a block")

    def work(self, message: Any, returns: bool) -> None:
        """Do something with a message; `returns`: a return acknowledges it, and the message counts as handled then."""
        deed = self.random.choice(
            ["return", "return", "return", "raise", "block", "block raises", "survive", "survive and ack",
             "survive and reject", "survive and defer", "survive twice", "survive, raise", "ack", "ack, raise", "nack",
             "nack, ack", "requeue", "reject", "defer", "thread", "fail in a thread", "interrupted task"]
        )  # fmt: skip
        if deed.startswith("survive"):
            self.survive(message, deed)
        elif deed.startswith("block"):
            self.use_block(message, deed == "block raises")
        elif "thread" in deed:
            thread = threading.Thread(target=self.ack if deed == "thread" else self.fail_in_block, args=[message])
            thread.start()
            thread.join()
        elif deed == "return" and returns:
            self.handled(message)
        else:
            self.settle(message, deed)
        if deed.endswith("raise"):
            raise ValueError("bad")

    def survive(self, message: Any, deed: str) -> None:
        self.fail_in_block(message)
        if deed.endswith("ack"):
            self.ack(message)  # has an effect if the function `on_error` deferred the message
        for name in ("reject", "defer"):
            if deed.endswith(name):
                getattr(message, name)()
        if deed.endswith("twice"):
            self.fail_in_block(message)

    def use_block(self, message: Any, raises: bool) -> None:
        if not raises:
            self.handled(message)
        with message:
            if raises:
                raise ValueError("in a block")

    def settle(self, message: Any, deed: str) -> None:
        if deed.startswith("ack") or deed == "return":
            self.ack(message)
        elif deed.startswith("nack"):
            message.nack()
            assert deed == "nack" or not message.ack()
        elif deed in ("requeue", "reject"):
            message.reject(requeue=deed == "requeue")
        elif deed == "defer":
            message.defer()
            self.settle_later(message)
        elif deed == "interrupted task":
            message.fail(asyncio.CancelledError())

    # Ways to consume ----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Consume for some seconds; return the statistics."""
        kind = aio.Consumer if self.kind in ("coroutines", "threads") else Consumer
        consumer: Any = kind(self.url, [self.queue], **self.options())
        timer = threading.Timer(self.seconds, consumer.stop, kwargs={"now": self.stop_now})
        timer.start()
        ways: dict[str, Callable[[Any], None]] = {"run": self._run, "iterate": self._iterate}
        ways.get(self.kind, self._asyncio if kind is aio.Consumer else self._batches)(consumer)
        timer.cancel()
        for thread in self._later:
            thread.join(10)
        found: dict[str, Any] = consumer.stats()
        return found

    def _run(self, consumer: Any) -> None:
        consumer.run(lambda message: self.work(message, True))

    def _iterate(self, consumer: Any) -> None:
        with consumer:
            for message in consumer:
                with contextlib.suppress(ValueError):
                    if self.random.random() < 0.5:
                        with message:
                            self.work(message, True)
                    else:
                        self.work(message, False)
                message.nack()  # what was not settled, goes back

    def _batches(self, consumer: Any) -> None:
        take = consumer.arrow_batches if self.kind == "arrow" else consumer.batches
        with consumer:
            for batch in take(self.random.choice([1, 4, 30]), 0.01):
                with contextlib.suppress(ValueError), batch:
                    for message in batch:
                        with contextlib.suppress(ValueError):
                            self.work(message, False)
                        if self.random.random() < 0.03:
                            raise ValueError("in a batch")
                    for message in batch:  # what is acked at the end of the block
                        if "unsettled" in repr(message) and not message.deferred:
                            self.handled(message)
                self.random.choice([batch.nack, lambda: None])()

    def _asyncio(self, consumer: Any) -> None:
        async def handle(message: Any) -> None:
            await asyncio.sleep(0)
            self.work(message, True)

        async def main() -> None:
            async with consumer:
                await consumer.run(handle if self.kind == "coroutines" else lambda message: self.work(message, True))

        asyncio.run(main())


def main(url: str, queue: str, seed: str, seconds: str, path: str, delaying: str) -> None:
    logging.getLogger("fairsched").setLevel(logging.CRITICAL + 1)
    logging.getLogger("pika").setLevel(logging.CRITICAL + 1)
    Session(url, queue, int(seed), float(seconds), path, json.loads(delaying)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
