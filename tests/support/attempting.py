"""A process whose handlers fail, and which is killed at a step of its first attempts: URL, queue, file, window, step.

Its handlers write down the body of each message, before anything else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from fairsched import Consumer, Queue, Retry
from fairsched.consumer.handling.retries import Retries

RETRY = Retry(3, backoff=0.2, jitter=False)
#: Where the process may end: the second is before the reject is written, the last after it was sent.
STEPS = ("in the handler", "before the settlement", "after the settlement")


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_at(step: str) -> None:
    """End the process when a message is settled for the first time, before or after that."""
    settle: Callable[..., Any] = Retries.settle

    def settling(self: Retries, *arguments: Any) -> Any:
        if step == STEPS[1]:
            end()
        found = settle(self, *arguments)
        # A round trip, after which the broker has what was sent before, if anything is to be sent.
        threading.Timer(0.3, end).start()
        return found

    Retries.settle = settling  # type: ignore[method-assign]


def main(url: str, name: str, path: str, prefetch: str, step: str) -> None:
    if step in STEPS[1:]:
        end_at(step)
    queue = Queue(name, arguments=RETRY.queue_arguments, retry=RETRY, prefetch=int(prefetch))
    consumer = Consumer(url, [queue])
    calls = os.open(path, os.O_WRONLY | os.O_APPEND)

    def handler(message: Any) -> None:
        os.write(calls, message.body + b"\n")
        if step == STEPS[0]:
            end()
        raise ValueError(f"{message.body!r}")

    threading.Thread(target=lambda: (sys.stdin.read(), consumer.stop()), daemon=True).start()
    consumer.run(handler)


if __name__ == "__main__":
    main(*sys.argv[1:])
