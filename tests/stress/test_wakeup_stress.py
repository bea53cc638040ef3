"""The policy of wake-ups under threads: work is added, taken, handed over and never left beside a sleeper."""

from __future__ import annotations

import threading

import pytest
from support.threads import result_of, start

from fairsched import _probe_wakeup

pytestmark = pytest.mark.stress

NOT_INTERESTED = 8


@pytest.mark.parametrize("priorities", [(0, 0), (0, 0, 0, 0, 0, 0, 0, 0), (3, 2, 1, 0), (1, 0, 1, 0, 1, 0, 1, 0)])
def test_no_work_is_left_beside_one_that_sleeps(priorities: tuple[int, ...]) -> None:
    probe = _probe_wakeup.ProbeWakeup()
    for priority in priorities:
        probe.add(priority)
    threads = min(4, len(priorities))
    each, total = len(priorities) // threads, 0
    for turn in range(20):
        ready = threading.Barrier(threads)

        def hammer(me: int, turn: int = turn, ready: threading.Barrier = ready) -> int:
            ready.wait()
            return probe.hammer(turn * threads + me, 5_000, me * each, (me + 1) * each)

        total += sum(result_of(started) for started in [start(lambda me=me: hammer(me)) for me in range(threads)])
        taken, left = probe.finish()
        assert total == taken + left
        assert left == 0 or {probe.state(number) for number in range(len(priorities))} == {NOT_INTERESTED}
        assert probe.valid
