"""The node list from one thread: what deletes, walks and promises come to, and its memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.interest import ReferenceCursor, ReferenceList

from fairsched import _probe_nodes


def filled(count: int = 3, threshold: int = 100) -> tuple[_probe_nodes.ProbeList, list[int]]:
    nodes = _probe_nodes.ProbeList(threshold)
    return nodes, [nodes.append(number) for number in range(1, count + 1)]


def test_an_empty_list_has_nothing() -> None:
    nodes = _probe_nodes.ProbeList()
    assert (len(nodes), nodes.items(), nodes.physical, nodes.valid) == (0, [], 0, True)


@pytest.mark.parametrize(
    ("deleted", "left"),
    [([0], [2, 3]), ([1], [1, 3]), ([2], [1, 2]), ([0, 1], [3]), ([1, 2], [1]), ([0, 2], [2]), ([2, 1, 0], [])],
)
def test_deleted_entries_are_skipped(deleted: list[int], left: list[int]) -> None:
    nodes, handles = filled()
    for index in deleted:
        assert nodes.delete(handles[index])
    assert (len(nodes), nodes.items(), nodes.valid) == (len(left), left, True)


def test_a_deleted_entry_stays_linked_until_a_walk() -> None:
    nodes, handles = filled()
    nodes.delete(handles[1])
    assert (nodes.physical, len(nodes)) == (3, 2)
    nodes.items()
    assert nodes.physical == 2


def test_a_dead_tail_stays_as_a_dummy() -> None:
    nodes, handles = filled(1)
    nodes.delete(handles[0])
    assert (nodes.items(), nodes.physical, len(nodes)) == ([], 1, 0)
    nodes.append(7)
    assert (nodes.items(), nodes.physical, nodes.valid) == ([7], 1, True)


def test_a_second_delete_is_refused_and_changes_nothing() -> None:
    nodes, handles = filled()
    assert nodes.delete(handles[1])
    assert not nodes.delete(handles[1])
    assert (len(nodes), nodes.valid) == (2, True)


def test_an_old_cursor_finds_what_follows_a_dead_tail() -> None:
    nodes, handles = filled(1)
    cursor = nodes.cursor()
    assert next(cursor) == 1
    nodes.delete(handles[0])
    assert not cursor.has_next()
    nodes.append(2)
    assert cursor.has_next()
    assert next(cursor) == 2
    cursor.close()


def test_has_next_may_be_asked_again() -> None:
    nodes, _ = filled()
    cursor = nodes.cursor()
    assert all(cursor.has_next() for _ in range(5))
    assert list(cursor) == [1, 2, 3]
    assert not cursor.has_next()
    with pytest.raises(StopIteration):
        next(cursor)
    cursor.close()


def test_a_promised_element_is_returned_though_deleted() -> None:
    nodes, handles = filled()
    cursor = nodes.cursor()
    assert cursor.has_next()
    nodes.delete(handles[0])
    assert next(cursor) == 1
    assert list(cursor) == [2, 3]
    cursor.close()


def test_a_walk_goes_on_from_an_element_that_moves_to_another_list() -> None:
    nodes, handles = filled(5)
    other = _probe_nodes.ProbeList()
    met = []
    cursor = nodes.cursor()
    for node in cursor:
        met.append(node)
        nodes.delete(handles[node - 1])
        other.append(node)
        nodes.items()  # unlinks what was deleted, the cursor's own entry included
    cursor.close()
    assert met == other.items() == [1, 2, 3, 4, 5]
    assert nodes.valid


def test_entries_are_not_used_again_while_a_cursor_may_hold_them() -> None:
    nodes, handles = filled(3, threshold=0)
    cursor = nodes.cursor()
    assert next(cursor) == 1
    for _ in range(10_000):
        handles = [nodes.append(9), *(handle for handle in handles if not nodes.delete(handle))]
    assert list(cursor) == [9]
    assert nodes.capacity >= 10_000  # the cursor is inside: nothing could be used again
    cursor.close()


@pytest.mark.parametrize("threshold", [0, 1, 10, 100])
def test_scavenging_starts_strictly_above_the_threshold(threshold: int) -> None:
    nodes = _probe_nodes.ProbeList(threshold)
    handle = nodes.append(1)
    most = 0
    for _ in range(5 * (threshold + 1)):
        following = nodes.append(1)
        nodes.delete(handle)
        handle = following
        most = max(most, nodes.physical)
    assert most == max(threshold, 1) + 1  # and never for less dead than alive
    assert nodes.valid


def test_a_million_moves_of_one_consumer_take_no_more_room() -> None:
    nodes = _probe_nodes.ProbeList(100)
    nodes.cycle(10_000)
    capacity = nodes.capacity
    nodes.cycle(1_000_000)
    assert nodes.physical <= 100 + 2
    assert nodes.capacity == capacity <= 1024
    nodes.items()
    assert nodes.physical <= 1


def test_a_long_list_is_not_walked_for_every_hundred_deletes() -> None:
    """Dead, still linked entries stay fewer than what is alive, or the threshold: so a delete costs O(1), amortised."""
    nodes = _probe_nodes.ProbeList(10)
    handles = [nodes.append(1) for _ in range(1000)]
    for _ in range(5):
        handles = [nodes.append(1) for handle in handles if nodes.delete(handle)]
        assert nodes.physical <= 2 * 1000 + 2
        assert nodes.valid
    assert len(nodes) == 1000


operations = st.lists(
    st.one_of(
        st.just(("append", 0)),
        st.tuples(st.sampled_from(["delete", "look", "step", "open"]), st.integers(0, 30)),
    ),
    max_size=80,
)


@given(operations, st.integers(0, 4))
def test_any_sequence_does_what_the_oracle_does(steps: list[tuple[str, int]], threshold: int) -> None:
    nodes, oracle = _probe_nodes.ProbeList(threshold), ReferenceList()
    handles: dict[int, int] = {}
    cursors = [(nodes.cursor(), ReferenceCursor(oracle))]
    for what, which in steps:
        cursor, expected = cursors[which % len(cursors)]
        if what == "append":
            number = oracle.append(len(handles) + 1)
            handles[number] = nodes.append(len(handles) + 1)
        elif what == "delete" and handles:
            number = which % len(handles) + 1
            if oracle.delete(number):  # a handle is good for one delete: its entry may be in use again afterwards
                assert nodes.delete(handles[number])
        elif what == "look":
            assert cursor.has_next() == expected.has_next()
        elif what == "step":
            assert next(cursor, None) == expected.next()
        elif what == "open" and len(cursors) < 4:
            cursors.append((nodes.cursor(), ReferenceCursor(oracle)))
        assert len(nodes) == len(oracle.entries)
        assert nodes.valid
    assert nodes.items() == oracle.items()
    for cursor, _ in cursors:
        cursor.close()
