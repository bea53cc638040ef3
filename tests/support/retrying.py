"""A process whose handlers fail, and which may end between any two steps of a retry: URL, queue, step, how often."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from fairsched import Consumer, Retry
from fairsched.consumer.handling.retries import Retries

#: Methods before which, or after which, the process may end.
STEPS = {
    "before the declaration": ("_declare", False),
    "after the declaration": ("_on_declared", False),
    "before the copy": ("_put_some", False),
    "after the copy": ("_put_some", True),
    "before the acknowledgement": ("_acknowledge", False),
    "after the acknowledgement": ("_acknowledge", True),
}
ATTEMPTS = 3


def end_at(step: str, count: int) -> None:
    """End the process at the step, the so many-th time."""
    name, after = STEPS[step]
    method: Callable[..., Any] = getattr(Retries, name)
    left = [count]

    def stepping(self: Retries, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = method(self, *arguments)
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(Retries, name, stepping)


def main(url: str, queue: str, step: str, count: str) -> None:
    if step:
        end_at(step, int(count))
    retry = Retry(ATTEMPTS, backoff=(0.02, 0.1))
    consumer = Consumer(url, [queue], retry=retry)

    def handler(message: Any) -> None:
        raise ValueError(f"{message.body!r}")

    threading.Thread(target=lambda: (sys.stdin.read(), consumer.stop()), daemon=True).start()
    consumer.run(handler)


if __name__ == "__main__":
    main(*sys.argv[1:])
