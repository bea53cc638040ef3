"""An alternate that raises: the message is kept, seen, and offered again. Nothing is lost."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock
from support.queue_engines import Engine, drain, items, on_both

import fairsched


class Alternate:
    """An alternate that takes something only while it is open."""

    def __init__(self) -> None:
        self.open = False
        self.taken: list[tuple[Any, str]] = []

    def __call__(self, item: Any, reason: str) -> None:
        if not self.open:
            raise ConnectionError
        self.taken.append((item, reason))


def expire_by_a_pull(queue: Any, clock: ManualClock) -> str:
    queue.put(0, ttl=1)
    clock.now = 2
    assert queue.subscribe().pull() is None
    return "expired"


def expire_by_housekeeping(queue: Any, clock: ManualClock) -> str:
    queue.put(0, ttl=1)
    clock.now = 2
    queue.expire()
    return "expired"


def expire_by_a_release(queue: Any, clock: ManualClock) -> str:
    queue.put(0, ttl=1)
    entry = queue.subscribe().pull()
    clock.now = 2
    assert entry.release()
    return "expired"


def reach_the_delivery_limit(queue: Any, clock: ManualClock) -> str:
    queue.put(0)
    worker = queue.subscribe()
    for _ in range(2):
        assert worker.pull().release()
    return "delivery_limit"


def release_into_a_closed_queue(queue: Any, clock: ManualClock) -> str:
    queue.put(0)
    entry = queue.subscribe().pull()
    assert queue.close() == []
    assert entry.release()
    return "closed"


def reject_into_a_closed_queue(queue: Any, clock: ManualClock) -> str:
    queue.put(0)
    entry = queue.subscribe().pull()
    assert queue.close() == []
    assert entry.reject()
    return "closed"


WAYS: list[Callable[[Any, ManualClock], str]] = [
    expire_by_a_pull,
    expire_by_housekeeping,
    expire_by_a_release,
    reach_the_delivery_limit,
    release_into_a_closed_queue,
    reject_into_a_closed_queue,
]


@on_both
@pytest.mark.parametrize("leave", WAYS)
def test_what_the_alternate_does_not_take_is_kept(engine: Engine, leave: Callable[[Any, ManualClock], str]) -> None:
    clock, alternate = ManualClock(), Alternate()
    queue = engine(clock=clock, max_deliveries=2, alternate=alternate)
    reason = leave(queue, clock)
    assert (queue.depth, list(queue.undelivered), alternate.taken) == (0, [(0, reason)], [])
    queue.expire()
    assert list(queue.undelivered) == [(0, reason)]
    alternate.open = True
    queue.expire()
    assert (list(queue.undelivered), alternate.taken) == ([], [(0, reason)])


@on_both
def test_an_alternate_queue_that_is_full_takes_no_more(engine: Engine) -> None:
    graveyard = engine(max_depth=1, overflow="reject")
    queue = engine(max_deliveries=1, alternate=graveyard)
    worker = queue.subscribe()
    for item in range(3):
        queue.put(item)
        worker.pull().release()
    assert list(queue.undelivered) == [(1, "delivery_limit"), (2, "delivery_limit")]
    digger = graveyard.subscribe()
    digger.pull().ack()
    queue.expire()
    assert (items(drain(digger)), list(queue.undelivered)) == ([1], [(2, "delivery_limit")])


@on_both
@pytest.mark.parametrize(("overflow", "left"), [("ring", [2, 3]), ("reject", [0, 1])])
def test_what_a_limit_drops_or_refuses_is_not_for_the_alternate(engine: Engine, overflow: str, left: list[int]) -> None:
    """A ring drops the oldest, as it was asked to; what put refuses was never in the queue."""
    queue = engine(max_depth=2, overflow=overflow, alternate=Alternate())
    refused = 0
    for item in range(4):
        try:
            queue.put(item)
        except queues.Full:
            refused += 1
    assert (items(drain(queue.subscribe())), list(queue.undelivered)) == (left, [])
    assert refused == (2 if overflow == "reject" else 0)


@on_both
def test_close_hands_back_what_is_undelivered_and_keeps_it(engine: Engine) -> None:
    queue = engine(max_deliveries=1, alternate=Alternate())
    worker = queue.subscribe()
    for item in range(3):
        queue.put(item)
    one, two, three = drain(worker)
    one.release()
    three.release()
    assert queue.close() == [(0, "delivery_limit"), (2, "delivery_limit")]
    two.release()
    assert queue.close() == [(0, "delivery_limit"), (2, "delivery_limit"), (1, "closed")]
    assert queue.undelivered.popleft() == (0, "delivery_limit")  # the program has seen to it
    queue.expire()
    assert list(queue.undelivered) == [(2, "delivery_limit"), (1, "closed")]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([None, 0, 2])),
        st.tuples(st.sampled_from(["pull", "expire", "close"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["ack", "release", "reject"]), st.integers(0, 9)),
    ),
    max_size=60,
)


@on_both
@given(steps=steps, takes=st.lists(st.booleans(), max_size=40), kind=st.sampled_from(["standard", "priority", "fair"]))
def test_every_message_is_in_one_place(engine: Engine, steps: list[Any], takes: list[bool], kind: str) -> None:
    """Whatever happens, and whenever the alternate raises: acked, in the queue, in the alternate's hands, or kept."""
    clock, takes = ManualClock(), list(takes)
    taken: list[Any] = []
    acked: list[Any] = []
    entries: list[Any] = []
    put = 0

    def alternate(item: Any, reason: str) -> None:
        if takes and takes.pop():
            raise ConnectionError
        taken.append(item)

    options: dict[str, Any] = {"quanta": {"a": 1}} if kind == "fair" else {}
    queue = engine(kind, clock=clock, max_deliveries=2, alternate=alternate, **options)
    workers = [queue.subscribe(), queue.subscribe()]
    for what, how in steps:
        if what == "put":
            try:
                queue.put(put, ttl=how, slot="a" if kind == "fair" else None)
                put += 1
            except fairsched.ShutDown:
                pass
        elif what == "pull":
            entries += filter(None, [workers[how % 2].pull()])
        elif what == "expire":
            clock.now += how
            queue.expire()
        elif what == "close" and how == 2:
            assert queue.close() == list(queue.undelivered)
        elif what in ("ack", "release", "reject") and entries:
            entry = entries.pop(how % len(entries))
            assert getattr(entry, what)()
            acked += [entry.item] if what == "ack" else []
        kept = [item for item, _ in queue.undelivered]
        gone = acked + taken + kept
        assert len(set(gone)) == len(gone)
        assert queue.depth == put - len(gone)
        assert set(gone).isdisjoint(entry.item for entry in entries)
