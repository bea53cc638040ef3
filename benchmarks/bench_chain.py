"""From a notification to the pull: sets, targets, sessions and passes, without the GIL; and targets from Python."""

from __future__ import annotations

from typing import Any

from interleave import medians, record

from fairsched import _probe_chain, _probe_nodes
from fairsched.pullqueue import PullQueue, Target

COUNT = 500_000
ROUNDS = 15


def chain(sessions: int = 1, targets: int = 1, consumers: int = 1) -> Any:
    """One connection whose targets are desired."""
    made = _probe_chain.ProbeChain(1, sessions, targets, consumers, logs=False)
    made.start()
    return made


def test_schedule_and_process(benchmark: Any) -> None:
    """A message comes, its target is notified, and the connection serves it; and one thing added to a set and taken."""
    one, work = chain(), _probe_chain.ProbeWorkset(1)
    took = medians(
        ROUNDS,
        mutex=lambda: _probe_chain.mutex_lock_unlock(COUNT),
        exchange=lambda: _probe_nodes.exchanges(COUNT),
        workset=lambda: work.cycle(COUNT),
        cycle=lambda: one.cycle(COUNT),
    )
    record(
        benchmark,
        {
            "add+take : an uncontended lock+unlock": (took["workset"] / took["mutex"], "<=", 3),
            "notify+serve one target : an uncontended lock+unlock": (took["cycle"] / took["mutex"], "<=", 12),
        },
        **{f"{name}_ns": seconds / COUNT * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: one.cycle(COUNT), rounds=10)


def test_passes_over_many_targets(benchmark: Any) -> None:
    """Passes that serve a message of each target in turn, by how many targets there are; a message's cost."""
    messages = 200_000
    shapes = {"one": (1, 1), "ten": (1, 10), "thousand": (1, 1_000), "sessions": (100, 10)}
    chains = {name: chain(*shape) for name, shape in shapes.items()}
    took = medians(
        ROUNDS,
        **{
            name: lambda name=name, shape=shape: chains[name].serve(messages // (shape[0] * shape[1]))
            for name, shape in shapes.items()
        },
    )
    record(
        benchmark,
        {
            "a message of ten targets : of one": (took["ten"] / took["one"], "<=", 1.5),
            "a message of 1 000 targets : of one": (took["thousand"] / took["one"], "<=", 1.5),
            "a message of 100 sessions of 10 : of one": (took["sessions"] / took["one"], "<=", 1.5),
        },
        **{f"{name}_ns": seconds / messages * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: chains["ten"].serve(1_000), rounds=10)


def test_targets_from_python(benchmark: Any) -> None:
    """Pull and acknowledge from three queues in turn: by a target, and by a loop over their subscriptions."""
    count = 3_000
    queues = [PullQueue() for _ in range(3)]
    target = Target([one.subscribe() for one in queues])
    peers = [PullQueue() for _ in range(3)]
    subscriptions = [one.subscribe() for one in peers]

    def by_target() -> None:
        for number in range(count):
            queues[number % 3].put(number)
        while (entry := target.pull()) is not None:
            entry.ack()

    def by_loop() -> None:
        for number in range(count):
            peers[number % 3].put(number)
        found = True
        while found:
            found = False
            for subscription in subscriptions:
                if (entry := subscription.pull()) is not None:
                    entry.ack()
                    found = True

    took = medians(ROUNDS, target=by_target, loop=by_loop)
    record(
        benchmark,
        {"put+pull+ack by a target : by a loop over its subscriptions": (took["target"] / took["loop"], "<=", 2)},
        **{f"{name}_ns": seconds / count * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(by_target, rounds=5)
