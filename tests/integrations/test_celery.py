"""How the free processes of a Celery worker are given to its tasks: with kombu's own semaphore, without a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from fairsched.integrations.celery import FreeProcesses
from fairsched.integrations.waiting_jobs import Key, WaitingJobs


class Request:
    """What a pool is given."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._apply_result: object = None

    def on_success(self, *arguments: Any) -> None: ...

    def on_failure(self, *arguments: Any) -> None: ...


def test_any_number_of_tasks_may_be_revoked_while_they_wait() -> None:
    semaphore = LaxBoundedSemaphore(1)
    key = Key("queue", "header", lambda request: "q", lambda request, name: None)
    processes = FreeProcesses(SimpleNamespace(semaphore=semaphore), WaitingJobs(None, 1, "constant"), key)
    seen: list[int] = []

    def process(request: Request) -> None:
        """As Celery's worker does: a revoked task gives its process back."""
        seen.append(request.number)
        if request.number in (0, 4999):
            request._apply_result = "runs"
        else:
            semaphore.release()

    count = 5000
    for number in range(count):
        processes.acquire(process, Request(number))
    assert seen == [0]
    semaphore.release()  # the first has ended
    assert seen == list(range(count))
    assert semaphore.value == 0
    semaphore.release()  # and the last
    assert semaphore.value == 1
    processes.acquire(process, Request(0))
    assert seen[-1] == 0
