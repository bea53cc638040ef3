"""CoDel in the simulator: the figures of a lone consumer, the guards, and what a peer gains."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from oracles.simulator import ReferenceSimulator
from support.worlds_of_one import article

from fairsched.simulator import Result, Scenario, load_scenario, simulate
from fairsched.simulator.plan import make_plan

#: A lone consumer whose handler slows from 4 ms to 20 or 40 at 10 s, target 100 ms, interval 20 ms, RFC law, 60 s.
SLOW = [pytest.param("20ms", 4987, 8863, 0.180, id="20ms"), pytest.param("40ms", 3737, 9609, 0.228, id="40ms")]


def alone(service: str) -> Scenario:
    return load_scenario("codel-alone").replaced({"changes.0.service": service, "histories": 10_000})


@pytest.mark.parametrize(("service", "served", "returned", "longest"), SLOW)
def test_a_lone_consumer_gets_its_messages_straight_back(
    service: str, served: int, returned: int, longest: float
) -> None:
    """The model's figures, all of them: handled, sent back, longest wait (0.9 and 1.9 s without the law)."""
    found = simulate(alone(service))
    slot = found.slots[0]
    assert (slot.served, slot.returned) == (served, returned)
    assert slot.wait.largest == pytest.approx(longest, abs=1e-9)
    without = simulate(alone(service).replaced({"consumers.client.codel": None}))
    assert without.slots[0].wait.largest == pytest.approx(0.9 if service == "20ms" else 1.9, abs=1e-9)
    assert (without.slots[0].served, without.slots[0].returned) == (served, 0)


class LastReturnedFirst(ReferenceSimulator):
    """A broker that puts what comes back in front, instead of at its place."""

    returns = 0

    def give_back(self, index: int, message: Any) -> None:
        type(self).returns -= 1
        self.seen = getattr(self, "seen", set()) | {message}
        heapq.heappush(self.queues[index].back, (type(self).returns, id(message), message))


@pytest.mark.parametrize(("service", "in_place", "in_front"), [("20ms", 233, 19), ("40ms", 15, 209)])
def test_how_often_one_message_bounces(service: str, in_place: int, in_front: int) -> None:
    """19 and 209 times at a broker that puts it in front; 233 and 15 at its place, where RabbitMQ puts it."""
    assert simulate(alone(service)).slots[0].most_returns == in_place
    oracle = LastReturnedFirst(make_plan(alone(service)))
    oracle.run()
    assert oracle.slots[0].returned == (8863 if service == "20ms" else 9609)
    assert max(message.returns for message in oracle.seen) == in_front


def test_the_law_pauses_for_a_lone_consumer_unless_asked() -> None:
    found = simulate(alone("20ms").replaced({"consumers.client.codel.alone": False}))
    assert found.slots[0].returned == 0
    assert found.slots[0].wait.largest == pytest.approx(0.9, abs=1e-9)


@pytest.mark.parametrize("budget", [1, 3, 10])
def test_no_message_goes_back_more_often_than_its_budget(budget: int) -> None:
    found = simulate(alone("20ms").replaced({"consumers.client.codel.budget": budget}))
    assert found.histories["returns"].max() == found.slots[0].most_returns == budget
    assert found.slots[0].spared > 0


def test_wait_equal_to_target_counts_as_above() -> None:
    """The article's own parameters: 51 messages wait exactly 100 ms, and a target of 100 ms sends them back."""
    for target, returned in (("100ms", True), ("100.001ms", False)):
        scenario = article(51, 0.05, 0.004, warmup=1.0, duration=20.0).replaced(
            {"consumers.client.codel": {"target": target, "interval": "20ms", "alone": True}}
        )
        assert (simulate(scenario).slots[0].returned > 0) == returned


def test_dead_letters_leave_the_queue() -> None:
    scenario = alone("20ms").replaced(
        {"consumers.client.codel.dead_letter": True, "queues.orders.arrivals": "none", "queues.orders.depth": 4000}
    )
    found = simulate(scenario)
    assert found.served + found.queues[0].returned == 4000
    assert found.queues[0].redelivered == 0
    assert found.histories["returns"].max() == 0


def slow_consumer_s_wait(found: Result) -> float:
    return found.consumer("slow").wait.percentile(99)


def test_a_peer_gains_by_the_law() -> None:
    """Ten times as slow, with an idle peer: the wait falls by more than 5, throughput stays, nothing is lost."""
    without, shedding = simulate(load_scenario("spike")), simulate(load_scenario("codel-spike"))
    assert slow_consumer_s_wait(without) > 5 * slow_consumer_s_wait(shedding)
    assert without.queues[0].wait.percentile(99) > 10 * shedding.queues[0].wait.percentile(99)
    assert shedding.throughput == pytest.approx(without.throughput, rel=0.05)
    assert shedding.slots[0].most_returns <= 3
    assert shedding.queues[0].repeated == 0


def test_what_comes_back_goes_to_both() -> None:
    """The broker knows nothing of slow and idle: the age, with all its detours, falls by much less than the wait."""
    without, shedding = simulate(load_scenario("spike")), simulate(load_scenario("codel-spike"))
    gain = without.queues[0].age.percentile(99) / shedding.queues[0].age.percentile(99)
    assert 1.5 < gain < 3
