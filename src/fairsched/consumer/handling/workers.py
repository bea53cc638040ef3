"""The threads that run handlers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairsched.amqp.flag import Flag

if TYPE_CHECKING:
    from fairsched.consumer.client import Client
    from fairsched.delivery._delivery import Message


class WorkerThreads:
    """Threads that take messages in fair order, each from its worker queue, run the handler and settle.

    Parameters
    ----------
    client : Client
        Where messages come from.
    handler : callable
        Called with one message at a time in each thread. Returning acks, raising settles by ``on_error``.
    priorities : sequence of int
        One for each thread: whose turn it is when several wait for messages.

    Notes
    -----
    `start` and `wait` are for one thread. The threads are daemons: a handler that never returns cannot keep the
    process from leaving after the shutdown timeout; its message returns to the broker with the connection.
    """

    def __init__(self, client: Client, handler: Callable[[Message], object], priorities: Sequence[int]) -> None:
        self._client = client
        self._handler = handler
        self._left = len(priorities)
        self._guard = threading.Lock()
        self._all_left = Flag()
        self._threads = [
            threading.Thread(target=self._work, args=(number, priority), name=f"fairsched-worker-{number}", daemon=True)
            for number, priority in enumerate(priorities)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until the threads have left, or the consumer is abandoned, or its shutdown timeout is over."""
        client = self._client
        client.stopping.wait()
        in_time = self._all_left.wait(0 if client.abandoned else client.remaining())
        if in_time and not client.abandoned:
            for thread in self._threads:
                thread.join()

    def release(self) -> None:
        """Let `wait` return although handlers run."""
        self._all_left.set()

    def _work(self, number: int, priority: int) -> None:
        try:
            self._client.serve(self._client.worker_queues.of_worker(number), self._handler, priority)
        except BaseException as error:
            # SystemExit, KeyboardInterrupt, or a fault of our own: the consumer ends with it.
            self._client.failed(error)
        finally:
            with self._guard:
                self._left -= 1
                last = self._left == 0
            if last:
                self._client.stopping.set()
                self._all_left.set()
