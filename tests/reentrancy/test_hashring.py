"""HashRing while others come in where it builds, converts, hashes and looks up; and hashing of odd keys."""

from __future__ import annotations

import functools
import queue
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.history import History
from support.intruders import BRIEF, Number, Script, Step, intruder, play, scripts, walked
from support.threads import result_of, start

from fairsched.routing import HashRing, jump_hash_many
from fairsched.routing._ring import phash2

MEMBERS = 4


class Name(str):
    """A str whose hash and equality are Python code."""

    __slots__ = ()

    def __hash__(self) -> int:
        intruder.point("hash")
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        intruder.point("equality")
        return str.__eq__(self, other)


class World:
    """A ring with loads, and what is known of its members and of the keys that they have."""

    def __init__(self) -> None:
        self.history = History()
        self.weights: Counter[int] = Counter({0: 1, 1: 1})
        self.loads: Counter[int] = Counter()
        self.changes: list[tuple[int, int, int, int]] = []
        self.ring = HashRing({"0": 1, "1": 1}, points_per_weight=4, load_factor=1.5)

    def __repr__(self) -> str:
        return "World()"

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def attempt(self, call: Callable[[], Any], *allowed: type[Exception]) -> tuple[bool, Any]:
        return self.history.attempt(call, *allowed)

    def add(self, member: int, weight: int) -> None:
        begun = self.history.moment()
        if self.attempt(lambda: self.ring.add(Name(member), Number(weight)), ValueError)[0]:
            self.changes.append((begun, self.history.moment(), member, weight))

    def remove(self, member: int) -> None:
        begun = self.history.moment()
        if self.attempt(lambda: self.ring.remove(Name(member)), KeyError)[0]:
            self.changes.append((begun, self.history.moment(), member, 0))

    def route(self, key: int) -> None:
        self.attempt(lambda: self.ring.route(Number(key)))

    def route_many(self, size: int) -> None:
        self.attempt(lambda: self.ring.route_many(walked([Number(key) for key in range(size)])))

    def release(self, member: int, count: int) -> None:
        self.attempt(lambda: self.ring.release(Name(member), Number(count)), KeyError, ValueError)

    def look(self, member: int) -> None:
        self.attempt(lambda: (self.ring.loads, self.ring.weights, len(self.ring), repr(self.ring)))
        self.attempt(lambda: Name(member) in self.ring)
        self.attempt(lambda: self.ring.share(str(member)), KeyError)

    def check_rest(self) -> None:
        assert not self.history.wrong, "; ".join(self.history.wrong)
        weights = self.ring.weights
        assert list(weights) == list(self.ring.names) == list(self.ring.loads)
        for member in range(MEMBERS):
            added = [change for change in self.changes if change[2] == member and change[3]]
            removed = [change for change in self.changes if change[2] == member and not change[3]]
            present = (member < 2) + len(added) - len(removed)
            assert present == (str(member) in weights), f"member {member} was added {added} and removed {removed}"
        loads = self.ring.loads
        assert all(load >= 0 for load in loads.values())

    def finish(self) -> None:
        """Every load can be released, and then the ring places evenly: nothing was counted elsewhere."""
        if not self.ring.names:
            self.ring.add("0", 1)
        for name, load in self.ring.loads.items():
            if load:
                self.ring.release(name, load)
        fresh = HashRing(self.ring.weights, points_per_weight=4, load_factor=1.5)
        assert [self.ring.route(key) for key in range(40)] == [fresh.route(key) for key in range(40)]
        assert self.ring.loads == fresh.loads

    def check_let_go(self) -> None:
        """Nothing is kept."""


members = st.integers(0, MEMBERS - 1)
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("add"), members, st.integers(1, 3)),
    st.tuples(st.just("remove"), members),
    st.tuples(st.just("route"), st.integers(0, 5)),
    st.tuples(st.just("route_many"), st.integers(0, 5)),
    st.tuples(st.just("release"), members, st.integers(1, 2)),
    st.tuples(st.just("look"), members),
)
WHERE = ["", "", "collector", "hash", "equality"]


@BRIEF
@given(script=scripts(steps, steps, WHERE, st.booleans()))
def test_calls_come_in_wherever_python_runs(script: Script) -> None:
    play(World(), script)


@BRIEF
@given(script=scripts(steps, steps | st.none(), WHERE, st.just(False)))
def test_whatever_raises_wherever_python_runs(script: Script) -> None:
    play(World(), script)


def test_members_that_join_at_once() -> None:
    """The ring is built without the GIL; no node that joins or leaves meanwhile is forgotten."""
    ring = HashRing({"first": 1}, points_per_weight=2000)

    def join(me: int) -> None:
        for number in range(12):
            ring.add(f"{me}.{number}", 1)
            if number % 3 == 2:
                ring.remove(f"{me}.{number - 1}")

    threads = [start(lambda me=me: join(me)) for me in range(4)]
    assert [result_of(thread) for thread in threads] == [None] * 4
    assert set(ring.names) == {
        "first",
        *(f"{me}.{number}" for me in range(4) for number in range(12) if number % 3 != 1),
    }


def test_loads_while_members_join() -> None:
    """Keys that are placed and released while the ring is built anew are counted."""
    ring = HashRing({"a": 1, "b": 1}, points_per_weight=2000, load_factor=2.0)
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def place() -> Counter[str]:
        placed: Counter[str] = Counter()
        while done.empty():
            for key in range(200):
                name = ring.route(key)
                if key % 2 and name in "ab":
                    ring.release(name)
                else:
                    placed[name] += 1
        return placed

    threads = [start(place) for _ in range(2)]
    for number in range(15):
        ring.add(f"other {number}", 1)
    done.put(None)
    total: Counter[str] = sum((result_of(thread) for thread in threads), Counter())
    assert Counter(ring.loads) == total


class Encoded(str):
    """A str with an encoding of its own."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> Any:
        return 7


class Doubled(bytes):
    """Bytes that are others when they are converted."""

    __slots__ = ()

    def __bytes__(self) -> bytes:
        return b"others"


def test_odd_strings_are_hashed_by_what_they_are() -> None:
    assert phash2(Encoded("key")) == phash2("key")
    assert phash2(Doubled(b"key")) == phash2(b"key")


@pytest.mark.parametrize("dtype", ["S5", "i1", ">u2", "<i8", "u8", ">i4", "O", "U3", "f8", "?", "M8[s]"])
def test_arrays_of_any_type(dtype: str) -> None:
    """Either all keys are placed, as one by one, or none is."""
    keys = np.array([1, 0, 2, 3] if dtype not in ("S5", "U3") else ["a", "", "bb", "ccc"]).astype(dtype)[::-2]
    ring = HashRing({"a": 1, "b": 2}, points_per_weight=8)
    if dtype in ("f8", "?", "M8[s]"):
        with pytest.raises(TypeError):
            ring.route_many(keys)
        return
    assert [ring.names[index] for index in ring.route_many(keys)] == [ring.route(key) for key in keys.tolist()]


def test_a_list_that_changes_while_it_is_hashed() -> None:
    """Each key is a point at which the list may shrink or grow."""

    class Shrinking:
        def __init__(self, change: Callable[[], object]) -> None:
            self.change = change

        def __index__(self) -> int:
            self.change()
            return 1

    for change in (list.clear, list.pop, lambda values: values.append(2)):
        keys: list[Any] = [1, 2]
        keys.insert(1, Shrinking(functools.partial(change, keys)))
        with pytest.raises(ValueError, match="must not change"):
            jump_hash_many(keys, 8)
