"""The pace of an I/O thread: when it rests before it polls, and that a rest delays nothing else."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import pytest

from fairsched.amqp.polling.ioloop import Loop
from fairsched.amqp.polling.pacing import BUSY, MANY, Pace, PacedPoll, use_poll

with_epoll = pytest.mark.skipif("not hasattr(__import__('select'), 'epoll')", reason="paces where there is an epoll")

REST = 0.02


class Connection:
    """The progress of a connection."""

    def __init__(self) -> None:
        self.handled, self.under_way = 0, BUSY
        self.pace = Pace(lambda: (self.handled, self.under_way))
        self.pace.rest = REST


def test_a_thread_rests_while_much_is_under_way_and_little_comes() -> None:
    found = Connection()
    assert found.pace.seconds() == REST
    found.handled += MANY - 1
    assert found.pace.seconds() == REST
    found.handled += MANY
    assert found.pace.seconds() == 0
    assert found.pace.seconds() == REST


def test_few_messages_are_not_delayed() -> None:
    found = Connection()
    found.under_way = BUSY - 1
    assert found.pace.seconds() == 0


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
    found.pace.rest = 3600.0
    poll = PacedPoll(found.pace)
    assert poll.poll(0.001) == []
    poll.close()


@with_epoll
def test_a_loop_keeps_to_the_pace() -> None:
    found = Connection()
    loop = Loop()
    use_poll(loop, lambda: PacedPoll(found.pace))
    began = time.monotonic()
    loop.call_later(2 * REST, loop.stop)
    loop.start()
    loop.close()
    assert time.monotonic() - began >= 2 * REST
