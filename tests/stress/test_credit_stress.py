"""One credit manager, used and restored by threads that start together."""

from __future__ import annotations

import threading

import pytest
from support.threads import result_of, start

from fairsched import _probe_credit

pytestmark = pytest.mark.stress


@pytest.mark.parametrize(("messages", "size"), [(0, 0), (2, 0), (0, 5), (3, 7)])
def test_nothing_is_used_twice_or_lost(messages: int, size: int) -> None:
    """All credit is back at the end, and every refusal or last use is followed by one announcement at most."""
    credit, ready = _probe_credit.ProbeCredit(messages, size), threading.Barrier(4)

    def run() -> tuple[int, int, int, int]:
        ready.wait()
        return credit.hammer(50_000, 3)

    outcomes = [result_of(thread) for thread in [start(run) for _ in range(4)]]
    used, refused, spent, regained = (sum(column) for column in zip(*outcomes, strict=True))
    assert used + refused == 4 * 50_000
    assert credit.left == (messages, size)
    assert credit.has()
    assert regained <= spent + refused
