"""Scaling by the time to drain against scaling by the length of the queue, in the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.autoscaling import Autoscaler, Outcome, Phase, by_drain_time, by_length

PAGE = Path(__file__).parents[2] / "docs/howto/scaling.md"

#: The 95th percentile of the wait that is allowed in each phase, in seconds.
ALLOWED = 120.0
#: What KEDA is told to aim at, in seconds, and the lengths for each pod to compare with.
TARGET, LENGTHS = 25.0, (4, 8, 12, 16)
WORKERS, MOST = 2, 20

PHASES = (
    Phase("short", 450, 8, 0.2),
    Phase("flood", 450, 40, 0.2),
    Phase("few", 450, 3, 0.2),
    Phase("long", 900, 0.4, 20),
    Phase("short again", 450, 8, 0.2),
)


@pytest.fixture(scope="module", params=[1, 2], ids=["one seed", "another"])
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Return what came of each policy, with the same messages."""
    policies = {f"{TARGET:g} s": by_drain_time(TARGET, WORKERS)}
    policies |= {f"{length} messages": by_length(length) for length in LENGTHS}
    return {
        name: Autoscaler(PHASES, policy, workers=WORKERS, most=MOST, seed=request.param).run()
        for name, policy in policies.items()
    }


@pytest.mark.slow
def test_the_wait_is_kept_with_four_fifths_of_the_workers(outcomes: dict[str, Outcome]) -> None:
    drain, *lengths = outcomes.values()
    assert drain.longest <= ALLOWED
    keeping = [outcome for outcome in lengths if outcome.longest <= ALLOWED]
    assert keeping
    assert len(keeping) < len(lengths)  # a longer one, which would cost less, would not keep it
    assert drain.worker_seconds <= 0.8 * min(outcome.worker_seconds for outcome in keeping)


@pytest.mark.slow
def test_the_printed_figures(outcomes: dict[str, Outcome], request: pytest.FixtureRequest) -> None:
    """The figures of the first seed; another C library may round a random number otherwise."""
    rows = re.findall(r"(?m)^\| (\d+ \w+)[^|]*\| ([\d ]+) s \| (\d+) s \| (\d+) \|$", PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in rows] == list(outcomes)
    if "one seed" in request.node.name:
        for name, seconds, wait, most in rows:
            found = outcomes[name]
            assert int(seconds.replace(" ", "")) == pytest.approx(found.worker_seconds, rel=0.02)
            assert int(wait) == pytest.approx(found.longest, rel=0.05)
            assert int(most) == pytest.approx(found.most_pods, abs=1)


def test_a_simulation_repeats_the_past() -> None:
    """What was decided later changes nothing before: or a loop that starts anew each time would not be one."""
    short = Autoscaler(PHASES[:2], by_drain_time(TARGET, WORKERS), workers=WORKERS, most=MOST)
    short.run()
    long = Autoscaler(PHASES[:3], by_drain_time(TARGET, WORKERS), workers=WORKERS, most=MOST)
    long.run()
    end = PHASES[0].seconds + PHASES[1].seconds
    assert [pod.created for pod in long.pods if pod.created < end] == [pod.created for pod in short.pods]
    assert len(short.pods) > 3
