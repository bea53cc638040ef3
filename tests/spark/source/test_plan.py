"""Shares: weighted max-min, exact in the long run; and their partitions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairsched.spark.source.plan import SCALE, allocate, assign, bounded_by_bytes, divided, partitions_worth

QUANTA = {f"q{number}": 4 * (number + 1) for number in range(10)}
names = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@st.composite
def queues(draw):
    chosen = draw(names)
    depths = {name: draw(st.integers(0, 2000)) for name in chosen}
    return depths, {name: draw(st.integers(1, 1000)) for name in chosen}


def test_backlogged_queues_get_exactly_their_weights():
    shares, carried = allocate(dict.fromkeys(QUANTA, 1000), QUANTA, 1100, {})
    assert list(shares.values()) == [20, 40, 60, 80, 100, 120, 140, 160, 180, 200]
    assert carried == {}


def test_what_one_queue_cannot_use_goes_to_the_others():
    depths = {**dict.fromkeys(QUANTA, 1000), "q9": 10, "q8": 0}
    shares, _ = allocate(depths, QUANTA, 2200, {})
    assert sum(shares.values()) == 2200
    assert shares["q9"] == 10
    assert "q8" not in shares
    rest = {name: QUANTA[name] for name in shares if name != "q9"}
    for name, quantum in rest.items():
        assert abs(shares[name] - 2190 * quantum / sum(rest.values())) <= 1


def test_small_batches_are_exact_in_the_long_run():
    quanta = {f"q{number}": number for number in range(1, 11)}
    carried: dict[str, int] = {}
    total = dict.fromkeys(quanta, 0)
    for batch in range(1, 201):
        shares, carried = allocate(dict.fromkeys(quanta, 10_000), quanta, 7, carried)
        assert sum(shares.values()) == 7
        for name, share in shares.items():
            total[name] += share
        for name, quantum in quanta.items():
            assert abs(total[name] - Fraction(7 * batch * quantum, 55)) < 1
    assert min(total.values()) > 0


def test_all_there_is_without_a_limit():
    assert allocate({"a": 3, "b": 0, "c": 5}, {"a": 1, "b": 1, "c": 9}, None, {})[0] == {"a": 3, "c": 5}


@given(queues(), st.integers(0, 5000), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-SCALE, SCALE)))
def test_shares_conserve_work_and_respect_depths(found, limit, carried):
    depths, quanta = found
    shares, kept = allocate(depths, quanta, limit, carried)
    assert sum(shares.values()) == min(limit, sum(depths.values()))
    assert all(0 < share <= depths[name] for name, share in shares.items())
    assert all(-SCALE <= rest <= SCALE for rest in kept.values())
    assert all(kept.get(name, 0) <= 0 for name in depths if shares.get(name, 0) == depths[name])


@given(queues(), st.integers(1, 5000))
def test_shares_are_max_min_fair(found, limit):
    depths, quanta = found
    shares, _ = allocate(depths, quanta, limit, {})
    level = max((Fraction(share, quanta[name]) for name, share in shares.items()), default=Fraction(0))
    for name, depth in depths.items():
        share = shares.get(name, 0)
        assert share == depth or share + 1 >= quanta[name] * (level - Fraction(1, min(quanta.values())))


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100), min_size=1), st.integers(1, 50), st.data())
def test_no_backlogged_queue_is_ever_a_message_ahead_or_behind(quanta, limit, data):
    carried: dict[str, int] = {}
    total, weight = dict.fromkeys(quanta, 0), sum(quanta.values())
    for batch in range(1, data.draw(st.integers(2, 40)) + 1):
        shares, carried = allocate(dict.fromkeys(quanta, 10**6), quanta, limit, carried)
        for name in quanta:
            total[name] += shares.get(name, 0)
            assert abs(total[name] - Fraction(limit * batch * quanta[name], weight)) < 1 + Fraction(1, 10**6)


def test_queues_stay_whole_and_the_largest_are_placed_first():
    parts = assign({"a": 100, "b": 60, "c": 50, "d": 10}, 2)
    assert parts == [{"a": 100, "d": 10}, {"b": 60, "c": 50}]
    assert assign({"a": 5}, 4) == [{"a": 5}]
    assert assign({}, 4) == []


def test_one_large_queue_may_be_split():
    parts = assign({"a": 1000, "b": 10}, 4, "split-large")
    assert [part["a"] for part in parts] == [250] * 4
    assert sum(part.get("b", 0) for part in parts) == 10


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100)), st.integers(1, 9), st.booleans())
def test_partitions_hold_the_shares(shares, count, split):
    parts = assign(shares, count, "split" if split else "affinity")
    assert len(parts) <= count
    assert all(part and min(part.values()) > 0 for part in parts)
    assert {name: sum(part.get(name, 0) for part in parts) for name in shares} == shares
    if split:
        for name, share in shares.items():
            found = [part[name] for part in parts if name in part]
            assert max(found) - min(found) <= 1
            assert len(found) == min(count, share)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100)),
    st.integers(1, 9),
    st.sampled_from(["affinity", "split-large", "split"]),
    st.integers(1, 60),
)
def test_no_partition_is_larger_than_it_may_be(shares, count, assignment, most):
    parts = assign(shares, count, assignment, most)
    uncut = assign(shares, count, assignment)
    assert all(part and min(part.values()) > 0 and sum(part.values()) <= most for part in parts)
    assert {name: sum(part.get(name, 0) for part in parts) for name in shares} == shares
    assert len(parts) == sum(-(-sum(part.values()) // most) for part in uncut)


def test_a_large_partition_is_cut_evenly_queue_after_queue():
    assert assign({"a": 10, "b": 5}, 1, "affinity", 6) == [{"a": 5}, {"a": 5}, {"b": 5}]
    assert assign({"a": 4, "b": 4}, 1, "affinity", 7) == [{"a": 4}, {"b": 4}]
    assert assign({"a": 4, "b": 4}, 2, "affinity", 4) == [{"a": 4}, {"b": 4}]


def test_bytes_bound_a_batch_once_sizes_are_known():
    assert bounded_by_bytes(1000, 5000, {}, {"a": 1}, ["a"]) == 1000
    assert bounded_by_bytes(1000, 5000, {"a": 100}, {"a": 1}, ["a"]) == 50
    assert bounded_by_bytes(None, 5000, {"a": 100, "b": 400}, {"a": 1, "b": 1}, ["a", "b"]) == 20
    assert bounded_by_bytes(1000, 5, {"a": 100}, {"a": 1}, ["a"]) == 1
    assert bounded_by_bytes(1000, None, {"a": 100}, {"a": 1}, ["a"]) == 1000


def test_bytes_are_divided_by_what_is_expected():
    assert divided(900, [{"a": 10}, {"b": 10}], {"a": 100, "b": 200}) == [300, 600]
    assert divided(900, [{"a": 10}, {"b": 20}], {}) == [300, 600]
    assert divided(0, [{"a": 10}], {}) == [0]


def test_a_batch_has_as_many_partitions_as_pay():
    assert partitions_worth({}, {}) == 1
    assert partitions_worth({"a": 25_000}, {"a": 200}) == 1
    assert partitions_worth({"a": 25_000, "b": 1}, {}) == 2
    assert partitions_worth({"a": 65, "b": 5}, {"a": 1 << 20}) == 3
    assert partitions_worth({"a": 10_000_000}, {}) == 8
