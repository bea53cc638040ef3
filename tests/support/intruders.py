"""Let others in at every point at which a call of ours can run Python.

A point is any Python code that runs inside such a call: the hash and equality of a slot's name, the conversion of an
argument, a clock, a callback, the destructor of an item, the garbage collector at an allocation. At a point the
`intruder` makes the next of the visits that a property has planned: the same thread calls in again, or another thread
does while the first one waits for it, or the point raises. The calls that a visit makes have points of their own, at
which the next visit is made.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import itertools
import os
import queue
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from support.clock import ManualClock

#: Seconds within which whatever must not block is done, unless it blocks.
LONG = 20.0


def note(*recipe: object) -> None:
    """Write down what is about to be done, for the reader of a dead process's report."""
    report = os.environ.get("FAIRSCHED_APART_REPORT")
    if report:
        Path(f"{report}.recipe").write_text(repr(recipe))


class Refusal(Exception):
    """The exception a point raises as its visit."""


@dataclass(eq=False)
class Visit:
    """After `skip` points of a kind, or any: what is done, by the same thread or another; None: raise `Refusal`."""

    where: str  # how the point's name begins
    skip: int
    apart: bool
    action: Callable[[], object] | None


class Visitors:
    """A thread that does what others hand to it, while they wait."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def run(self, action: Callable[[], object]) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
        done = threading.Event()
        self.jobs.put((action, done))
        if not done.wait(LONG):
            self.thread = None  # it is stuck; whatever comes next has another
            self.jobs = queue.SimpleQueue()
            raise AssertionError("a visit from another thread does not end, though nothing in it may block")

    def work(self) -> None:
        jobs = self.jobs
        while True:
            action, done = jobs.get()
            try:
                action()
            finally:
                done.set()


class Intruder:
    """Makes the planned visits at the points that the thread under observation comes to."""

    def __init__(self) -> None:
        self.visitors = Visitors()
        self.plan: list[Visit] = []
        self.watched: int | None = None
        self.collects = False
        self.choosing = False
        self.depth = 0  # of calls under observation, one in the other
        self.faults: list[BaseException] = []
        self.seen: Counter[str] = Counter()

    def reset(self) -> None:
        self.plan.clear()
        self.faults.clear()
        self.watched = None
        self.depth = 0

    def point(self, where: str, raises: bool = True) -> None:
        """Make the next visit, when one is due; `raises`: what is raised here comes to the caller of the call."""
        if not self.plan or self.depth == 0 or threading.get_ident() != self.watched:
            return
        self.seen[where] += 1
        visit = self.due(where)
        if visit is None:
            return
        if visit.action is None:
            if raises:
                raise Refusal(where)
            return
        try:
            if visit.apart:
                self.visitors.run(visit.action)
            else:
                visit.action()
        except BaseException as error:  # of the judge, or of one that waits for it: the point itself may swallow it
            self.faults.append(error)

    def due(self, where: str) -> Visit | None:
        """Take the visit that is due at such a point out of the plan. This itself may run the collector."""
        if self.choosing:
            return None
        self.choosing = True
        try:
            for visit in self.plan:
                if where.startswith(visit.where):
                    visit.skip -= 1
                    if visit.skip >= 0:
                        return None
                    self.plan.remove(visit)
                    return visit
            return None
        finally:
            self.choosing = False

    @contextlib.contextmanager
    def watching(self, visits: list[Visit], collecting: bool) -> Iterator[None]:
        """Make these visits in the calls of this thread; with `collecting`, allocations are points too."""
        self.plan.extend(visits)
        self.collects = collecting
        self.watched = threading.get_ident()
        try:
            yield
        finally:
            self.watched = None
            self.plan.clear()

    def observe(self, call: Callable[[], Any]) -> Any:
        """Make a call, with points in it."""
        if threading.get_ident() != self.watched:
            return call()
        self.depth += 1
        try:
            if not self.collects or not self.plan or self.collected in gc.callbacks:
                return call()
            return self.observe_collecting(call)
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Let no call in meanwhile."""
        watched, self.watched = self.watched, None
        try:
            yield
        finally:
            self.watched = watched

    def observe_collecting(self, call: Callable[[], Any]) -> Any:
        """Run the collector, and with it Python code, at each allocation of an object that it knows."""
        thresholds = gc.get_threshold()
        gc.callbacks.append(self.collected)
        Garbage(self).litter()
        gc.set_threshold(1, 1_000_000, 1_000_000)
        try:
            return call()
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(self.collected)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        self.point(f"collector: {phase}", raises=False)

    def raise_faults(self) -> None:
        """Raise what went wrong in visits."""
        faults = list(self.faults)
        self.faults.clear()
        if faults:
            raise faults[0]


intruder = Intruder()


class Garbage:
    """Cyclic garbage whose finalizer is a point; while a test watches, it leaves the next garbage behind."""

    def __init__(self, owner: Intruder) -> None:
        self.owner = owner
        self.itself: Any = None

    def litter(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.owner.point("finalizer of garbage", raises=False)
        if self.owner.collected in gc.callbacks:
            Garbage(self.owner).litter()


# Names ---------------------------------------------------------------------------------------------------------------


class Key:
    """A name of one's own: every hash collides with that of half of the others, so that equality is asked too."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        intruder.point("hash")
        return self.value % 2

    def __eq__(self, other: object) -> bool:
        intruder.point("equality")
        return isinstance(other, Key) and self.value == other.value

    def __repr__(self) -> str:
        return f"Key({self.value})"


@dataclass(frozen=True)
class Record:
    """A frozen dataclass: its hash and equality are those of the tuple of its fields."""

    key: Key

    @property
    def value(self) -> int:
        return self.key.value


class Identifier(uuid.UUID):
    """A UUID: hash and equality are Python code."""

    def __hash__(self) -> int:
        intruder.point("hash of a UUID")
        return super().__hash__() % 2

    def __eq__(self, other: object) -> bool:
        intruder.point("equality of UUIDs")
        return super().__eq__(other)

    @property
    def value(self) -> int:
        return self.int


class Member(enum.Enum):
    """An Enum: its hash is Python code."""

    ZERO, ONE, TWO, THREE = range(4)

    def __hash__(self) -> int:
        intruder.point("hash of a member")
        return self.value % 2

    def __eq__(self, other: object) -> bool:
        intruder.point("equality of members")
        return self is other


class Pair(tuple):
    """A tuple with a key in it."""

    @property
    def value(self) -> int:
        return self[0].value


#: How the name of a number is made, always anew: a dictionary asks an object that it holds for no equality.
NAMES: dict[str, Callable[[int], Any]] = {
    "str": lambda number: f"tenant {number}",
    "key": Key,
    "dataclass": lambda number: Record(Key(number)),
    "uuid": lambda number: Identifier(int=number),
    "enum": Member,
    "tuple": lambda number: Pair((Key(number),)),
}


def number_of(name: Any) -> int:
    """Of which number something is the name."""
    return int(name.split()[1]) if isinstance(name, str) else name.value


# Arguments -----------------------------------------------------------------------------------------------------------


class Number:
    """An integer by its __index__ only."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        intruder.point("index")
        return self.value

    def __repr__(self) -> str:
        return f"Number({self.value})"


class Truth:
    """True or false by its __bool__ only."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def __bool__(self) -> bool:
        intruder.point("truth")
        return self.value

    def __repr__(self) -> str:
        return f"Truth({self.value})"


class Seconds(float):
    """A number of seconds whose comparisons are Python code."""

    __slots__ = ()

    def __ge__(self, other: float) -> bool:
        intruder.point("comparison")
        return float.__ge__(self, other)

    def __le__(self, other: float) -> bool:
        intruder.point("comparison")
        return float.__le__(self, other)

    def __radd__(self, other: float) -> float:
        intruder.point("addition")
        return other + float(self)


class IntrudedClock(ManualClock):
    """A clock whose every reading is a point."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def __call__(self) -> float:
        intruder.point("clock")
        return super().__call__()


def walked(values: list[Any]) -> Iterator[Any]:
    """An iterable whose steps are points."""
    for value in values:
        intruder.point("iteration")
        yield value


# Items ---------------------------------------------------------------------------------------------------------------


class Items:
    """Makes items, and counts those that are alive."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.alive: Counter[int] = Counter()

    def make(self) -> Item:
        return Item(self, next(self.numbers))


class Item:
    """Something to queue, whose destructor is a point."""

    def __init__(self, owner: Items, number: int) -> None:
        self.owner, self.number = owner, number
        owner.alive[number] += 1

    def __del__(self) -> None:
        self.owner.alive[self.number] -= 1
        intruder.point("destructor of an item", raises=False)

    def __repr__(self) -> str:
        return f"Item({self.number})"


# Scripts -------------------------------------------------------------------------------------------------------------

#: A method of a world, and its arguments.
Step = tuple[Any, ...]
#: Steps, each with visits (where, after how many such points, by another thread, what) and perhaps with a collector.
Script = list[tuple[Step, Any, bool]]

#: Hypothesis explains a failure by running it hundreds of times more, which takes long here.
BRIEF = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])


def scripts(
    steps: st.SearchStrategy[Step],
    actions: st.SearchStrategy[Step | None],
    where: list[str],
    collecting: st.SearchStrategy[bool],
) -> st.SearchStrategy[Script]:
    """Steps, each with visits at such points, and with or without a collector at every allocation."""
    visits = st.tuples(st.sampled_from(where), st.integers(0, 2), st.booleans(), actions)
    return st.lists(st.tuples(steps, st.lists(visits, min_size=1, max_size=4), collecting), min_size=3, max_size=10)


def play(world: Any, script: Script) -> None:
    """Make the steps with their visits, and look after each whether all is well."""
    intruder.reset()
    note(world, script)
    for step, planned, collecting in script:
        plan = [
            Visit(where, skip, apart, None if action is None else (lambda action=action: world.do(action)))
            for where, skip, apart, action in planned
        ]
        with intruder.watching(plan, collecting):
            world.do(step)
        intruder.raise_faults()
        world.check_rest()
    world.finish()
    world.check_let_go()
