"""Credit, on the compiled managers and on the oracle alike: the cases of Qpid Broker-J, and each edge once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.credit import CREDIT_MAX, DONE, REFUSED, REGAINED, SPENT, ReferenceCredit

from fairsched import _probe_credit

ProbeCredit = _probe_credit.ProbeCredit

both = pytest.mark.parametrize("manager", [ProbeCredit, ReferenceCredit])


@both
def test_limit_in_messages(manager: Any) -> None:
    credit = manager(2, 0)
    assert [bool(credit.use(37)) for _ in range(3)] == [True, True, False]
    assert credit.restore(1, 37)
    assert credit.use(37)


@both
def test_limit_in_bytes_lets_one_too_large_pass_while_unused(manager: Any) -> None:
    credit = manager(0, 10)
    assert credit.use(3)
    assert not credit.use(30)
    assert credit.restore(1, 3)
    assert credit.use(30)
    assert credit.left == (-1, -20)


@both
@pytest.mark.parametrize("of", ["messages", "bytes"])
def test_a_lower_limit_leaves_less_than_nothing(manager: Any, of: str) -> None:
    def limits(count: int) -> tuple[int, int]:
        return (count, 0) if of == "messages" else (0, count)

    credit = manager(*limits(3))
    for _ in range(3):
        assert credit.use(1)
    credit.set_limits(*limits(1))
    assert not credit.has()
    for expected in (False, False, True):
        assert credit.restore(1, 1)
        assert credit.has() is expected


@both
def test_a_limit_set_while_unlimited_counts_what_is_out(manager: Any) -> None:
    credit = manager()
    for _ in range(3):
        assert credit.use(37) == DONE
    assert credit.restore(1, 37)
    assert credit.set_limits(1, 37) == SPENT
    assert not credit.has()
    assert credit.restore(1, 37) == DONE
    assert not credit.has()
    assert credit.restore(1, 37) == REGAINED
    assert credit.has()


@both
@pytest.mark.parametrize(
    ("limits", "back"), [((2, 0), (2, 37)), ((0, 50), (1, 38)), ((0, 0), (2, 0)), ((0, 0), (0, -1))]
)
def test_more_than_was_used_is_refused_and_changes_nothing(
    manager: Any, limits: tuple[int, int], back: tuple[int, int]
) -> None:
    credit = manager(*limits)
    credit.use(37)
    before = credit.left
    assert credit.restore(*back) == REFUSED
    assert credit.left == before
    assert credit.restore(1, 37) != REFUSED
    assert credit.left == limits


@both
def test_the_last_credit_and_the_first_back_are_edges(manager: Any) -> None:
    credit = manager(2, 0)
    assert [credit.use(1) for _ in range(3)] == [DONE, SPENT, REFUSED]
    assert [credit.restore(1, 1) for _ in range(2)] == [REGAINED, DONE]


@both
def test_up_to_a_hundred_messages_are_announced_at_once(manager: Any) -> None:
    credit = manager(100, 0)
    while credit.use(0) != SPENT:
        pass
    assert credit.restore(1, 0) == REGAINED


@both
def test_many_messages_are_announced_by_more_than_ten(manager: Any) -> None:
    credit = manager(101, 0)
    while credit.use(0) != SPENT:
        pass
    assert [credit.restore(1, 0) for _ in range(12)] == [DONE] * 10 + [REGAINED, DONE]


@both
def test_with_a_limit_in_bytes_nothing_is_held_back(manager: Any) -> None:
    credit = manager(101, 1_000)
    while credit.use(1) != SPENT:
        pass
    assert credit.restore(1, 1) == REGAINED


@both
def test_a_consumer_turned_away_by_size_is_told_of_every_restore(manager: Any) -> None:
    credit = manager(0, 10)
    assert [credit.use(2) for _ in range(3)] == [DONE] * 3
    assert credit.use(8) == REFUSED
    assert credit.has()
    assert credit.restore(1, 2) == REGAINED
    assert credit.restore(0, 0) == DONE
    assert credit.use(8) == REFUSED
    assert credit.restore(1, 2) == REGAINED
    assert credit.use(8) == SPENT or credit.left == (-2, 0)


@both
def test_limits_announce_without_a_batch(manager: Any) -> None:
    credit = manager(1, 0)
    assert credit.use(0) == SPENT
    assert credit.set_limits(200, 0) == REGAINED
    assert credit.set_limits(1, 0) == SPENT
    assert credit.set_limits(1, 0) == DONE
    assert credit.set_limits(0, 0) == REGAINED


@both
def test_what_no_counter_holds_is_refused(manager: Any) -> None:
    credit = manager()
    assert credit.use(-1) == REFUSED
    assert credit.use(CREDIT_MAX) == DONE
    assert credit.use(1) == REFUSED
    assert credit.left == (-1, -CREDIT_MAX)


limit = st.one_of(st.just(0), st.integers(1, 6), st.integers(99, 112))
step = st.one_of(
    st.tuples(st.just("use"), st.integers(-1, 12)),
    st.tuples(st.just("restore"), st.integers(-1, 4), st.integers(-1, 12)),
    st.tuples(st.just("set_limits"), limit, limit),
    st.tuples(st.just("has")),
)


@given(limit, limit, st.lists(step, max_size=60), st.integers(0, 115))
def test_the_compiled_manager_is_the_oracle(messages: int, size: int, steps: list[Any], used: int) -> None:
    engine, oracle = ProbeCredit(messages, size), ReferenceCredit(messages, size)
    for name, *arguments in [("use", 0)] * used + steps:
        assert getattr(engine, name)(*arguments) == getattr(oracle, name)(*arguments)
        assert engine.left == oracle.left
        assert engine.left[0] <= oracle.message_limit
        assert engine.left[1] <= oracle.byte_limit
