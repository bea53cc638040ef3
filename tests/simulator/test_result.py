"""Results: distributions, the timeline, the warm-up, what JSON shows, and memory that does not grow."""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds_of_one import article, ten_queues

from fairsched.simulator import (
    Arrivals,
    Broker,
    Change,
    ConsumerSpec,
    Distribution,
    Queue,
    Scenario,
    Service,
    load_scenario,
    simulate,
)


def distribution(values: list[int]) -> Distribution:
    found, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    return Distribution(found, counts, True, sum(values), min(values, default=0), max(values, default=0))


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 100))
def test_percentiles_are_of_the_nearest_rank(values: list[int], percent: float) -> None:
    rank = max(1, math.ceil(percent / 100 * len(values)))
    assert distribution(values).percentile(percent) == sorted(values)[rank - 1] / 1e9


@given(st.lists(st.lists(st.integers(0, 1000)), max_size=4))
def test_merging(parts: list[list[int]]) -> None:
    together = [value for part in parts for value in part]
    assert Distribution.merged(map(distribution, parts)) == distribution(together)


def test_nothing_has_no_percentile() -> None:
    nothing = distribution([])
    assert (nothing.count, nothing.mean, nothing.percentile(99), nothing.error) == (0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="from 0 to 100, got 101"):
        nothing.percentile(101)
    assert distribution([1]) != 1


def test_many_values_go_into_buckets_of_the_stated_width() -> None:
    scenario = Scenario(
        queues=[Queue("q", arrivals=Arrivals.poisson(80))],
        consumers=[ConsumerSpec(prefetch=0, service=Service.exponential(0.01))],
        duration=500.0,
        histories=100_000,
    )
    found = simulate(scenario)
    exact = np.sort(found.histories["started"] - found.histories["arrived"])
    wait = found.queues[0].wait
    assert not wait.exact
    assert wait.error == 1 / 256
    # The last message was started and not handled, perhaps.
    assert wait.count in (len(exact), len(exact) + 1)
    if wait.count == len(exact):
        assert wait.mean == pytest.approx(exact.mean() / 1e9, rel=1e-12)
        assert wait.largest == exact[-1] / 1e9
    for percent in (50, 60, 75, 90, 99, 99.9):
        rank = max(1, math.ceil(percent / 100 * len(exact)))
        assert wait.percentile(percent) == pytest.approx(exact[rank - 1] / 1e9, rel=1 / 256 + 1e-3)


def test_small_runs_are_exact() -> None:
    found = simulate(load_scenario("random-service").replaced({"warmup": 0, "duration": 45.0, "histories": 5000}))
    waits = np.sort(found.histories["started"] - found.histories["arrived"])
    assert found.queues[0].wait.exact
    assert found.queues[0].wait.count <= 4096
    if found.queues[0].wait.count == len(waits):
        assert found.queues[0].wait.percentile(99) == waits[math.ceil(0.99 * len(waits)) - 1] / 1e9


def test_json() -> None:
    found = simulate(load_scenario("noisy-tenant").replaced({"duration": 30.0}))
    table = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(table) == [
        "name", "seed", "seconds", "events", "served", "throughput", "jain", "queues", "consumers", "timeline",
    ]  # fmt: skip
    assert "timeline" not in found.to_dict(timeline=False)
    assert [queue["name"] for queue in table["queues"]] == ["noisy", "web", "mail"]
    assert set(table["queues"][0]["wait"]) == {"count", "mean", "min", "max", "p50", "p90", "p99", "p999", "exact"}
    assert len(table["timeline"]["times"]) == len(table["timeline"]["depth"]) == 200
    assert sum(queue["share"] for queue in table["queues"]) == pytest.approx(1)


def test_names() -> None:
    found = simulate(load_scenario("spike").replaced({"duration": 11.0}))
    assert found.queue("orders").name == "orders"
    assert found.consumer("idle").name == "idle"
    with pytest.raises(KeyError, match="unknown queue 'x'; known: orders"):
        found.queue("x")
    clone = pickle.loads(pickle.dumps(found))
    assert clone.to_dict() == found.to_dict()
    assert clone.slots == found.slots


def test_the_warm_up_does_not_count() -> None:
    """A handler ten times as slow for the first second."""
    base = article(26, 0.05, 0.004, duration=10.0)
    slow_start = Scenario.from_dict(
        base.to_dict() | {"changes": [{"at": 0, "service": 0.04}, {"at": 1, "service": 0.004}]}
    )
    warm = simulate(slow_start.replaced({"warmup": 2.0}))
    assert warm.consumers[0].wait.largest == 0.0
    assert warm.consumers[0].utilisation == 1.0
    assert (warm.seconds, warm.served) == (8.0, 2000)
    assert simulate(slow_start).consumers[0].wait.largest > 0.1


def test_the_timeline_shows_what_happened() -> None:
    found = simulate(load_scenario("slow-network").replaced({"timeline": 60, "duration": 60.0}))
    line = found.timeline
    assert line.times.tolist() == pytest.approx([float(second) for second in range(1, 61)])
    assert line.utilisation[5:20, 0] == pytest.approx([1.0] * 15)
    assert line.utilisation[25:, 0].mean() == pytest.approx(104 / 204, rel=0.01)
    assert line.rate.sum() * 1.0 == found.served
    assert (line.returned == 0).all()
    buffered = simulate(load_scenario("buffer-bloat")).timeline.buffered
    assert buffered[10:].min() >= 24
    assert buffered[10:].max() <= 26


def test_the_timeline_of_a_run_without_an_end_in_time_thins_out() -> None:
    spec = ConsumerSpec(prefetch=50, service=0.0001)
    found = simulate(ten_queues(spec, 0.00025, messages=20_000, timeline=64))
    gaps = np.diff(found.timeline.times)
    assert 32 <= len(found.timeline.times) <= 64
    assert gaps == pytest.approx([gaps[0]] * len(gaps))
    assert found.timeline.times[-1] <= found.seconds
    assert found.timeline.rate.sum(axis=1).mean() == pytest.approx(10_000, rel=0.01)


def test_what_ends_by_itself() -> None:
    """With nothing more to come, a run without a duration ends when the last event has been."""
    scenario = Scenario(
        brokers=[Broker(delay=0.01)],
        queues=[Queue("q", arrivals=Arrivals.none(), depth=3)],
        consumers=[ConsumerSpec(service=0.01)],
        messages=100,
    )
    found = simulate(scenario)
    assert found.served == 3
    assert found.seconds == pytest.approx(0.05)


@pytest.mark.slow
def test_memory_does_not_grow_with_simulated_time() -> None:
    """The peak of this process, after a run of ten thousand messages, and after one of eight million."""
    import resource

    def peak_after(duration: float) -> int:
        simulate(load_scenario("random-service").replaced({"duration": duration, "warmup": 0}))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    small = peak_after(1_000.0)
    assert peak_after(100_000.0) - small < 4_000_000


@pytest.mark.slow
def test_threads_simulate_side_by_side() -> None:
    """The GIL is released: while a long simulation runs, this thread goes on."""
    scenario = load_scenario("random-service").replaced({"duration": 100_000.0})
    ticks: list[float] = []
    done = threading.Event()

    def run() -> None:
        simulate(scenario)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.wait(0.001):
        ticks.append(time.perf_counter())
    thread.join()
    assert len(ticks) > 20


def test_changes_of_rate_and_quantum() -> None:
    spec = ConsumerSpec(prefetch=20, service=0.001, hold=True)
    base = ten_queues(spec, 0.0005, duration=4.0, warmup=2.0)
    changed = Scenario.from_dict(base.to_dict() | {"changes": [{"at": 1.0, "queue": "p0", "quantum": 40}]})
    shares = {queue.name: queue.served for queue in simulate(changed).queues}
    assert shares["p0"] == pytest.approx(shares["p9"], rel=0.05)
    slowed = Scenario.from_dict(base.to_dict() | {"changes": [{"at": 1.0, "rate": 100}]})
    assert simulate(slowed).throughput == pytest.approx(100, rel=0.02)
    assert isinstance(slowed.changes[0], Change)
