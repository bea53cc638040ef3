"""The queue that stands where a dramatiq worker's does: what a worker puts into it, it gets, by turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dramatiq import Message, MessageProxy, worker

from fairsched.integrations.dramatiq import FairWorkQueue
from fairsched.integrations.waiting_jobs import Key, WaitingJobs


def proxy(queue: str, number: int) -> MessageProxy:
    return MessageProxy(Message(queue_name=queue, actor_name="a", args=(number,), kwargs={}, options={}))


@pytest.mark.parametrize(
    "item",
    [lambda *pair: pair, worker._WorkQueueItem],
    ids=["pair, as before 2.2", "item"],
)
def test_what_the_worker_puts_comes_by_turns(item: Callable[[int, MessageProxy], Any]) -> None:
    key = Key("queue", lambda message: message.queue_name, {})
    queue = FairWorkQueue(WaitingJobs(None, "constant"), key)
    items = [item(number, proxy(name, number)) for name in ("flood", "late") for number in range(3)]
    for one in items:
        queue.put(one)
    assert [queue.get(timeout=1) for _ in items] == [items[place] for place in (0, 3, 1, 4, 2, 5)]
    for _ in items:
        queue.task_done()
    queue.join()
