"""How many tracebacks failing messages have, over more of them than are remembered."""

from __future__ import annotations

from typing import NamedTuple

from fairsched.consumer import tracebacks
from fairsched.consumer.tracebacks import Tracebacks


class Message(NamedTuple):
    body: bytes
    redelivered: bool = False
    queue: str = "q"


def test_each_failure_has_one() -> None:
    shown = Tracebacks()
    assert shown.due(Message(b"a", redelivered=True), ValueError())
    assert not shown.due(Message(b"a", redelivered=True), ValueError())
    assert shown.due(Message(b"a", redelivered=True), KeyError())
    assert shown.due(Message(b"a", redelivered=True, queue="other"), ValueError())
    assert shown.due(Message(b"a"), ValueError())
    assert not shown.due(Message(b"a", redelivered=True), ValueError())


def test_what_is_remembered_is_bounded() -> None:
    shown = Tracebacks()
    for number in range(3 * tracebacks._REMEMBERED):
        assert shown.due(Message(b"%d" % number), ValueError())
    assert len(shown._shown) == tracebacks._REMEMBERED
    assert not shown.due(Message(b"%d" % number, redelivered=True), ValueError())
    assert shown.due(Message(b"0", redelivered=True), ValueError())
