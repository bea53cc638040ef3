"""The pace of an I/O thread: when it rests before it polls, and that a rest delays nothing else."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from fairsched.amqp.polling import pacing
from fairsched.amqp.polling.ioloop import Loop
from fairsched.amqp.polling.pacing import BUSY, COUNTED, PART, SHORT, Pace, PacedPoll, use_poll

with_epoll = pytest.mark.skipif("not hasattr(__import__('select'), 'epoll')", reason="paces where there is an epoll")

REST = 0.02


class Connection:
    """The progress of a connection."""

    def __init__(self) -> None:
        self.handled, self.under_way = 0, BUSY
        self.pace = Pace(lambda: (self.handled, self.under_way))
        self.pace.rest = REST


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(pacing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def advance(found: Connection, clock: list[float], seconds: float, rate: float) -> float:
    """Let messages come at a rate, and the thread poll after each rest; return the last rest."""
    found.pace.seconds()
    until = clock[0] + seconds
    while clock[0] < until:
        rest = found.pace.seconds()
        clock[0] += rest or 0.001
        found.handled = int((clock[0] - 1000.0) * rate)
    return found.pace.seconds()


@pytest.mark.parametrize(("rate", "under_way", "period"), [
    (10_000, 800, 800 / PART / 10_000),
    (1_000, 800, REST),  # at the longest
    (1_000_000, 800, SHORT),  # at the shortest
])  # fmt: skip
def test_a_rest_is_a_part_of_the_time_that_messages_take(
    clock: list[float], rate: float, under_way: int, period: float
) -> None:
    found = Connection()
    found.under_way = under_way
    assert advance(found, clock, 3 * COUNTED, rate) == pytest.approx(period, rel=0.3)
    assert found.pace.period == pytest.approx(period, rel=0.3)


def test_the_time_that_the_thread_worked_is_part_of_the_period(clock: list[float]) -> None:
    found = Connection()
    period = advance(found, clock, 3 * COUNTED, 1_000)
    clock[0] += period + 0.75 * period
    assert found.pace.seconds() == pytest.approx(0.25 * period)
    clock[0] += 5 * period
    assert found.pace.seconds() == 0


def test_few_messages_are_not_delayed(clock: list[float]) -> None:
    found = Connection()
    assert advance(found, clock, 3 * COUNTED, 1_000) == pytest.approx(REST)
    found.under_way = BUSY - 1
    clock[0] += REST
    assert found.pace.seconds() == found.pace.period == 0
    found.under_way = BUSY
    assert found.pace.seconds() == pytest.approx(REST)  # the rate is still known


def test_a_thread_rests_only_if_it_was_asked_to() -> None:
    asked: list[None] = []

    def progress() -> tuple[int, int]:
        asked.append(None)
        return 0, BUSY

    assert Pace(progress).seconds() == 0
    assert asked == []


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@with_epoll
def test_what_comes_during_a_rest_is_found_after_it(pipe: tuple[int, int]) -> None:
    found = Connection()
    found.pace.seconds = lambda: REST  # type: ignore[method-assign]
    poll = PacedPoll(found.pace)
    poll.register(pipe[0], select.EPOLLIN)
    os.write(pipe[1], b"x")
    began = time.monotonic()
    assert poll.poll(1.0) == [(pipe[0], select.EPOLLIN)]
    assert time.monotonic() - began >= REST
    poll.close()


@with_epoll
def test_a_rest_is_no_longer_than_the_poll_may_take() -> None:
    found = Connection()
    found.pace.seconds = lambda: 3600.0  # type: ignore[method-assign]
    poll = PacedPoll(found.pace)
    assert poll.poll(0.001) == []
    poll.close()


@with_epoll
def test_a_loop_keeps_to_the_pace() -> None:
    found = Connection()
    found.pace.seconds = lambda: REST  # type: ignore[method-assign]
    loop = Loop()
    use_poll(loop, lambda: PacedPoll(found.pace))
    began = time.monotonic()
    loop.call_later(2 * REST, loop.stop)
    loop.start()
    loop.close()
    assert time.monotonic() - began >= 2 * REST
