"""FairQueue while others come in at every point at which it can run Python."""

from __future__ import annotations

import gc
import queue
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.history import History
from support.intruders import (
    BRIEF,
    NAMES,
    IntrudedClock,
    Items,
    Number,
    Script,
    Seconds,
    Step,
    Truth,
    intruder,
    number_of,
    play,
    scripts,
    walked,
)

from fairsched import FairQueue, ShutDown

SLOTS = 3


class World:
    """A queue, those that wait for it by callbacks, and the judge of what they get."""

    def __init__(
        self, kind: str, maxsize: int, patience: float, ranks: int, odd: bool, waiters: int, boost: bool, subkeys: int,
        priorities: int,
    ) -> None:  # fmt: skip
        self.recipe = {"kind": kind, "maxsize": maxsize, "patience": patience, "ranks": ranks, "odd": odd}
        self.recipe |= {"waiters": waiters, "boost": boost, "subkeys": subkeys, "priorities": priorities}
        self.integer: Callable[[int], Any] = Number if odd else int
        self.truth: Callable[[bool], Any] = Truth if odd else bool
        self.seconds: Callable[[float], Any] = Seconds if odd else float
        self.name: Callable[[int], Any] = NAMES[kind]
        self.clock = IntrudedClock()
        self.history = History()
        self.items = Items()
        self.patience = patience
        self.ranks = ranks
        self.priorities = priorities
        self.subkeys = 0 if priorities else subkeys
        self.empties: list[tuple[int, int]] = []
        self.waiters: list[Waiting] = []
        self.lists: list[tuple[list[Any], list[int]]] = []
        self.queue = FairQueue(
            {self.name(0): 2}, maxsize=maxsize, default_quantum=1, anticipation=patience, clock=self.clock,
            sparse_boost=boost, subkey_quantum=1 if self.subkeys else None, priorities=bool(priorities),
        )  # fmt: skip
        for _ in range(waiters):
            self.wait(0)

    def __repr__(self) -> str:
        return f"World(**{self.recipe})"

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def attempt(self, call: Callable[[], Any], *allowed: type[Exception]) -> tuple[bool, Any]:
        return self.history.attempt(call, *allowed)

    # -- putting ----------------------------------------------------------------------------------------------------

    def put(self, slot: int, cost: int, seated: bool) -> None:
        item = self.items.make()
        number = item.number
        subkey = self.part(cost)
        self.history.putting([slot], [number], [subkey])
        name = self.name(slot)
        whose = self.whose(subkey)
        done, _ = self.attempt(
            lambda: self.queue.put(name, item, self.truth(seated), self.seconds(0), cost=self.integer(cost), **whose),
            queue.Full,
        )
        if done:
            self.history.was_put([number])

    def put_many(self, slots: list[int], form: str, seated: bool) -> None:
        if form == "one name":
            slots = [slots[0]] * len(slots)
        objects = [self.items.make() for _ in slots]
        numbers = [item.number for item in objects]
        subkeys = [self.part(len(slots) * place) for place in range(len(slots))]
        self.history.putting(slots, numbers, subkeys)
        whose: dict[str, Any] = {"subkeys": [self.name(subkey) for subkey in subkeys]} if self.subkeys else {}
        if self.priorities:
            whose = {"priorities": [self.integer(3 * priority) for priority in subkeys]}
        names = self.name(slots[0]) if form == "one name" else [self.name(slot) for slot in slots]
        items = walked(objects) if form == "walked" else objects
        shrunk: list[int] = []
        self.lists.append((objects, shrunk))
        done, error = self.attempt(
            lambda: self.queue.put_many(names, items, [1] * len(slots), self.truth(seated), self.seconds(0), **whose),
            queue.Full,
            ValueError,
            RuntimeError,
        )
        self.lists.pop()
        if isinstance(error, RuntimeError) and not (shrunk and "changed while" in str(error)):
            self.history.fault(f"put_many raised {error!r}")
        if done:
            self.history.was_put(numbers)
            for number in shrunk:
                self.history.lives[number].doubtful = True

    def part(self, number: int) -> int:
        """One of the subkeys, or of the priorities, if there are some."""
        return number % (self.subkeys or self.priorities or 1)

    def whose(self, part: int) -> dict[str, Any]:
        """The arguments that say it of one item."""
        if self.priorities:
            return {"priority": self.integer(3 * part)}
        return {"subkey": self.name(part)} if self.subkeys else {}

    def shrink(self) -> None:
        """Take an item out of the list that is just being put."""
        if self.lists and self.lists[-1][0]:
            objects, shrunk = self.lists[-1]
            shrunk.append(objects.pop().number)

    # -- getting ----------------------------------------------------------------------------------------------------

    def get(self, rank: int, seated: bool) -> bool:
        begun = self.history.moment()
        done, result = self.attempt(
            lambda: self.queue.get(self.truth(seated), self.seconds(0), priority=self.integer(rank % self.ranks)),
            queue.Empty,
        )
        if done:
            name, item = result
            self.history.got(begun, number_of(name), item.number)
        elif isinstance(result, queue.Empty):
            self.empties.append((begun, self.history.moment()))
        return done

    def get_many(self, size: int, rank: int) -> None:
        begun = self.history.moment()
        done, result = self.attempt(
            lambda: self.queue.get_many(self.integer(size), self.seconds(0), priority=self.integer(rank % self.ranks)),
            queue.Empty,
        )
        if done:
            if len(result) > size:
                self.history.fault(f"{len(result)} items were got where {size} were wanted")
            for name, item in result:
                self.history.got(begun, number_of(name), item.number)
        elif isinstance(result, queue.Empty):
            self.empties.append((begun, self.history.moment()))

    def wait(self, rank: int) -> None:
        waiting = Waiting(rank % self.ranks)
        done, waiter = self.attempt(
            lambda: self.queue.call_when_ready(waiting.call, priority=self.integer(waiting.rank))
        )
        if done:
            waiting.waiter = waiter
            self.waiters.append(waiting)

    def serve(self) -> None:
        """Have a called waiter get its item, and wait on."""
        for waiting in self.waiters:
            if waiting.called:
                waiting.called = False
                self.get(waiting.rank, False)
                if waiting.waiter is not None:
                    self.attempt(waiting.waiter.again)
                return

    def leave(self) -> None:
        if self.waiters:
            waiting = self.waiters.pop(0)
            waiter, waiting.waiter = waiting.waiter, None  # else it would be garbage, and what it refers to too
            self.attempt(waiter.leave)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def settle(self, slot: int, difference: int) -> None:
        whose = self.whose(self.part(difference))
        self.attempt(lambda: self.queue.settle(self.name(slot), self.integer(difference), **whose))

    def hold(self, slot: int, held: bool, awaited: bool) -> None:
        self.attempt(lambda: self.queue.hold(self.name(slot), self.truth(held), self.truth(awaited)), KeyError)

    def set_quantum(self, slot: int, quantum: int) -> None:
        self.attempt(lambda: self.queue.set_quantum(self.name(slot), self.integer(quantum)))

    def set_band(self, slot: int, band: int) -> None:
        if not self.priorities:
            self.attempt(lambda: self.queue.set_band(self.name(slot), band))

    def add_slot(self, slot: int, quantum: int) -> None:
        self.attempt(lambda: self.queue.add_slot(self.name(slot), self.integer(quantum)), ValueError)

    def retire(self, slot: int) -> None:
        self.attempt(lambda: self.queue.retire(self.name(slot)), KeyError)

    def withdraw(self, places: list[int], form: str) -> None:
        """Take out some of the items that are queued when the call begins, as far as they are there still."""
        done, queued = self.attempt(self.queue.items)
        if not (done and queued):
            return
        chosen = list({id(item): item for item in (queued[place % len(queued)] for place in places)}.values())
        del queued
        items = walked(chosen) if form == "walked" else chosen
        begun = self.history.moment()
        done, found = self.attempt(lambda: self.queue.withdraw(items))
        for item in found if done else ():
            self.history.withdrew(begun, item.number)

    def anticipate(self, patience: float) -> None:
        if self.patience:
            self.attempt(lambda: self.queue.anticipate(self.seconds(patience)))

    def tick(self, seconds: float) -> None:
        self.clock.now += seconds

    def look(self, slot: int) -> None:
        self.attempt(self.queue.stats)
        self.attempt(self.queue.waiting)
        self.attempt(self.queue.anticipated)
        self.attempt(lambda: self.queue.backlog(self.name(slot)))
        self.attempt(lambda: self.queue.subkeys(self.name(slot)))
        done, found = self.attempt(lambda: self.queue.outlook(self.name(slot)), KeyError)
        if done and (found.item is None) != (found.stats.queued == 0):
            self.history.fault(f"an outlook of two moments: {found}")

    # -- judging ----------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """No call is under way: what is queued is what was put and not got, and no getter sleeps beside it."""
        expected = self.history.queued()
        if any(life.doubtful for life in self.history.lives.values()):
            return
        assert not self.history.wrong, "; ".join(self.history.wrong)
        assert self.queue.qsize() == len(expected)
        backlog = Counter(self.history.lives[number].slot for number in expected)
        for slot in range(SLOTS):
            assert self.queue.backlog(self.name(slot)) == backlog[slot], f"slot {slot}"
            if self.subkeys:
                mine = [self.history.lives[number] for number in expected if self.history.lives[number].slot == slot]
                found = {number_of(name): count for name, count in self.queue.subkeys(self.name(slot)).items()}
                assert found == Counter(life.subkey for life in mine), f"slot {slot}"
        stats = [(number_of(name), figures.queued) for name, figures in self.queue.stats().items()]
        assert len(dict(stats)) == len(stats), f"two slots of one name: {stats}"
        assert {slot: count for slot, count in stats if count} == +backlog
        if expected and self.waiters and not self.patience:
            assert any(waiting.called for waiting in self.waiters), "asleep beside an item"

    def check_empties(self) -> None:
        if self.patience or self.ranks > 1:
            return
        for begun, ended in self.empties:
            for number, life in self.history.lives.items():
                if (
                    life.put
                    and not life.doubtful
                    and life.put_ended < begun
                    and (life.got_begun is None or life.got_begun > ended)
                ):
                    self.history.fault(f"the queue was said to be empty while item {number} was in it")

    def finish(self) -> None:
        """Take everything out; nothing is left, and the queue works on."""
        self.check_rest()
        while self.waiters:
            self.leave()
        self.patience = 0
        self.queue.anticipate(0)
        for _ in range(len(self.history.lives) + 1):
            if not self.get(0, False):
                break
        self.check_empties()
        self.history.check_end()
        assert self.queue.qsize() == 0
        for slot in range(SLOTS):
            self.put(slot, 1, False)
            self.check_rest()
            assert self.get(0, False)
        self.history.check_end()
        self.queue.shutdown(immediate=True)
        try:
            self.queue.get(False)
        except ShutDown:
            pass
        else:
            raise AssertionError("something was left")

    def check_let_go(self) -> None:
        """The queue has let go of every item, of each once."""
        del self.queue
        if any(self.items.alive.values()):
            gc.collect()
        assert not any(self.items.alive.values()), {n: count for n, count in self.items.alive.items() if count}


class Waiting:
    """A waiter with a callback."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.called = False
        self.waiter: Any = None

    def call(self) -> None:
        self.called = True
        intruder.point("callback", raises=False)


slots = st.integers(0, SLOTS - 1)
ranks = st.integers(0, 2)
putting: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("put"), slots, st.integers(1, 3), st.booleans()),
    st.tuples(
        st.just("put_many"),
        st.lists(slots, min_size=1, max_size=3),
        st.sampled_from(["names", "one name", "walked"]),
        st.booleans(),
    ),
)
getting: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("get"), ranks, st.booleans()),
    st.tuples(st.just("get_many"), st.integers(0, 4), ranks),
    st.tuples(st.just("wait"), ranks),
    st.just(("serve",)),
)
tending: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("settle"), slots, st.integers(-3, 3)),
    st.tuples(st.just("hold"), slots, st.booleans(), st.booleans()),
    st.tuples(st.just("set_quantum"), slots, st.integers(1, 3)),
    st.tuples(st.just("set_band"), slots, st.integers(3, 5)),
    st.tuples(st.just("add_slot"), slots, st.integers(1, 3)),
    st.tuples(st.just("retire"), slots),
    st.tuples(st.just("anticipate"), st.sampled_from([0.0, 0.5])),
    st.tuples(st.just("tick"), st.sampled_from([0.25, 1.0])),
    st.tuples(st.just("look"), slots),
    st.just(("leave",)),
    st.just(("shrink",)),
)
withdrawing: st.SearchStrategy[Step] = st.tuples(
    st.just("withdraw"), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.sampled_from(["list", "walked"])
)
steps = st.one_of(putting, putting, putting, getting, getting, withdrawing, tending)


seated: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("get"), st.just(2), st.just(True)), st.tuples(st.just("get_many"), st.just(2), st.just(2))
)
without_names = scripts(steps, steps, ["callback", "clock", "collector", "finalizer"], st.booleans())
with_names = scripts(steps, steps, ["hash", "equality", "callback", ""], st.just(False))
raising = scripts(steps, steps | st.none(), ["hash", "equality", "clock", ""], st.just(False))
handing_over = st.lists(
    st.tuples(
        seated,
        st.tuples(
            st.tuples(st.just("clock"), st.integers(0, 2), st.booleans(), putting),
            st.tuples(st.just("callback"), st.just(0), st.booleans(), putting | getting),
        ),
        st.just(False),
    ),
    min_size=1,
    max_size=6,
)
worlds = st.fixed_dictionaries(
    {
        "maxsize": st.sampled_from([0, 0, 3]),
        "patience": st.sampled_from([0.0, 0.0, 0.5]),
        "ranks": st.sampled_from([1, 3]),
        "odd": st.booleans(),
        "waiters": st.sampled_from([0, 1, 3]),
        "boost": st.booleans(),
        "subkeys": st.sampled_from([0, 0, 1, 3]),
        "priorities": st.sampled_from([0, 0, 3]),
    }
)


python_names = st.sampled_from([kind for kind in NAMES if kind != "str"])


@BRIEF
@given(options=worlds, script=without_names)
def test_calls_come_in_where_callbacks_and_the_collector_run(options: dict[str, Any], script: Script) -> None:
    play(World("str", **{**options, "odd": False}), script)


@BRIEF
@given(options=worlds, script=handing_over)
def test_calls_come_in_while_a_getter_hands_over(options: dict[str, Any], script: Script) -> None:
    """A waiter hands over what is left to one of a lower priority, whose callback uses the queue at once."""
    served = [(("serve",), (), False)]
    play(World("str", **{**options, "ranks": 3, "waiters": 1}), [part for step in script for part in (step, *served)])


@BRIEF
@given(kind=python_names, options=worlds, script=with_names)
def test_calls_come_in_wherever_names_run(kind: str, options: dict[str, Any], script: Script) -> None:
    play(World(kind, **options), script)


@BRIEF
@given(kind=python_names, options=worlds, script=raising)
def test_whatever_raises_wherever_python_runs(kind: str, options: dict[str, Any], script: Script) -> None:
    """Nothing is lost when a hash, an equality, a clock or a number raises."""
    play(World(kind, **options), script)
