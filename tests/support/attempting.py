"""A process whose handlers fail, and which is killed at a step: URL, queue, file, window, step.

Its handlers write down the body of each message, before anything else.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from typing import Any

from fairsched import Consumer, Queue, Retry
from fairsched.consumer.handling.retries import Retries

RETRY = Retry(3, backoff=0.2, jitter=False)
#: Where the process may end: in the handler of its first message; after that handler failed, before the message is
#: rejected; and in the handler of its fifth message, when at least some of the others were rejected.
STEPS = ("in the handler", "before the settlement", "in a later handler")
LATER = 5


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, name: str, path: str, prefetch: str, step: str) -> None:
    if step == STEPS[1]:
        Retries.settle = lambda *_: end()  # type: ignore[assignment, method-assign, return-value]
    end_at = {STEPS[0]: 1, STEPS[2]: LATER}.get(step)
    queue = Queue(name, arguments=RETRY.queue_arguments, retry=RETRY, prefetch=int(prefetch))
    consumer = Consumer(url, [queue])
    calls = os.open(path, os.O_WRONLY | os.O_APPEND)
    count = itertools.count(1)

    def handler(message: Any) -> None:
        os.write(calls, message.body + b"\n")
        if next(count) == end_at:
            end()
        raise ValueError(f"{message.body!r}")

    threading.Thread(target=lambda: (sys.stdin.read(), consumer.stop()), daemon=True).start()
    consumer.run(handler)


if __name__ == "__main__":
    main(*sys.argv[1:])
