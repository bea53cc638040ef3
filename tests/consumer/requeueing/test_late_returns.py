"""Returned messages that come back late: what shows that their queue delays them, and what does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.spec import Basic, BasicProperties

from fairsched.consumer.requeueing.late_returns import LateReturns
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel


def message(body: bytes, tag: int, arrived: float, acquired: int | None) -> Message:
    """A message that was delivered `acquired` times before; None: its queue does not count."""
    headers = {"x-acquired-count": acquired} if acquired else {}
    redelivered = acquired != 0
    delivery = Basic.Deliver("tag", tag, redelivered, "", "q")
    return Message(body, tag, redelivered, delivery, BasicProperties(headers=headers), FakeChannel("q"), arrived)


class Returned:
    """A consumer that returns one message after the other, which come back, all after as many seconds."""

    def __init__(self) -> None:
        self.found = LateReturns()
        self.now = time.monotonic()
        self.tag = 0

    def one(self, seconds: float = 2.0, acquired: int | None = 1, tag: int | None = None) -> None:
        self.tag += 1
        body = b"%d" % self.tag
        self.found.returning(message(body, self.tag, self.now, 0))
        self.tag += 1
        back = self.tag if tag is None else tag
        self.now = time.monotonic() + seconds
        self.found.look(message(body, back, self.now, acquired))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_two_late_ones_are_warned_about_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = Returned()
    clock = returned.now
    monkeypatch.setattr("fairsched.consumer.requeueing.late_returns.time.monotonic", lambda: clock)
    returned.one()
    assert not warnings(caplog)
    clock += 10
    returned.one()
    [said] = warnings(caplog)
    assert said.startswith("queue 'q' delays messages that this consumer returns: one came back after 2 s")
    for _ in range(3):
        clock += 10
        returned.one()
    assert len(warnings(caplog)) == 1
    returned.found.forget("q")
    for _ in range(2):
        clock += 10
        returned.one()
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize(
    "one",
    [
        lambda returned: returned.one(seconds=0.5),
        lambda returned: returned.one(acquired=2),  # another consumer had it
        lambda returned: returned.one(tag=0),  # on another channel
        lambda returned: returned.one(acquired=None),  # a classic queue
    ],
    ids=["soon", "had by another", "another channel", "no count"],
)
def test_what_proves_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, one: Callable[[Returned], Any]
) -> None:
    returned = Returned()
    clock = returned.now
    monkeypatch.setattr("fairsched.consumer.requeueing.late_returns.time.monotonic", lambda: clock)
    for _ in range(4):
        clock += 10
        one(returned)
    assert not warnings(caplog)


def test_other_returned_messages_may_go_before(caplog: pytest.LogCaptureFixture) -> None:
    """They are delivered first, and fill the window."""
    found, now = LateReturns(), time.monotonic()
    for number in range(4):
        body = b"%d" % number
        found.returning(message(body, 3 * number + 1, now, 0))
        found.look(message(b"another", 3 * number + 2, now + 1.5 + number, 7))
        found.look(message(body, 3 * number + 3, now + 3 + number, 1))
    assert not warnings(caplog)


def test_nothing_comes_without_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    found, now = LateReturns(), time.monotonic()
    for number in range(4):
        body = b"%d" % number
        found.returning(message(body, 1, now, 0))
        found.connected()
        found.look(message(body, 2, now + 60 * (1 + number), 1))
    assert not warnings(caplog)
