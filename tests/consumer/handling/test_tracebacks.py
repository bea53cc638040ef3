"""The number of tracebacks of failing messages, over more of them than are remembered."""

from __future__ import annotations

import functools

from fairsched.consumer.handling import failures
from fairsched.consumer.handling.failures import Tracebacks
from fairsched.testing import FakeConsumer

message = functools.partial(FakeConsumer().put, queue="q")


def test_each_failure_has_one() -> None:
    shown = Tracebacks()
    assert shown.due(message(b"a", redelivered=True), ValueError())
    assert not shown.due(message(b"a", redelivered=True), ValueError())
    assert shown.due(message(b"a", redelivered=True), KeyError())
    assert shown.due(message(b"a", redelivered=True, queue="other"), ValueError())
    assert shown.due(message(b"a"), ValueError())
    assert not shown.due(message(b"a", redelivered=True), ValueError())


def test_what_is_remembered_is_bounded() -> None:
    shown = Tracebacks()
    for number in range(3 * failures._REMEMBERED):
        assert shown.due(message(b"%d" % number), ValueError())
    assert len(shown._shown) == failures._REMEMBERED
    assert not shown.due(message(b"%d" % number, redelivered=True), ValueError())
    assert shown.due(message(b"0", redelivered=True), ValueError())
