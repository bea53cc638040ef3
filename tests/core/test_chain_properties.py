"""The chain against the oracle, and what round robin and edges promise whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from oracles.chain import FLOW, START, ReferenceChain

from fairsched import _probe_chain

DONE, MORE = 0, 1


def steps(targets: int, consumers: int) -> Any:
    target = st.integers(0, targets - 1)
    return st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, consumers - 1), st.integers(0, 12), st.booleans()),
            st.tuples(st.just("hinder"), target, st.sampled_from([START, FLOW, START | FLOW])),
            st.tuples(st.just("resume"), target, st.sampled_from([START, FLOW, START | FLOW])),
            st.tuples(st.just("submit")),
            st.tuples(st.just("run")),
        ),
        max_size=40,
    )


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
stories = shapes.flatmap(
    lambda shape: st.tuples(st.just(shape), steps(shape[0] * shape[1], shape[0] * shape[1] * shape[2]))
)


def run(chain: Any) -> None:
    while chain.one_pass() == MORE:
        pass


@given(stories)
def test_the_chain_serves_as_the_oracle_does(story: tuple[tuple[int, int, int], list[Any]]) -> None:
    shape, program = story
    engine, oracle = _probe_chain.ProbeChain(1, *shape), ReferenceChain(*shape)
    engine.start()
    for target in range(len(oracle.targets)):
        oracle.resume(target, START)
    for name, *arguments in [*program, ("run",)]:
        getattr(oracle, name)(*arguments)
        if name == "run":
            run(engine)
        elif name == "submit":
            engine.submit(0)
        else:
            getattr(engine, name)(*arguments)
    assert engine.log() == oracle.log
    for number, target in enumerate(oracle.targets):
        assert engine.seen(target.consumers[0]) == target.told
        assert engine.desired(number) is (not target.hindrances)


@given(shapes, st.integers(1, 20))
def test_all_that_have_work_are_served_strictly_in_turn(shape: tuple[int, int, int], each: int) -> None:
    """Sessions in turn, a session's targets in turn, a target's consumers in turn: at any time none is two ahead."""
    sessions, targets, consumers = shape
    chain = _probe_chain.ProbeChain(1, *shape)
    chain.start()
    count = sessions * targets * consumers
    for consumer in range(count):
        chain.put(consumer, each)
    run(chain)
    log = chain.log()
    assert len(log) == count * each
    assert [entry // (targets * consumers) for entry in log] == [at % sessions for at in range(count * each)]
    for session in range(sessions):
        served = [entry // consumers for entry in log if entry // (targets * consumers) == session]
        assert served == [session * targets + at % targets for at in range(len(served))]
    for target in range(sessions * targets):
        served = [entry for entry in log if entry // consumers == target]
        assert served == [target * consumers + at % consumers for at in range(len(served))]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 31)), max_size=40))
def test_what_a_consumer_is_told_alternates(changes: list[tuple[bool, int]]) -> None:
    one = _probe_chain.ProbeChain()
    for hinders, reasons in changes:
        if hinders:
            one.hinder(0, reasons & ~16)
        else:
            one.resume(0, reasons)
    one.close_target(0)
    told = one.seen(0)
    assert told[-1] == 2
    assert told[:-1] == [(at + 1) % 2 for at in range(len(told) - 1)]
    assert len(told) % 2 == 1  # not desired at the end


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_set_has_each_once_in_the_order_of_adding(added: list[int]) -> None:
    work = _probe_chain.ProbeWorkset(6)
    expected: list[int] = []
    for number in added:
        assert work.add(number) is (number not in expected)
        if number not in expected:
            expected.append(number)
        if number % 3 == 2:
            assert work.take() == expected.pop(0)
    while expected:
        assert work.take() == expected.pop(0)
    assert work.take() is None
