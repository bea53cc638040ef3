"""Prefetch: the article's rows and the closed formulas, from the simulator."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.worlds_of_one import article

from fairsched.prefetch import analyse
from fairsched.simulator import Change, simulate

MS = 1_000_000

#: Prefetch, delay and service in ms; then, of the first message that is not of the first window: when it arrives, how
#: many wait then, when it starts; and in the steady state: utilisation, wait and latency in ms.
ROWS = [
    pytest.param(1, 50, 4, 104, 0, 104, Fraction(4, 104), 0, 50, id="1"),
    pytest.param(26, 50, 4, 104, 0, 104, Fraction(1), 0, 50, id="3"),
    pytest.param(25, 50, 4, 104, 0, 104, Fraction(100, 104), 0, 50, id="3b-25"),
    pytest.param(27, 50, 4, 104, 1, 108, Fraction(1), 4, 54, id="3b-27"),
    pytest.param(26, 100, 4, 204, 0, 204, Fraction(104, 204), 0, 100, id="4"),
    pytest.param(51, 100, 4, 204, 0, 204, Fraction(1), 0, 100, id="5"),
    pytest.param(50, 100, 4, 204, 0, 204, Fraction(200, 204), 0, 100, id="5-50"),
    pytest.param(51, 50, 4, 104, 25, 204, Fraction(1), 100, 150, id="6"),
    pytest.param(26, 50, 40, 140, 22, 1040, Fraction(1), 900, 950, id="7"),
    pytest.param(51, 50, 40, 140, 47, 2040, Fraction(1), 1900, 1950, id="8"),
    pytest.param(26, 50, 20, 120, 20, 520, Fraction(1), 400, 450, id="9b-26"),
    pytest.param(51, 50, 20, 120, 45, 1020, Fraction(1), 900, 950, id="9b-51"),
]


@pytest.mark.parametrize(
    ("prefetch", "delay", "service", "arrives", "ahead", "starts", "utilisation", "wait", "latency"), ROWS
)
def test_the_articles_rows(
    prefetch: int,
    delay: int,
    service: int,
    arrives: int,
    ahead: int,
    starts: int,
    utilisation: Fraction,
    wait: int,
    latency: int,
) -> None:
    found = simulate(article(prefetch, delay / 1000, service / 1000, histories=prefetch + 1))
    client, first = found.consumers[0], found.histories[prefetch]
    assert (first["arrived"], first["ahead"], first["started"]) == (arrives * MS, ahead, starts * MS)
    assert client.utilisation == pytest.approx(float(utilisation), abs=1e-9)
    assert (client.wait.least, client.wait.mean, client.wait.largest) == pytest.approx([wait / 1000] * 3, abs=1e-9)
    assert (client.latency.least, client.latency.largest) == pytest.approx([latency / 1000] * 2, abs=1e-9)
    # Both ways to count: whole messages ahead, and with what was left of the one being handled (rows 7 and 8).
    theory = analyse(prefetch, delay / 1000, service / 1000)
    assert first["ahead"] == theory.waiting_ahead
    assert first["ahead"] * service / 1000 == pytest.approx(theory.whole_message_wait, abs=1e-9)
    assert (first["started"] - first["arrived"]) / 1e9 == pytest.approx(theory.exact_wait, abs=1e-9)


@pytest.mark.parametrize("service", [4, 20, 40])
@pytest.mark.parametrize("delay", [50, 100])
def test_the_closed_formulas(delay: int, service: int) -> None:
    for prefetch in range(1, 61):
        found = simulate(article(prefetch, delay / 1000, service / 1000, histories=prefetch + 1))
        client, first = found.consumers[0], found.histories[prefetch]
        theory = analyse(prefetch, delay / 1000, service / 1000)
        assert client.utilisation == pytest.approx(theory.utilisation, abs=1e-9)
        assert found.throughput == pytest.approx(theory.throughput, abs=1e-9)
        assert (client.wait.least, client.wait.largest) == pytest.approx([theory.exact_wait] * 2, abs=1e-9)
        assert client.latency.mean == pytest.approx(theory.latency, abs=1e-9)
        assert first["ahead"] == theory.waiting_ahead


def test_from_an_empty_client() -> None:
    """Row 11: the first window arrives at once, and waits up to 200 ms; then every message waits 100."""
    found = simulate(article(51, 0.05, 0.004, full=False, duration=10.0, histories=1000))
    waits = (found.histories["started"] - found.histories["arrived"]) // MS
    assert set(found.histories["arrived"][:51]) == {50 * MS}
    assert waits[:51].tolist() == list(range(0, 204, 4))
    assert set(waits[51:]) == {100}
    assert found.consumers[0].wait.largest == analyse(51, 0.05, 0.004).cold_start_wait


def test_the_network_slows_down() -> None:
    """Row 4 as a change: 26 messages starve at 51 % from then on, and recover when it is over."""
    slow = [Change(at=10.4, delay=0.1), Change(at=51.2, delay=0.05)]
    base = article(26, 0.05, 0.004, duration=100.0)
    changed = base.replaced({"changes": [{"at": change.at, "delay": change.delay} for change in slow]})
    for window, expected in (((12.0, 12.0 + 0.204 * 180), 104 / 204), ((60.0, 60.0 + 0.104 * 300), 1.0)):
        found = simulate(changed.replaced({"warmup": window[0], "duration": window[1]}))
        assert found.consumers[0].utilisation == pytest.approx(expected, abs=1e-9)


def test_several_workers_divide_the_service_time() -> None:
    found = simulate(article(26, 0.05, 0.016).replaced({"consumers.client.workers": 4}))
    assert found.consumers[0].utilisation == pytest.approx(26 * 0.016 / 0.116 / 4, abs=1e-9)
