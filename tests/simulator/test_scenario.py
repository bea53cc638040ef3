"""Scenarios: frozen, picklable, from tables and back, and everything that does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support.worlds import scenarios

from fairsched.errors import ConfigurationError
from fairsched.simulator import (
    Arrivals,
    Broker,
    Change,
    ConsumerSpec,
    Queue,
    Scenario,
    Service,
    Shedding,
    load_scenario,
    simulate,
)


@given(scenarios())
def test_there_and_back(scenario: Scenario) -> None:
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    assert hash(pickle.loads(pickle.dumps(scenario))) == hash(scenario)
    assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario
    assert scenario.replaced({}) == scenario


def small(**more: Any) -> dict[str, Any]:
    return {"duration": 1, "queues": [{"name": "q"}], "consumers": [{"name": "c"}]} | more


def test_from_flat() -> None:
    flat = {
        "duration": "60s",
        "seed": 7,
        "broker.delay": 0.05,
        "queues.gold.quantum": 4,
        "queues.free.arrivals.kind": "poisson",
        "queues.free.arrivals.rate": 10,
        "consumers.app.prefetch": 26,
        "consumers.app.service": "4ms",
        "consumers.app.codel": None,
        "changes.0.at": "20s",
        "changes.0.delay": "100ms",
    }
    assert Scenario.from_flat(flat) == Scenario(
        brokers=[Broker(delay=0.05)],
        queues=[Queue("gold", quantum=4), Queue("free", arrivals=Arrivals.poisson(10))],
        consumers=[ConsumerSpec(name="app", prefetch=26, service=Service.constant(0.004))],
        changes=[Change(at=20.0, delay=0.1)],
        duration=60.0,
        seed=7,
    )


def test_replaced() -> None:
    base = load_scenario("codel-spike")
    changed = base.replaced(
        {
            "broker.delay": "10ms",
            "consumers.*.prefetch": 7,
            "consumers.slow.codel.target": "1ms",
            "queues.orders.arrivals.rate": 50,
            "changes.0.service": {"kind": "exponential", "mean": "9ms"},
            "seed": 3,
        }
    )
    assert changed.brokers[0].delay == 0.01
    assert [consumer.prefetch for consumer in changed.consumers] == [7, 7]
    assert changed.consumers[0].codel == Shedding(target=0.001, interval=0.02)
    assert changed.queues[0].arrivals == Arrivals.poisson(50)
    assert changed.changes[0].service == Service.exponential(0.009)
    assert (changed.seed, base.seed) == (3, 0)
    assert base.replaced({"consumers.slow.codel": None}).consumers[0].codel is None


def test_one_table_or_many_and_by_name() -> None:
    assert Scenario.from_dict(small(broker={"delay": "5ms"})) == Scenario.from_dict(small(brokers=[{"delay": 0.005}]))
    assert Scenario.from_dict(small(queues={"q": {"quantum": 2}})).queues == (Queue("q", quantum=2),)


def test_a_trace_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("time\n1\n2\n", encoding="utf-8")
    (tmp_path / "mine.toml").write_text(
        """
        duration = "5s"
        [[queues]]
        name = "q"
        arrivals = { kind = "trace", path = "load.csv" }
        [[consumers]]
        name = "c"
        """,
        encoding="utf-8",
    )
    scenario = load_scenario(tmp_path / "mine.toml")
    assert scenario.name == "mine"
    assert scenario.queues[0].arrivals == Arrivals.trace([0.0, 1.0])
    assert simulate(scenario).served == 2
    assert load_scenario(str(tmp_path / "mine.toml")) == scenario


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "a scenario needs queues, got nothing"),
    ({"queues": [{}]}, "a scenario needs consumers"),
    (small(queues=[]), "a scenario needs queues, got none"),
    (small(duration=None), "needs a duration or a number of messages"),
    (small(duration=0), "duration must be at least a nanosecond"),
    (small(duration="5 weeks"), "duration must be a number of seconds"),
    (small(warmup=1), "warmup must be shorter than the duration, 1 s, got 1 s"),
    (small(messages=0), "messages must be a whole number from 1"),
    (small(seed=-1), "seed must be a whole number from 0"),
    (small(timeline=1), "timeline must be a whole number from 2"),
    (small(speed=1), "a scenario has no field 'speed'"),
    (small(broker={}, brokers=[{}]), "either broker or brokers"),
    (small(queues=[{"name": "q"}, {"name": "q"}]), "queue names must be unique, got 'q' twice"),
    (small(queues=[{"name": "q", "broker": "b"}]), "queue 'q': unknown broker 'b'; known: broker"),
    (small(queues=[{"name": "q", "quantum": 0}]), "quantum of queue 'q' must be a whole number from 1"),
    (small(queues=[{"name": "q", "quantum": 1.5}]), "quantum of queue 'q' must be a whole number, got 1.5"),
    (small(queues=[{"name": "q", "depth": 5}]), "is always backlogged and takes no depth, got 5"),
    (small(queues=[{"name": "q", "size": 5}]), r"queues\[0\] has no field 'size'"),
    (small(queues="q"), "queues must be a list of tables, got 'q'"),
    (small(broker={"delay": -1}), "delay of broker 'broker' must be a number of seconds"),
    (small(broker={"rate": 0}), "rate of broker 'broker' must be a positive number"),
    (small(consumers=[{"name": "c", "queues": ["x"]}]), "consumer 'c': unknown queue 'x'; known: q"),
    (small(consumers=[{"name": "c", "queues": ["q", "q"]}]), "queues of consumer 'c' must be unique, got q, q"),
    (small(consumers=[{"name": "c", "prefetch": 0}]), r"unlimited prefetch \(0\) for 'q'"),
    (small(consumers=[{"name": "c", "prefetch": {"x": 1}}]), "prefetch of consumer 'c': unknown queue 'x'"),
    (small(consumers=[{"name": "c", "prefetch": True}]), "prefetch of consumer 'c' must be a whole number, got True"),
    (small(consumers=[{"name": "c", "service": 0}]), "a service must be at least a nanosecond, got 0"),
    (small(consumers=[{"name": "c", "service": {"x": 1}}]), "service of consumer 'c': unknown queue 'x'"),
    (small(consumers=[{"name": "c", "service": {"kind": "uniform", "low": 2, "high": 1}}]), "at most its high, 1.0"),
    (small(consumers=[{"name": "c", "service": {"mean": 1, "cv": 2}}]), "of kind 'constant' has no cv; it has mean"),
    (small(consumers=[{"name": "c", "service": {"kind": "lognormal", "mean": 1}}]), "cv of a service must be"),
    (small(consumers=[{"name": "c", "workers": 0}]), "workers of consumer 'c' must be a whole number from 1"),
    (small(consumers=[{"name": "c", "anticipation": 1}]), "anticipation of consumer 'c' requires hold = true"),
    (small(consumers=[{"name": "c", "hold": 1}]), "hold of consumer 'c' must be true or false, got 1"),
    (small(consumers=[{"name": "c", "joins": 2, "leaves": 1}]), "leaves of consumer 'c' must be after it joins"),
    (small(consumers=[{"name": "c", "leaves": 1, "fails": 1}]), "has both leaves and fails"),
    (small(consumers=[{"name": "c", "codel": {"law": "none"}}]), "law of codel must be one of rfc"),
    (small(consumers=[{"name": "c", "codel": {"budget": 0}}]), "budget of codel must be a whole number from 1"),
    (small(consumers=[{"name": "c", "codel": {"min_backlog": -1}}]), "codel: min_backlog must be an integer of 0"),
    (small(consumers=[{"name": "c", "codel": {"goal": 0}}]), "codel has no field 'goal'"),
    (small(consumers=[{"name": "c", "count": 2}, {"name": "c-1"}]), "consumer names must be unique"),
    (small(changes=[{"delay": 1}]), r"changes\[0\] needs at"),
    (small(changes=[{"at": 1}]), "a change needs exactly one of action, delay"),
    (small(changes=[{"at": 1, "delay": 1, "rate": 1}]), "exactly one of .*, got delay, rate"),
    (small(changes=[{"at": 1, "delay": 1, "queue": "q"}]), "a change of delay takes no queue, got 'q'"),
    (small(changes=[{"at": 1, "delay": 1, "consumer": "x"}]), "the change at 1 s: unknown consumer 'x'; known: c"),
    (small(changes=[{"at": 1, "prefetch": 0}]), r"sets unlimited prefetch \(0\)"),
    (small(changes=[{"at": 1, "arrivals": "none"}]), "queue 'q' cannot become or stop being backlogged"),
    (small(changes=[{"at": 1, "action": "sleep"}]), "action of a change must be one of join, leave, fail"),
    (small(changes=[{"at": 1, "action": "join"}]), "consumer 'c' cannot join at 1 s: it is present"),
    (
        small(changes=[{"at": 1, "action": "leave"}, {"at": 2, "action": "fail"}]),
        "consumer 'c' cannot fail at 2 s: it has left",
    ),
]


@pytest.mark.parametrize(("table", "message"), REFUSED)
def test_refusals(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Scenario.from_dict(table)


def test_flat_keys_that_lead_nowhere() -> None:
    base = load_scenario("spike")
    for key, message in [
        ("consumers.nobody.prefetch", "matches no field; known: slow, idle"),
        ("consumers.slow", "matches no field; known: slow, idle"),
        ("consumers.slow.speed", r"consumers\[0\] has no field 'speed'"),
        ("speed", "a scenario has no field 'speed'"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            base.replaced({key: 1})
    with pytest.raises(ConfigurationError, match="inside a value that another key sets"):
        Scenario.from_flat({"broker": 1, "broker.delay": 1})


def test_parts_of_another_kind() -> None:
    with pytest.raises(ConfigurationError, match="queues must be a sequence of Queue, got 'q' in it"):
        Scenario(queues=["q"], consumers=[ConsumerSpec()], duration=1)  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="consumers must be a sequence of ConsumerSpec, got"):
        Scenario(queues=[Queue()], consumers=ConsumerSpec(), duration=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="simulate needs a Scenario, got dict"):
        simulate({})  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_scenario("spike").seed = 1  # type: ignore[misc]


def test_windows() -> None:
    quanta = {"gold": 3, "free": 1}
    assert ConsumerSpec(prefetch=5).windows(quanta) == {"gold": 5, "free": 5}
    assert ConsumerSpec(prefetch={"gold": 5}).windows(quanta) == {"gold": 5, "free": 1}  # type: ignore[arg-type]
    assert ConsumerSpec(prefetch_total=100).windows(quanta) == {"gold": 75, "free": 25}


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"file .*nothing\.toml cannot be read"):
        load_scenario(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("a = ", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"bad\.toml is not valid TOML"):
        load_scenario(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("duration = 1", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"bad\.toml: a scenario needs queues"):
        load_scenario(tmp_path / "bad.toml")
    with pytest.raises(ConfigurationError, match="unknown scenario 'slow-netwrk'; did you mean 'slow-network'"):
        load_scenario("slow-netwrk")
