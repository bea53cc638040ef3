"""Filters while others come, go and change their minds in them: each filter that is to be asked is asked, and once."""

from __future__ import annotations

from typing import Any

import pytest
from support.queue_engines import Engine, lists_of, on_both, pulled

from fairsched.pullqueue import PullQueue

COUNT = 12


@pytest.mark.parametrize("change", ["cancel", "pause", "return"])
@pytest.mark.parametrize("distance", [-1, 0, 1])
@pytest.mark.parametrize("acquires", [True, False])
@pytest.mark.parametrize("levels", [1, 4])
def test_a_put_goes_on_where_it_stood_though_that_one_goes(
    change: str, distance: int, acquires: bool, levels: int
) -> None:
    """In the middle a filter has its consumer, or the one beside it, go, pause, or go to the end of the line."""
    jobs, asked, members = PullQueue(), [], []

    def refusing(number: int) -> Any:
        def accepts(item: Any) -> bool:
            asked.append(number)
            if len(asked) == COUNT // 2:
                other = members[number + distance]
                if change == "cancel":
                    other.cancel()
                else:
                    other.interested = False
                    other.interested = change == "return"
            return False

        return accepts

    members += [
        jobs.subscribe(filter=refusing(number), acquires=acquires, priority=number % levels) for number in range(COUNT)
    ]
    last = jobs.subscribe("last", filter=lambda item: True, priority=-1)
    jobs.put("job")
    assert "N[last]" in lists_of(jobs)
    assert len(set(asked)) >= COUNT - 1
    assert pulled(last) == "job"


@pytest.mark.parametrize("acquires", [True, False])
def test_a_consumer_before_the_place_where_a_put_stands_is_asked(acquires: bool) -> None:
    jobs, asked, late = PullQueue(), [], []

    def refuses(item: Any) -> bool:
        asked.append(item)
        if len(asked) == COUNT // 2:
            late.append(jobs.subscribe("late", priority=9, acquires=acquires, filter=lambda item: True))
        return False

    for _ in range(COUNT):
        jobs.subscribe(filter=refuses)
    jobs.put("job")
    assert late[0].notified_count == (1 if acquires else 2)  # a browser is told when it comes, too
    assert pulled(late[0]) == "job"


@pytest.mark.parametrize("kind", ["standard", "fair"])
def test_a_look_past_refusals_finds_what_came_back_before_it(kind: str) -> None:
    """A message comes back before the place where the look has come to: it is what comes first."""
    jobs = PullQueue(kind, quanta={"a": 1} if kind == "fair" else None)
    other = jobs.subscribe("other")
    for number in range(9):
        jobs.put(number, slot="a" if kind == "fair" else None)
    entry = other.pull()
    assert entry.item == 0
    asked: list[int] = []

    def accepts(item: int) -> bool:
        asked.append(item)
        if item == 5:
            entry.release()
        return item in (0, 7)

    other.interested = False
    picky = jobs.subscribe("picky", filter=accepts)
    assert [pulled(picky), pulled(picky), picky.pull()] == [0, 7, None]
    assert sorted(set(asked)) == list(range(9))


@on_both
def test_who_went_past_a_message_for_one_above_is_not_told_of_what_it_refuses(engine: Engine) -> None:
    """The one above finds nothing more; the one below comes back to the messages behind, and refuses them."""
    jobs = engine()
    for number in range(1, 4):
        jobs.put(number)
    above = jobs.subscribe("above", filter=lambda number: number % 2 == 0)
    below = jobs.subscribe("below", filter=lambda number: number % 2 == 0, priority=-1)
    assert pulled(above) == 2
    assert pulled(above) is None
    assert lists_of(jobs) == "I[above,below]"
    assert below.notified_count == 0


@on_both
def test_who_went_past_a_message_for_one_above_is_told_of_what_it_accepts(engine: Engine) -> None:
    """The one above is not interested any more in the message that was kept for it."""
    jobs = engine()
    for number in range(1, 4):
        jobs.put(number)
    above = jobs.subscribe("above", filter=lambda number: number % 2 == 0)
    below = jobs.subscribe("below", filter=lambda number: number == 2, priority=-1)
    assert below.notified_count == 0
    above.interested = False
    assert below.notified_count == 1
    assert pulled(below) == 2
