"""Random small scenarios."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fairsched.simulator import Arrivals, Broker, Change, ConsumerSpec, Queue, Scenario, Service, Shedding

#: Round numbers, so that many things happen at one time.
MILLISECONDS = st.integers(0, 12).map(lambda ms: ms / 1000)
SERVICES = st.one_of(
    st.integers(1, 6).map(lambda ms: Service.constant(ms / 1000)),
    st.integers(1, 6).map(lambda ms: Service.exponential(ms / 1000)),
    st.tuples(st.integers(0, 3), st.integers(1, 3)).map(lambda ab: Service.uniform(ab[0] / 1e3, sum(ab) / 1e3)),
    st.tuples(st.integers(1, 6), st.sampled_from([0.3, 2.0])).map(lambda mc: Service.lognormal(mc[0] / 1e3, mc[1])),
)
RATES = st.sampled_from([20.0, 100.0, 333.0, 1000.0])
PROCESSES = st.one_of(
    st.just(Arrivals.none()),
    RATES.map(Arrivals.constant),
    RATES.map(Arrivals.poisson),
    st.builds(Arrivals.bursts, st.sampled_from([200.0, 1000.0]), st.just(0.02), MILLISECONDS, random=st.booleans()),
    st.lists(st.integers(0, 150), max_size=20).map(lambda ms: Arrivals.trace([one / 1e3 for one in sorted(ms)])),
)
SHEDDING = st.builds(
    Shedding,
    target=st.sampled_from([0.002, 0.005, 0.01]),
    interval=st.sampled_from([0.004, 0.02]),
    law=st.sampled_from(["rfc", "linux", "linux-q16", "queueing-consumer"]),
    min_backlog=st.integers(0, 2),
    max_returns=st.sampled_from([None, 1, 3]),
    budget=st.integers(1, 3),
    alone=st.booleans(),
    dead_letter=st.booleans(),
)


@st.composite
def queues(draw: Any, brokers: list[Broker]) -> list[Queue]:
    made = []
    for index in range(draw(st.integers(1, 3))):
        endless = draw(st.booleans())
        made.append(
            Queue(
                f"q{index}",
                quantum=draw(st.integers(1, 5)),
                cost=draw(st.integers(1, 4)),
                arrivals=Arrivals() if endless else draw(PROCESSES),
                depth=0 if endless else draw(st.integers(0, 30)),
                broker=draw(st.sampled_from(brokers)).name,
            )
        )
    return made


@st.composite
def consumers(draw: Any, made: list[Queue]) -> list[ConsumerSpec]:
    found = []
    for index in range(draw(st.integers(1, 3))):
        hold = draw(st.booleans())
        joins = draw(MILLISECONDS)
        names = [queue.name for queue in made]
        own = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
        endless = {queue.name for queue in made if queue.endless} & set(own or names)
        found.append(
            ConsumerSpec(
                name=f"c{index}",
                queues=own,
                prefetch=draw(st.integers(1 if endless else 0, 8)),
                service={name: draw(SERVICES) for name in own or names} if draw(st.booleans()) else draw(SERVICES),
                workers=draw(st.integers(1, 3)),
                hold=hold,
                anticipation=draw(st.sampled_from([0.0, 0.003, 0.02])) if hold else 0.0,
                codel=draw(st.none() | SHEDDING),
                delay=draw(st.none() | MILLISECONDS),
                full=draw(st.booleans()),
                joins=joins,
                leaves=joins + 0.05 if index == 1 and draw(st.booleans()) else None,
                fails=joins + 0.04 if index == 2 and draw(st.booleans()) else None,
            )
        )
    return found


@st.composite
def changes(draw: Any, world: dict[str, Any]) -> list[Change]:
    moment = st.integers(0, 120).map(lambda ms: ms / 1000)
    made = []
    for _ in range(draw(st.integers(0, 4))):
        consumer = draw(st.none() | st.sampled_from([one.name for one in world["consumers"]]))
        queue = draw(st.sampled_from(world["queues"]))
        kind = draw(st.sampled_from(["delay", "service", "prefetch", "quantum", "rate", "arrivals"]))
        at = draw(moment)
        if kind == "delay":
            made.append(Change(at=at, consumer=consumer, delay=draw(MILLISECONDS)))
        elif kind == "service":
            made.append(Change(at=at, consumer=consumer, queue=queue.name, service=draw(SERVICES)))
        elif kind == "prefetch":
            made.append(Change(at=at, consumer=consumer, queue=queue.name, prefetch=draw(st.integers(1, 9))))
        elif kind == "quantum":
            made.append(Change(at=at, queue=queue.name, quantum=draw(st.integers(1, 9))))
        elif kind == "rate":
            made.append(Change(at=at, rate=draw(st.sampled_from([150.0, 1000.0]))))
        elif not queue.endless:
            made.append(Change(at=at, queue=queue.name, arrivals=draw(PROCESSES)))
    return made + [
        Change(at=spec.fails + draw(MILLISECONDS), consumer=spec.name, action="join")
        for spec in world["consumers"]
        if spec.fails is not None and draw(st.booleans())
    ]


@st.composite
def scenarios(draw: Any) -> Scenario:
    """Small worlds in which everything the simulator knows happens."""
    brokers = [
        Broker(f"b{index}", delay=draw(MILLISECONDS), rate=draw(st.none() | st.sampled_from([100.0, 1000.0])))
        for index in range(draw(st.integers(1, 2)))
    ]
    world: dict[str, Any] = {"brokers": brokers}
    world["queues"] = draw(queues(brokers))
    world["consumers"] = draw(consumers(world["queues"]))
    return Scenario(
        **world,
        changes=draw(changes(world)),
        duration=0.2,
        messages=draw(st.none() | st.integers(1, 200)),
        seed=draw(st.integers(0, 3)),
        histories=100_000,
    )
