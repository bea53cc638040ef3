"""Consumers that join, leave and fail: which gets what, and that nothing is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from support.worlds import scenarios

from fairsched.simulator import Broker, ConsumerSpec, Queue, Scenario, load_scenario, simulate


def two(**second: object) -> Scenario:
    """100 messages, two consumers 10 ms away, of which the second does as told."""
    return Scenario(
        brokers=[Broker(delay=0.01)],
        queues=[Queue("orders", arrivals="none", depth=100)],  # type: ignore[arg-type]
        consumers=[
            ConsumerSpec(name="first", prefetch=10, service=0.005),
            ConsumerSpec(name="second", prefetch=10, service=0.005, **second),  # type: ignore[arg-type]
        ],
        duration=10.0,
        histories=1000,
    )


def test_consumers_are_served_in_turn() -> None:
    found = simulate(two())
    assert [consumer.served for consumer in found.consumers] == [50, 50]
    first = found.histories[found.histories["arrived"] == 10_000_000]
    assert sorted(first[first["consumer"] == 0]["number"]) == list(range(0, 20, 2))


def test_unlimited_prefetch_leaves_nothing_for_a_second_consumer() -> None:
    """Row 10 of the article."""
    found = simulate(load_scenario("unlimited-prefetch"))
    assert [consumer.served for consumer in found.consumers] == [10_000, 0]
    assert found.timeline.depth.max() == 0
    limited = simulate(load_scenario("second-consumer"))
    assert limited.consumer("second").served > 4_800
    assert limited.served == 10_000


def test_a_consumer_that_leaves_sends_back_what_it_has_not_begun() -> None:
    found = simulate(two(leaves=0.052))
    assert found.served == 100
    assert found.consumer("second").served == 9  # begun at 10, 15, …, 50 ms
    assert found.queues[0].repeated == 0
    assert found.consumer("second").present == pytest.approx(0.055)
    assert found.consumer("first").redelivered > 0


def test_a_failed_consumer_has_its_messages_handled_again() -> None:
    found = simulate(two(fails=0.052))
    # Handled at 15, …, 50 ms; those after 42 - 10 ms were not acknowledged in time, and are handled again.
    assert found.consumer("second").served == 8
    assert found.queues[0].repeated == 2
    assert found.served == 102
    assert sorted({*found.histories["number"].tolist()}) == list(range(100))
    assert found.consumer("second").present == pytest.approx(0.052)


def test_a_failed_consumer_may_join_again() -> None:
    scenario = two(fails=0.052)
    again = Scenario.from_dict(scenario.to_dict() | {"changes": [{"at": 0.06, "consumer": "second", "action": "join"}]})
    found = simulate(again)
    assert found.served == 102
    assert found.consumer("second").served > 40


@given(scenarios())
def test_nothing_is_lost(scenario: Scenario) -> None:
    """Whatever comes into a queue is handled, once unless a consumer fails, as long as one stays to do it."""
    longer = scenario.replaced({"messages": None, "duration": 2.0, "histories": 100_000})
    failing = any(spec.fails is not None for spec in longer.consumers)
    shedding = any(spec.codel is not None for spec in longer.consumers)
    changing = any(change.arrivals is not None for change in longer.changes)
    found = simulate(longer)
    for index, (queue, spec) in enumerate(zip(found.queues, longer.queues, strict=True)):
        own = found.histories[found.histories["queue"] == index]
        distinct = len(set(own["number"].tolist()))
        assert (len(own), distinct) == (queue.served, queue.served - queue.repeated)
        for earlier, later in itertools.pairwise(("created", "sent", "arrived", "started", "handled")):
            assert (own[earlier] <= own[later]).all()
        if spec.endless:
            continue
        assert distinct <= queue.came
        if not failing:
            assert queue.repeated == 0
            assert queue.served + queue.ready <= queue.came
        stays = any(
            one.leaves is None and one.fails is None and queue.name in (one.queues or [queue.name])
            for one in longer.consumers
        )
        if stays and not shedding and not changing and spec.arrivals.kind in ("none", "trace"):
            assert distinct == queue.came
