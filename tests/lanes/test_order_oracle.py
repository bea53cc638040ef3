"""The oracle of order finds what it is there to find."""

from __future__ import annotations

import pytest
from oracles.order import check, handlings


def lines(*records: str) -> list[str]:
    return [f"{what} k {rest}" for what, _, rest in (record.partition(" ") for record in records)]


GOOD = {"a": lines("begin 0 1", "end 0 2"), "b": lines("begin 1 3", "end 1 4")}


def judge(
    histories: dict[str, list[str]], lost: dict[str, list[tuple[float, float]]] | None = None, count: int = 2
) -> None:
    handled = [one for worker, history in histories.items() for one in handlings(worker, history)]
    check(handled, lost or {}, {"k": count})


def test_what_is_in_order_is_accepted() -> None:
    judge(GOOD)
    # Worker a dies with message 0 in hand, and b handles it again.
    judge({"a": lines("begin 0 1"), "b": lines("begin 0 5", "end 0 6", "begin 1 7", "end 1 8")}, {"a": [(4.0, 4.5)]})


@pytest.mark.parametrize(
    ("histories", "reason"),
    [
        ({"a": lines("begin 0 1", "end 0 2")}, "messages are missing"),
        ({"a": lines("begin 0 1"), "b": lines("begin 1 2", "end 1 3")}, "messages are missing"),
        ({"a": lines("begin 1 1", "end 1 2", "begin 0 3", "end 0 4")}, r"'a'.* number=1.* began before an older one"),
        (
            {"a": lines("begin 0 1", "end 0 5"), "b": lines("begin 1 3", "end 1 6")},
            r"'b'.* number=1.* began before an older one",
        ),
        ({"a": lines("begin 0 1", "end 0 4"), "b": lines("begin 0 2", "end 0 3", "begin 1 5", "end 1 6")}, "while"),
    ],
)
def test_what_is_not_is_found(histories: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        judge(histories)


def test_a_worker_that_died_later_was_alive() -> None:
    with pytest.raises(AssertionError, match="while"):
        judge(
            {"a": lines("begin 0 1"), "b": lines("begin 0 5", "end 0 6", "begin 1 7", "end 1 8")}, {"a": [(9.0, 9.5)]}
        )
