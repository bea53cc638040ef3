"""Producers and consumers of a probe's queue, in threads: which the stress tests of the queue let loose on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from support.threads import start

from fairsched import _probe_queue

STANDARD, PRIORITY, SORTED, LAST_VALUE, FAIR = range(5)
NO_GROUPS, STANDARD_GROUPS, SHARED_GROUPS = range(3)
FULL = 125_000
#: Under TSAN each step takes twenty times as long.
EACH = FULL if "libtsan" not in os.environ.get("LD_PRELOAD", "") else 2_000
DEADLINE = 240.0


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs at once, each in a thread, and return what they returned."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        ready.wait()
        return job()

    started = [start(lambda job=job: run(job)) for job in jobs]
    for thread, _ in started:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread, _ in started), "a thread sleeps beside work"
    for _, outcome in started:
        if isinstance(outcome[0], Exception):
            raise outcome[0]
    return [outcome[0] for _, outcome in started]


def run(queue: Any, producers: int, each: int, consumers: list[dict[str, Any]]) -> list[int]:
    """Producers put `each`, consumers take all; what each consumer got."""
    before = _probe_queue.disposed()
    results = together(
        *(lambda i=i: queue.produce(1 + i * each, each, i) for i in range(producers)),
        *(lambda i=i, options=options: queue.consume(1000 + i, **options) for i, options in enumerate(consumers)),
    )
    assert results[:producers] == [0] * producers
    assert queue.once
    assert (queue.depth, queue.available, queue.used) == (0, 0, 0)
    assert queue.valid
    assert queue.consumers == sum(queue.size(which) for which in (0, 1, 3, 4)) == queue.size(2)
    assert _probe_queue.disposed() >= before
    return results[producers:]
