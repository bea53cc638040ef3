"""A worker of the matrix: handles messages in one way, says so, and waits at one of them until it is told to go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading

from fairsched import aio
from fairsched.consumer import Consumer
from fairsched.consumer.signals import graceful

#: Stands for work that waits, in seconds; and for what deferred messages wait for.
WORK, LATER = 0.003, 0.05


def say(line: bytes) -> None:
    os.write(1, line + b"\n")


class Worker:
    def __init__(self, url: str, queue_name: str, settlement: str, hold: int) -> None:
        self.arguments = url, [queue_name]
        self.settlement = settlement
        self.hold = hold
        self.seen: set[bytes] = set()
        self.deferred: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.pause = threading.Event()
        threading.Thread(target=self._settle_deferred, daemon=True).start()

    def _settle_deferred(self) -> None:
        while True:
            message = self.deferred.get()
            self.pause.wait(LATER)
            message.ack()
            while not self.deferred.empty():
                self.deferred.get().ack()

    def begin(self, message: object) -> bool:
        """Whether there is something to do; under "nack" everything is given back when it is first seen."""
        if self.settlement == "nack" and message.body not in self.seen:
            self.seen.add(message.body)
            message.nack()
            return False
        self.hold -= 1
        return True

    def end(self, message: object) -> None:
        say(message.body)
        if self.settlement == "defer":
            message.defer()
            self.deferred.put(message)

    def handle(self, message: object) -> None:
        if self.begin(message):
            if self.hold == 0:
                say(b"hold")
                os.read(0, 1)
            self.pause.wait(WORK)
            self.end(message)

    async def handle_async(self, message: object) -> None:
        if self.begin(message):
            if self.hold == 0:
                say(b"hold")
                told = asyncio.Event()
                loop = asyncio.get_running_loop()
                loop.add_reader(0, told.set)
                await told.wait()
                loop.remove_reader(0)
            await asyncio.sleep(WORK)
            self.end(message)

    def by_run(self) -> None:
        consumer = Consumer(*self.arguments, prefetch=20)
        with graceful(consumer.stop, [signal.SIGTERM]):
            consumer.run(self.handle)

    def by_iterator(self) -> None:
        consumer = Consumer(*self.arguments, prefetch=20)
        with graceful(consumer.stop, [signal.SIGTERM]), consumer:
            for message in consumer:
                with message:
                    self.handle(message)

    async def by_aio(self) -> None:
        async with aio.Consumer(*self.arguments, prefetch=20) as consumer:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
            await consumer.run(self.handle_async)


if __name__ == "__main__":
    url, queue_name, way, settlement, hold = sys.argv[1:]
    worker = Worker(url, queue_name, settlement, int(hold))
    with contextlib.suppress(BrokenPipeError):
        if way == "aio":
            asyncio.run(worker.by_aio())
        else:
            getattr(worker, f"by_{way}")()
