"""The chain with real I/O threads and notifiers: nothing lost, never two threads in one connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.threads import result_of, start
from support.waiting import reach

from fairsched import _probe_chain

pytestmark = pytest.mark.stress

THREADS = [1, 2, 4]


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs at once, each in a thread, and return what they returned."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        ready.wait()
        return job()

    return [result_of(thread) for thread in [start(lambda job=job: run(job)) for job in jobs]]


def await_all(chain: Any, connections: int, put: int, tasks: int) -> None:
    """Wait until so many messages were served and tasks run."""
    reach(lambda: (chain.progress, sum(chain.figures(number)[2] for number in range(connections))) == (put, tasks))


@pytest.mark.parametrize("adders", [1, 4])
@pytest.mark.parametrize("items", [1, 2, 50])
def test_whatever_is_added_to_a_set_is_taken_once(items: int, adders: int) -> None:
    work = _probe_chain.ProbeWorkset(items)
    *news, taken = together(
        *(lambda seed=seed: work.add_many(seed, 50_000) for seed in range(adders)), lambda: work.take_all(adders)
    )
    assert sum(news) == taken
    assert not any(work.scheduled(number) for number in range(items))


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("io_threads", THREADS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 2, 3, 2)])
def test_no_notification_is_lost(shape: tuple[int, int, int, int], io_threads: int, polls: bool) -> None:
    """Four notifiers, with bursts and with pauses in which the connections come to rest; tasks in between."""
    chain = _probe_chain.ProbeChain(*shape, logs=False, polls=polls)
    chain.start()
    inside = [start(chain.run) for _ in range(io_threads)]
    put = tasks = 0
    for pause in range(10):
        *counts, more = together(
            *(lambda seed=seed: chain.hammer(seed, 20_000, 7) for seed in range(4 * pause, 4 * pause + 4)),
            lambda seed=pause: chain.submit_many(seed, 2_000),
        )
        put, tasks = put + sum(counts), tasks + more
        await_all(chain, shape[0], put, tasks)
    chain.stop()
    for thread in inside:
        result_of(thread)
    assert chain.overlaps == 0
    assert chain.threads == 0


def test_a_later_taker_goes_on() -> None:
    """Threads that are sent away in the midst of it leave nothing behind that later ones do not find."""
    chain = _probe_chain.ProbeChain(4, 1, 2, 2, logs=False)
    chain.start()
    notifiers = [start(lambda seed=seed: chain.hammer(seed, 60_000, 5)) for seed in range(2)]
    for _ in range(20):
        inside = [start(chain.run) for _ in range(2)]
        before = chain.progress
        reach(lambda before=before: chain.progress > before or chain.progress == 120_000)
        chain.stop()
        for thread in inside:
            result_of(thread)
        chain.restart()
    put = sum(result_of(notifier) for notifier in notifiers)
    inside = [start(chain.run) for _ in range(2)]
    reach(lambda: chain.progress == put)
    chain.stop()
    for thread in inside:
        result_of(thread)
    assert chain.overlaps == 0


@pytest.mark.parametrize("polls", [False, True])
def test_connections_close_while_they_are_notified(polls: bool) -> None:
    """Each is disposed of once, with all that is in it, when its queues have let go."""
    count, each = 6, 4
    chain = _probe_chain.ProbeChain(count, 1, 2, 2, logs=False, polls=polls)
    chain.start()
    inside = [start(chain.run) for _ in range(3)]
    together(
        *(lambda seed=seed: chain.hammer(seed, 50_000, 3) for seed in range(2)),
        *(lambda number=number: chain.close(number) for number in range(count)),
    )
    reach(lambda: all(chain.closed(number) for number in range(count)))
    together(
        *(lambda number=number: [chain.forget(number * each + at) for at in range(each)] for number in range(count))
    )
    reach(lambda: chain.disposed() == (2 * count, count, count))
    chain.stop()
    for thread in inside:
        result_of(thread)
    assert chain.overlaps == 0


def test_a_busy_connection_does_not_keep_a_lone_thread_from_the_selector() -> None:
    """One I/O thread, one connection that always has work: an event that only the selector sees is seen."""
    chain = _probe_chain.ProbeChain(2, logs=False, polls=True)
    chain.start()
    chain.put(0, 2**60)
    inside = start(chain.run)
    chain.receive_by_selector(1, 3)
    reach(lambda: chain.figures(1)[3] == 3)
    reach(lambda: chain.progress > 0)
    chain.stop()
    result_of(inside)


def test_a_slow_transport_holds_up_its_own_connection_only() -> None:
    chain = _probe_chain.ProbeChain(2, 1, 2, 1, logs=False, message_size=1_000, buffer_size=65_536)
    chain.start()
    chain.accept(0, 0)
    inside = [start(chain.run) for _ in range(2)]
    put = sum(together(*(lambda seed=seed: chain.hammer(seed, 10_000, 3) for seed in range(2))))
    reach(lambda: chain.waiting(2) == chain.waiting(3) == 0 and not chain.desired(0))
    assert chain.waiting(0) + chain.waiting(1) == put - chain.progress > 0
    chain.accept(0, -1)
    chain.notify(0)
    reach(lambda: chain.progress == put)
    chain.stop()
    for thread in inside:
        result_of(thread)
    assert chain.overlaps == 0
