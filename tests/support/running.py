"""Consumers at work, for tests that do something to the broker meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from fairsched.consumer import Consumer


def busy(seconds: float) -> None:
    """Compute for a while, as a handler does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def consume(consumer: Consumer, count: int) -> list[bytes]:
    """Run a consumer until it has handled `count` messages; return their bodies."""
    bodies: list[bytes] = []

    def handler(message: object) -> None:
        bodies.append(message.body)
        if len(bodies) == count:
            consumer.stop()

    consumer.run(handler)
    return bodies


class Running:
    """A consumer at work in a thread of its own, counting what it processed."""

    def __init__(self, url: str | list[str], queues: list[str], work: float = 0.0, **options: object) -> None:
        self.processed: Counter[tuple[str, bytes]] = Counter()
        self.consumer = Consumer(url, queues, **options)
        self.work = work
        self.error: BaseException | None = None
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.consumer.run(self._handle)
        except BaseException as error:
            self.error = error

    def _handle(self, message: object) -> None:
        if self.work:
            # Stands for work that waits.
            self._pause.wait(self.work)
        self.processed[message.queue, message.body] += 1

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "the consumer hangs"
        assert self.error is None

    @property
    def acked(self) -> int:
        return self.consumer.stats()["acked"]

    def channel(self, queue: str) -> object:
        return self.consumer._client.io_thread.channels.by_queue[queue]

    def in_io_thread(self, function: Callable[[], object]) -> None:
        self.consumer._client.io_thread._loop.add_callback_threadsafe(function)
