"""Callbacks that use the queue they are called by, and are interrupted: at any time, and within one another.

Every callback takes its next action from a script. Whatever these are: no message is lost or doubled, each
claimed consumer was told, and when all is quiet none sleeps beside work.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collecting import collecting

from fairsched.pullqueue import Entry, PullQueue, Subscription

DEPTH = 3


class Interrupt(BaseException):
    """From a callback of that kind."""


class World:
    """A queue, its users, and a record of what became of every item."""

    def __init__(self, kind: Any, script: list[int]) -> None:
        self.script = iter(script)
        self.depth = 0
        self.time = 0.0
        self.put_so_far = 0
        self.queued: set[int] = set()
        self.acked: list[int] = []
        self.dead: list[int] = []
        self.entries: list[Entry] = []
        self.subscriptions: list[Subscription] = []
        self.seen_empty: dict[str, int] = {}
        self.queue = PullQueue(
            kind,
            key=self.callback("key", lambda item: str(item % 3)),
            max_deliveries=3,
            alternate=self.callback("alternate", lambda item, reason: self.dead.append(item)),
            clock=self.callback("clock", lambda: self.time),
        )

    def callback(self, kind: str, result: Callable[..., Any]) -> Callable[..., Any]:
        """A callback that does what the script says, and then what it is for."""

        def call(*arguments: Any) -> Any:
            try:
                self.act(next(self.script, 0))
            except Interrupt:
                raise Interrupt(kind) from None
            return result(*arguments)

        return call

    def act(self, number: int) -> None:
        """Take an action, unless this is too deep: most numbers are none."""
        actions = list(self.actions())
        action = actions[number % len(actions)] if number % 2 else None
        if action is None or self.depth == DEPTH:
            return
        self.depth += 1
        try:
            action(number // len(actions))
        finally:
            self.depth -= 1

    def actions(self) -> Iterator[Callable[[int], Any]]:
        yield self.put
        yield self.pull
        yield self.interrupt
        yield self.put
        yield self.pull_many
        yield self.settle
        yield self.fail
        yield self.subscribe
        yield self.settle
        yield self.cancel
        yield self.wish
        yield self.credit
        yield self.expire
        yield lambda number: self.queue.lists()
        yield lambda number: gc.collect(0)

    def interrupt(self, number: int) -> None:
        raise Interrupt

    def fail(self, number: int) -> None:
        if self.depth > 1:  # only callbacks fail
            raise ZeroDivisionError

    def put(self, number: int) -> None:
        item = self.put_so_far
        self.put_so_far += 1
        try:
            self.queue.put(
                item,
                ttl=number % 3 + 0.5 if number % 4 == 0 else None,
                not_before=number % 5 if number % 4 == 1 else None,
            )
        except Interrupt as error:
            if error.args[0] not in ("key", "clock"):  # these come before
                self.queued.add(item)
            raise
        self.queued.add(item)

    def chosen(self, number: int) -> Subscription | None:
        return self.subscriptions[number % len(self.subscriptions)] if self.subscriptions else None

    def pull(self, number: int) -> bool:
        if (subscription := self.chosen(number)) is None:
            return False
        with self.look(subscription) as found:
            if (entry := subscription.pull()) is not None:
                found.append(entry)
        return bool(found)

    @contextlib.contextmanager
    def look(self, subscription: Subscription) -> Iterator[list[Entry]]:
        """A consumer that finds nothing is told before it pulls again; else it goes on, even if interrupted."""
        count, found = subscription.notified_count, list[Entry]()
        self.seen_empty[subscription.name] = -1
        yield found
        self.entries += found
        self.seen_empty[subscription.name] = -1 if found else count

    def pull_many(self, number: int) -> None:
        if (subscription := self.chosen(number)) is not None:
            with self.look(subscription) as found:
                found.extend(subscription.pull_many(number % 4 + 1))

    def settle(self, number: int) -> None:
        if not self.entries:
            return
        entry = self.entries.pop(number % len(self.entries))
        verdict = (entry.ack, entry.release, entry.ack, entry.reject)[number % 4]
        try:
            settled = verdict()
        except (Interrupt, ZeroDivisionError):
            if not entry.settled:
                self.entries.append(entry)
            elif number % 2 == 0 and entry.subscription.acquires:
                self.acked.append(entry.item)
            raise
        if settled and number % 2 == 0 and entry.subscription.acquires:
            self.acked.append(entry.item)

    def subscribe(self, number: int) -> None:
        if len(self.subscriptions) > 5:
            return
        before = {name for names in self.queue.lists().values() for name in names}
        name = f"s{number}.{self.put_so_far}.{len(before)}.{id(object())}"
        try:
            subscription = self.queue.subscribe(
                name,
                acquires=number % 5 != 0,
                filter=self.callback("filter", lambda item: item % 2 == number % 2) if number % 3 == 0 else None,
                credit=number % 3 + 1 if number % 4 == 0 else None,
                on_work=self.callback("on_work", lambda subscription: None),
                interested=number % 7 != 0,
            )
        except (Interrupt, ZeroDivisionError):
            assert name not in {name for names in self.queue.lists().values() for name in names}
            raise
        self.subscriptions.append(subscription)

    def cancel(self, number: int) -> None:
        if (subscription := self.chosen(number)) is None or len(self.subscriptions) < 2:
            return
        self.subscriptions.remove(subscription)
        try:
            subscription.cancel(release=number % 2 == 0)
        except (Interrupt, ZeroDivisionError):
            if "cancelled" not in repr(subscription):  # the clock failed
                self.subscriptions.append(subscription)
            raise

    def wish(self, number: int) -> None:
        if (subscription := self.chosen(number)) is not None:
            subscription.interested = number % 4 != 0

    def credit(self, number: int) -> None:
        if (subscription := self.chosen(number)) is not None:
            subscription.credit = number % 4 or None

    def expire(self, number: int) -> None:
        self.time += number % 3
        self.queue.expire()

    def top(self, number: int) -> None:
        """An action outside of any callback."""
        try:
            self.act(number)
        except (Interrupt, ZeroDivisionError):
            pass
        assert self.depth == 0

    def check_told(self) -> None:
        """A notified consumer has been told since it last found nothing."""
        counts = {subscription.name: subscription.notified_count for subscription in self.subscriptions}
        for name in self.queue.lists()["notified"]:
            assert counts[name] > self.seen_empty.get(name, 0), name

    def check_kept(self) -> None:
        """Nothing is lost."""
        undelivered = [item for item, _ in self.queue.undelivered]
        gone = sorted([*self.acked, *self.dead, *undelivered])
        assert len(set(gone)) == len(gone)
        assert set(gone) <= self.queued
        assert self.queue.depth == len(self.queued) - len(gone)

    def rest(self) -> None:
        """Let all do what they were told, until none has anything to do: then none may find anything."""
        self.script = iter(())
        self.time += 100
        self.queue.expire()
        for entry in self.entries:
            entry.release()
        self.entries.clear()
        for subscription in self.subscriptions:
            subscription.credit = None
            subscription.interested = True
        for _ in range(1000):
            notified = self.queue.lists()["notified"]
            if not notified:
                break
            subscription = next(s for s in self.subscriptions if s.name == notified[0])
            if (entry := subscription.pull()) is not None and entry.ack():
                self.acked.append(entry.item)
        assert not self.queue.lists()["notified"]
        for subscription in self.subscriptions:
            if subscription.acquires:
                assert subscription.pull() is None, f"{subscription} sleeps beside work"


@pytest.mark.parametrize("kind", ["standard", "priority", "sorted"])
@given(
    st.lists(st.integers(0, 2**16).map(lambda n: 2 * n + 1), max_size=60),
    st.lists(st.integers(0, 2**17), max_size=200),
)
@settings(max_examples=150, deadline=None)
def test_callbacks_may_do_anything(kind: str, actions: list[int], script: list[int]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        world = World(kind, script)
        world.subscribe(1)
        world.subscribe(2)
        for number in actions:
            world.top(number)
            world.check_told()
            world.check_kept()
        world.rest()
        world.check_kept()
    finally:
        logging.disable(logging.NOTSET)


# -- the collector -----------------------------------------------------------------------------------------------------


def take(worker: Subscription) -> Any:
    return worker.pull()


def take_many(worker: Subscription) -> Any:
    return worker.pull_many(3)


@pytest.mark.parametrize("call", [take, take_many])
def test_a_finalizer_does_not_run_inside(call: Callable[[Subscription], Any]) -> None:
    """No call is inside when it runs, so what leaves the queue meanwhile is freed at once."""
    queue = PullQueue()
    worker = queue.subscribe("worker")
    others = [queue.subscribe(f"other {number}") for number in range(100)]
    queue.put("m")
    freed: list[bool] = []

    def cancel() -> None:
        watched = weakref.ref(others[-1])
        others.pop().cancel()
        freed.append(watched() is None)

    with collecting(cancel):
        found = call(worker)
    assert freed
    assert all(freed)
    assert found
