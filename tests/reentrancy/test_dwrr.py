"""Dwrr while calls come in wherever it can run Python: slots come and go under the call that has found one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.history import History
from support.intruders import BRIEF, NAMES, Number, Script, Step, Truth, intruder, number_of, play, scripts, walked

from fairsched import Dwrr

SLOTS = 3


class World:
    """A scheduler, and the judge of what comes out of it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name: Callable[[int], Any] = NAMES[kind]
        self.history = History()
        self.tokens = itertools.count()
        self.lists: list[list[Any]] = []
        self.engine = Dwrr({self.name(0): 2, self.name(1): 1})

    def __repr__(self) -> str:
        return f"World({self.kind!r})"

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def push(self, slot: int, cost: int) -> None:
        token = next(self.tokens)
        self.history.putting([slot], [token])
        name = self.name(slot)
        if self.history.attempt(lambda: self.engine.push(name, Number(token), Number(cost)), KeyError)[0]:
            self.history.was_put([token])

    def push_many(self, slots: list[int], form: str) -> None:
        tokens = [next(self.tokens) for _ in slots]
        self.history.putting(slots, tokens)
        names: Any = [self.name(slot) for slot in slots]
        self.lists.append(names)
        given: Any = names if form == "names" else walked(names)
        done, _ = self.history.attempt(
            lambda: self.engine.push_many(given, tokens, [1 + token % 3 for token in tokens]),
            KeyError,
            ValueError,
            RuntimeError,
        )
        self.lists.pop()
        if done:
            self.history.was_put(tokens)

    def shrink(self) -> None:
        """Take a name out of the list of which the slots are just looked up."""
        if self.lists and self.lists[-1]:
            self.lists[-1].pop()

    def pop(self) -> bool:
        begun = self.history.moment()
        done, popped = self.history.attempt(self.engine.pop)
        if done and popped is not None:
            self.history.got(begun, number_of(popped[0]), popped[1])
        return popped is not None

    def pop_many(self, size: int) -> None:
        begun = self.history.moment()
        done, popped = self.history.attempt(lambda: self.engine.pop_many(Number(size)))
        if not done:
            return
        with intruder.quiet():
            names = self.engine.names
            for index, token in zip(popped[0].tolist(), popped[1].tolist(), strict=True):
                self.history.got(begun, number_of(names[index]), token)

    def settle(self, slot: int, difference: int) -> None:
        self.history.attempt(lambda: self.engine.settle(self.name(slot), Number(difference)), KeyError)

    def hold(self, slot: int, held: bool) -> None:
        self.history.attempt(lambda: self.engine.hold(self.name(slot), Truth(held)), KeyError)

    def set_quantum(self, slot: int, quantum: int) -> None:
        self.history.attempt(lambda: self.engine.set_quantum(self.name(slot), Number(quantum)), KeyError)

    def add_slot(self, slot: int, quantum: int) -> None:
        self.history.attempt(lambda: self.engine.add_slot(self.name(slot), Number(quantum)), ValueError)

    def remove_slot(self, slot: int) -> None:
        begun = self.history.moment()
        done, tokens = self.history.attempt(lambda: self.engine.remove_slot(self.name(slot)), KeyError)
        if done:
            for token in tokens.tolist():
                self.history.got(begun, slot, token)

    def stats(self) -> None:
        self.history.attempt(self.engine.stats)

    # -- judging ----------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        assert not self.history.wrong, "; ".join(self.history.wrong)
        queued = Counter(self.history.lives[token].slot for token in self.history.queued())
        assert len(self.engine) == queued.total()
        stats = [(number_of(name), figures) for name, figures in self.engine.stats().items()]
        names = [number_of(name) for name in self.engine.names if name is not None]
        assert sorted(names) == sorted({slot for slot, _ in stats}) == sorted(slot for slot, _ in stats)
        assert {slot: figures.queued for slot, figures in stats if figures.queued} == +queued
        for slot, figures in stats:
            assert figures.quantum > 0
            # A turn under way has its quantum on top of what may be kept.
            assert figures.deficit <= 2 * figures.quantum + 3, f"slot {slot} hoards"

    def finish(self) -> None:
        for _ in range(len(self.history.lives)):
            self.pop()
        assert not self.pop()
        self.history.check_end()
        self.check_rest()
        for slot in range(SLOTS):
            self.add_slot(slot, 1)
            self.push(slot, 1)
        self.check_rest()
        for _ in range(SLOTS):
            assert self.pop()
        self.history.check_end()

    def check_let_go(self) -> None:
        """Tokens are numbers: nothing is to be let go of."""


slots = st.integers(0, SLOTS - 1)
adding: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("push"), slots, st.integers(1, 3)),
    st.tuples(st.just("push_many"), st.lists(slots, min_size=1, max_size=3), st.sampled_from(["names", "walked"])),
)
taking: st.SearchStrategy[Step] = st.one_of(st.just(("pop",)), st.tuples(st.just("pop_many"), st.integers(0, 4)))
tending: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("settle"), slots, st.integers(-3, 3)),
    st.tuples(st.just("hold"), slots, st.booleans()),
    st.tuples(st.just("set_quantum"), slots, st.integers(1, 3)),
    st.just(("stats",)),
    st.just(("shrink",)),
)
changing: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("add_slot"), slots, st.integers(1, 3)), st.tuples(st.just("remove_slot"), slots)
)
steps = st.one_of(adding, adding, taking, tending, changing, changing)
WHERE = ["", "hash", "equality", "index", "truth"]


@BRIEF
@given(kind=st.sampled_from(list(NAMES)), script=scripts(steps, steps, WHERE, st.booleans()))
def test_calls_come_in_wherever_python_runs(kind: str, script: Script) -> None:
    play(World(kind), script)


@BRIEF
@given(kind=st.sampled_from(list(NAMES)), script=scripts(steps, steps | st.none(), WHERE, st.just(False)))
def test_whatever_raises_wherever_python_runs(kind: str, script: Script) -> None:
    """Nothing is lost when a hash, an equality or a number raises."""
    play(World(kind), script)


class Odd:
    """A sequence for numpy: asking for its length, its values and their type is a point each time."""

    def __init__(self, values: list[int], visit: Callable[[], object]) -> None:
        self.values, self.visit = values, visit

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.visit()
        return np.array(self.values, dtype=dtype)


def test_arrays_whose_making_uses_the_scheduler() -> None:
    """Costs and tokens that are made into arrays by Python code, which removes the slots meanwhile."""
    engine = Dwrr({"a": 1, "b": 1})
    engine.push("a", 99)
    removed: list[int] = []

    def visit() -> None:
        if "a" in engine.names:
            removed.extend(engine.remove_slot("a").tolist())

    for arguments in (
        (["a", "b"], Odd([1, 2], visit), [1, 1]),
        (["a", "b"], [1, 2], Odd([1, 1], visit)),
        (np.array([0, 1]), [1, 2], Odd([1, 1], visit)),
        (Odd([0, 1], visit), [1, 2], [1, 1]),
    ):
        if "a" not in engine.names:
            engine.add_slot("a", 1)
            engine.push("a", 99)
        removed.clear()
        try:
            engine.push_many(*arguments)
        except (KeyError, TypeError):
            assert len(engine) == 1 - len(removed)
        else:
            assert len(engine) == 3 - len(removed)
        while engine.pop() is not None:
            pass
