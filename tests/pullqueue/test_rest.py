"""At rest, no interested consumer finds anything: rounds of random operations, and what they have found, made short."""

from __future__ import annotations

import random
from typing import Any

import pytest
from oracles.queue import ReferenceQueue
from support.queue_engines import Engine, compiled_queue, drain, items, lists_of, on_both, pulled
from support.queue_rounds import fails, options_of, shortest, steps_of, story

both_modes = pytest.mark.parametrize("groups", ["standard", "shared"])


def check_rounds(engine: Engine, seeds: range, length: int) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        options, steps = options_of(chance), steps_of(chance, length)
        if engine is ReferenceQueue:  # which is for one call at a time, each to its end
            steps = [step for step in steps if step.what not in ("meddle", "interrupt")]
        if fails(engine, options, steps):
            pytest.fail(f"seed {seed}\n{story(engine, options, shortest(engine, options, steps))}")


@on_both
def test_no_consumer_sleeps_beside_work(engine: Engine) -> None:
    check_rounds(engine, range(200 if engine is ReferenceQueue else 800), 120)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_no_consumer_sleeps_beside_work_in_ten_thousand_rounds(block: int) -> None:
    check_rounds(compiled_queue, range(1000 + 3000 * block, 4000 + 3000 * block), 200)


# -- what would outrank another ---------------------------------------------------------------------------------------


@on_both
def test_a_filter_that_was_not_asked_outranks_no_consumer(engine: Engine) -> None:
    """High likes what low may take, but has nothing to take itself: of what is next for it, it was not asked."""
    queue = engine(groups="shared")
    low = queue.subscribe("low", credit=1)
    queue.put(1, key=1)
    assert pulled(low) == 1
    queue.subscribe("high", priority=1, filter=lambda item: item != 3)
    queue.put(2, key=1)  # low's, by its group
    queue.put(3, key=2)  # not for high
    assert lists_of(queue) == "I[high] X[low]"
    low.credit = 1
    assert lists_of(queue) == "I[high] N[low]"
    assert pulled(low) == 2


# -- a message that comes back, and its group -------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("settlement", ["release", "reject"])
def test_a_returned_message_is_for_no_consumer_but_its_group_is(engine: Engine, settlement: str) -> None:
    """The group is free, and its other message is for one that refuses the one that came back."""
    queue = engine(groups="shared")
    busy = queue.subscribe("busy", credit=1)
    queue.put(1, key=1)
    entry = busy.pull()
    queue.subscribe("picky", filter=lambda item: item != 1)
    queue.put(2, key=1)
    busy.interested = False
    assert lists_of(queue) == "I[picky] X[busy]"
    getattr(entry, settlement)()
    assert lists_of(queue) == "N[picky] X[busy]"


@on_both
def test_what_was_rejected_by_all_frees_its_group(engine: Engine) -> None:
    """Without filters: the consumer that rejected the returned message is told of the group's other."""
    queue = engine(groups="shared")
    one, other = queue.subscribe("one"), queue.subscribe("other")
    queue.put(1, key=1)
    one.pull().reject()
    entry = other.pull()
    queue.put(2, key=1)
    other.interested = False
    assert (one.pull(), lists_of(queue)) == (None, "I[one] X[other]")
    entry.release()
    assert lists_of(queue) == "N[one] X[other]"
    assert pulled(one) == 2


# -- browsers ---------------------------------------------------------------------------------------------------------


@on_both
@both_modes
def test_a_browser_sees_no_group_again_that_becomes_free(engine: Engine, groups: str) -> None:
    """It goes past no message because of its group."""
    queue = engine(groups=groups)
    worker, other = queue.subscribe("worker"), queue.subscribe("other")
    browser = queue.subscribe("browser", acquires=False, sees_requeues=True)
    queue.put(1, key=1)
    queue.put(2, key=1)
    assert pulled(worker) == 1
    assert other.pull() is None
    assert items(drain(browser)) == [2]
    worker.cancel()
    assert browser.pull() is None
    assert pulled(other) == 2


@pytest.mark.parametrize("kind", ["standard", "priority", "sorted"])
def test_a_browser_is_told_of_what_another_had_before_it_was_told(kind: str) -> None:
    """A message is taken while a filter is asked about it, and then comes back, for browsers that see no requeues."""
    queue = compiled_queue(kind)
    worker = queue.subscribe("worker")
    entries: list[Any] = []

    def accepts(item: int) -> bool:
        entries.extend(drain(worker))
        return True

    browser = queue.subscribe("browser", acquires=False, filter=accepts)
    told = browser.notified_count
    queue.put(1)
    entries.pop().release()
    assert browser.notified_count > told


# -- what happens while filters are asked -----------------------------------------------------------------------------


def test_a_message_gone_before_it_is_announced_keeps_no_consumer_asleep() -> None:
    """High was to have message 1, so none was told of message 2; then message 1 was dropped, and never announced."""
    queue = compiled_queue(overflow="ring", max_depth=1)
    low = queue.subscribe("low")
    asked: list[int] = []

    def accepts(item: int) -> bool:
        asked.append(item)
        if asked == [1]:
            queue.put(2)
        return item != 2

    queue.subscribe("high", priority=1, filter=accepts)
    queue.put(1)
    assert (queue.depth, lists_of(queue)) == (1, "I[high] N[low]")
    assert pulled(low) == 2


def interrupting(at: int) -> Any:
    """A filter that accepts everything, and is interrupted when it is asked for the `at`-th time."""
    asked: list[Any] = []

    def accepts(item: Any) -> bool:
        asked.append(item)
        if len(asked) == at:
            raise KeyboardInterrupt
        return True

    return accepts


def test_an_interrupted_put_tells_its_consumer() -> None:
    queue = compiled_queue()
    consumer = queue.subscribe("consumer", filter=interrupting(1))
    with pytest.raises(KeyboardInterrupt):
        queue.put(1)
    assert (queue.depth, lists_of(queue)) == (1, "N[consumer]")
    assert pulled(consumer) == 1


def test_an_interrupted_pull_passes_the_work_on() -> None:
    """It was to look, had moved to interested for its last look, and did not end that."""
    for at in range(1, 6):
        queue = compiled_queue()
        first = queue.subscribe("first", filter=interrupting(at))
        try:
            queue.put(1)
            while first.pull() is not None:
                pass
        except KeyboardInterrupt:
            pass
        assert queue.available == 0 or lists_of(queue) == "N[first]", at


def test_nothing_is_left_of_an_interrupted_subscribe() -> None:
    queue = compiled_queue(live_consumers=1)
    queue.put(1)
    with pytest.raises(KeyboardInterrupt):
        queue.subscribe("first", filter=interrupting(1))
    assert lists_of(queue) == ""
    assert pulled(queue.subscribe("second")) == 1
