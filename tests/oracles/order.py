"""Order per key over many processes: whether what workers wrote down can be what was promised."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

#: Nanoseconds after a fault in which a worker may not have noticed it yet, and begins with what it had buffered.
UNNOTICED = 1e9


class Handling(NamedTuple):
    """One call of a handler; `end` is infinite if it never returned."""

    worker: str
    key: str
    number: int
    begin: float
    end: float


def handlings(worker: str, lines: Iterable[str]) -> list[Handling]:
    """Read what a worker wrote: lines such as ``begin acme 7 123456789``."""
    open_: dict[tuple[str, int], float] = {}
    found = []
    for line in lines:
        what, key, number, when = line.split()
        if what == "begin":
            assert (key, int(number)) not in open_, f"{worker} handles {key} {number} twice at once"
            open_[key, int(number)] = float(when)
        else:
            found.append(Handling(worker, key, int(number), open_.pop((key, int(number))), float(when)))
    found += [Handling(worker, key, number, begin, float("inf")) for (key, number), begin in open_.items()]
    return found


class Losses(dict[str, list[tuple[float, float]]]):
    """By worker, the periods in which it lost what it had, in nanoseconds of the monotonic clock."""

    @contextlib.contextmanager
    def during(self, workers: Iterable[str]) -> Iterator[None]:
        """Note that workers lose what they have in the block: killed, or cut off from the broker."""
        begin = float(time.monotonic_ns())
        yield
        for worker in workers:
            self.setdefault(worker, []).append((begin, time.monotonic_ns() + UNNOTICED))


def check(
    handled: Iterable[Handling], lost: Mapping[str, Iterable[tuple[float, float]]], counts: Mapping[str, int]
) -> None:
    """Raise AssertionError unless every message was handled, in order and one at a time.

    Parameters
    ----------
    handled : iterable of Handling
        Of all workers.
    lost : mapping of str to iterable of (float, float)
        Periods in which a worker lost what it had, because it was killed or its connection was cut: from the begin of
        the period on, another may have the message that it is handling.
    counts : mapping of str to int
        Messages of each key, which are numbered from 0.
    """
    by_key: dict[str, list[Handling]] = defaultdict(list)
    for one in handled:
        by_key[one.key].append(one)
    for key, count in counts.items():
        found = sorted(by_key[key], key=lambda one: one.begin)
        assert {one.number for one in found if one.end < float("inf")} == {*range(count)}, (
            f"{key}: messages are missing"
        )
        _check_order(key, found)
        _check_one_at_a_time(key, found, lost)


def _check_order(key: str, found: list[Handling]) -> None:
    """No message begins before each older one was handled to its end."""
    first: dict[int, Handling] = {}
    for one in found:
        if one.number not in first or one.end < first[one.number].end:
            first[one.number] = one
    # In the order of their numbers, the one of all older ones that ended last.
    latest: Handling | None = None
    older: dict[int, Handling | None] = {}
    for number in sorted(first):
        older[number] = latest
        if latest is None or first[number].end > latest.end:
            latest = first[number]
    for one in found:
        before = older[one.number]
        assert before is None or one.begin >= before.end, f"{key}: {one} began before an older one had ended: {before}"


def _check_one_at_a_time(key: str, found: list[Handling], lost: Mapping[str, Iterable[tuple[float, float]]]) -> None:
    """No two messages of a key are handled at once, unless the worker of the first had lost what it had by then."""
    for one, other in itertools.pairwise(found):
        end = min([begin for begin, over in lost.get(one.worker, ()) if over >= one.begin], default=float("inf"))
        assert other.begin >= min(one.end, end), f"{other} began while {one} was handled"
