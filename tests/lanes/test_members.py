"""Members: the division of lanes, and which lanes a worker consumes when others come, go, and are not heard."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import Lanes
from fairsched.lanes.members import ALONE, BEAT, FIRST_WAIT, LOST, Members, divide
from fairsched.lanes.membership import LONGEST_BODY, decode

LANES = Lanes("orders", key="header:tenant", ordered=True, buckets=12).bucket_names
WORKERS = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=20)


@given(WORKERS, st.integers(1, 80))
def test_every_worker_has_its_number_of_lanes(workers: set[str], count: int) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=count).bucket_names
    found = divide(lanes, workers)
    assert found.keys() == set(lanes)
    loads = [sum(owner == worker for owner in found.values()) for worker in workers]
    assert {*loads} <= {count // len(workers), math.ceil(count / len(workers))}


@given(WORKERS, st.randoms(use_true_random=False))
def test_all_come_to_the_same_division(workers: set[str], source: random.Random) -> None:
    shuffled, lanes = list(workers), list(LANES)
    source.shuffle(shuffled)
    source.shuffle(lanes)
    assert divide(lanes, shuffled) == divide(LANES, workers)


def test_most_lanes_stay_when_a_worker_joins() -> None:
    source, moved, least = random.Random(1), 0.0, 0.0
    lanes = Lanes("orders", key="header:tenant", buckets=64).bucket_names
    for _ in range(50):
        workers = [source.randbytes(16).hex() for _ in range(source.randint(1, 16))]
        before, after = divide(lanes, workers), divide(lanes, [*workers, "new"])
        moved += sum(before[lane] != after[lane] for lane in lanes)
        least += len(lanes) / (len(workers) + 1)
    assert moved / least < 1.8


def test_no_worker() -> None:
    with pytest.raises(ValueError, match="one or more workers, got none"):
        divide(LANES, [])


def alone(now: float = 0.0) -> Members:
    """A worker that has found no other."""
    members = Members("a", LANES, now)
    members.joined(now)
    members.lanes_at(now + FIRST_WAIT)
    return members


def test_a_worker_alone_has_all_lanes_from_the_start() -> None:
    members = Members("a", LANES, 0.0)
    assert members.lanes_at(0.0) == {*LANES}
    members.joined(0.1)
    assert members.wait(0.1) == pytest.approx(FIRST_WAIT)
    assert members.lanes_at(0.1 + FIRST_WAIT) == {*LANES}
    assert members.present == {"a"}
    assert members.wait(1.0) == math.inf


def test_a_worker_that_starts_is_a_standby_until_it_knows_the_others() -> None:
    members = Members("a", LANES, 0.0)
    members.joined(0.0)
    assert members.here("b", 0.05)
    assert members.lanes_at(0.1) == {*LANES}
    assert members.lanes_at(FIRST_WAIT) == {lane for lane, owner in divide(LANES, "ab").items() if owner == "a"}


def test_lanes_move_when_a_worker_joins_leaves_or_is_lost() -> None:
    members = alone()
    assert members.here("b", 1.0)
    assert not members.here("b", 1.0 + BEAT)
    half = members.lanes_at(1.0 + BEAT)
    assert half == {lane for lane, owner in divide(LANES, "ab").items() if owner == "a"}
    members.bye("b")
    assert members.lanes_at(2.0) == {*LANES}
    members.here("b", 3.0)
    assert members.lanes_at(3.0) == half
    assert members.wait(3.0) == LOST
    assert members.lanes_at(3.0 + 0.99 * LOST) == half
    assert members.lanes_at(3.0 + LOST) == {*LANES}


def test_its_own_messages_and_repeated_farewells_say_nothing() -> None:
    members = alone()
    assert not members.here("a", 1.0)
    members.bye("b")
    members.bye("a")
    assert members.lanes_at(1.0) == {*LANES}


def test_without_the_registry_it_keeps_its_lanes_and_then_takes_all() -> None:
    members = alone()
    members.here("b", 1.0)
    half = members.lanes_at(1.0)
    members.lost(2.0)
    members.lost(4.0)  # an attempt to connect failed
    assert members.lanes_at(2.0 + 0.99 * ALONE) == half
    assert members.wait(2.0) == ALONE
    assert members.lanes_at(2.0 + ALONE) == {*LANES}
    assert members.wait(8.0) == math.inf
    members.joined(9.0)
    members.here("b", 9.1)
    assert members.lanes_at(9.0 + FIRST_WAIT) == half


def test_after_a_lost_connection_the_others_have_time_to_connect_too() -> None:
    members = alone()
    members.here("b", 1.0)
    half = members.lanes_at(1.0)
    members.lost(2.0)
    members.joined(2.5)
    assert members.lanes_at(2.5 + 0.99 * LOST) == half
    members.here("b", 4.0)
    assert members.lanes_at(2.5 + LOST) == half


@given(st.lists(st.tuples(st.sampled_from(["here", "bye", "joined", "lost"]), st.sampled_from("abc"), st.floats(0, 3))))
def test_whatever_happened_it_agrees_with_the_others_once_it_hears_them(steps: list[tuple[str, str, float]]) -> None:
    members, now = Members("a", LANES, 0.0), 0.0
    for step, worker, pause in steps:
        now += pause
        if step == "here":
            members.here(worker, now)
        elif step == "bye":
            members.bye(worker)
        elif step == "joined":
            members.joined(now)
        else:
            members.lost(now)
        lanes = members.lanes_at(now)
        assert lanes <= {*LANES}
        assert "a" in members.present or lanes == {*LANES}
        assert members.wait(now) >= 0.0
    members.joined(now)
    later = now + 1.01 * LOST
    for worker in "bc":
        members.here(worker, later)
    assert members.lanes_at(later) == {lane for lane, owner in divide(LANES, "abc").items() if owner == "a"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"x" * (LONGEST_BODY + 1), "at most 1024 bytes, got 1025"),
        (b"\xff", "must be JSON"),
        (b"[" * 1000, "must be JSON"),
        (b"[]", "'worker' must be the identity of a worker, got None"),
        (b'{"worker": 7}', "'worker' must be the identity of a worker, got 7"),
        (b'{"worker": ""}', "'worker' must be the identity of a worker, got ''"),
    ],
)
def test_a_malformed_message_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(body)


def test_a_message_names_a_worker() -> None:
    assert decode(b'{"worker": "a", "more": 1}') == "a"
