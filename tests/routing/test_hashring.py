"""The ring: its points, what moves, its shares, its balance, bounded loads."""

from __future__ import annotations

import pickle
import random
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.routing import ReferenceRing

from fairsched.routing import HashRing

KEYS = [f"key-{number}" for number in range(20_000)]
TEN = {f"q{number}": 100 for number in range(10)}

members = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(1, 40), max_size=9)


def hasher(seed: int = 0):
    return lambda data: xxhash.xxh64(data, seed=seed).intdigest()


# Against the oracle ----------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    members.filter(bool),
    st.integers(1, 3),
    st.integers(0, 2**64 - 1),
    st.sampled_from([1, 2, 5, 16, 27, 63, 64]),
    st.lists(st.binary(max_size=40), max_size=30),
)
def test_route_is_the_oracle(weights: dict[str, int], per_weight: int, seed: int, bits: int, keys: list[bytes]) -> None:
    ring = HashRing(weights, points_per_weight=per_weight, seed=seed, space_bits=bits)
    reference = ReferenceRing(weights, hasher(seed), per_weight, bits)
    expected = [reference.route(key) for key in keys]
    assert [ring.route(key) for key in keys] == expected
    assert [ring.names[index] for index in ring.route_many(keys)] == expected
    for name in weights:
        assert ring.share(name) == float(reference.share(name))


@pytest.mark.parametrize(("count", "weight"), [(1, 1), (3, 1), (10, 100), (1000, 100), (40, 20_000)])
def test_route_many_is_route(count: int, weight: int) -> None:
    """Few points and many: every width of the table of cells."""
    ring = HashRing({f"member-{number}": weight for number in range(count)})
    assert [ring.names[index] for index in ring.route_many(KEYS)] == [ring.route(key) for key in KEYS]


def test_a_hash_on_a_point_belongs_to_it() -> None:
    ring = HashRing({f"m{number}": 3 for number in range(50)}, space_bits=8)
    # 150 points over 256 places: keys fall on points, and points on points.
    reference = ReferenceRing({f"m{number}": 3 for number in range(50)}, hasher(), 1, 8)
    assert len({point for point, _, _ in reference.points}) < 150
    assert [ring.route(key) for key in KEYS] == [reference.route(key.encode()) for key in KEYS]


def test_processes_agree_whatever_the_order_of_joining() -> None:
    names = list(TEN)
    for bits in (8, 64):
        ring = HashRing(TEN, space_bits=bits)
        for _ in range(5):
            random.Random(7).shuffle(names)
            other = HashRing({}, space_bits=bits)
            for name in names:
                other.add(name, 100)
            assert ring.moved(other) == 0
            assert [ring.route(key) for key in KEYS[:2000]] == [other.route(key) for key in KEYS[:2000]]


def test_seed_and_name_choose_the_points() -> None:
    assert HashRing(TEN).moved(HashRing(dict(TEN))) == 0
    assert [HashRing(TEN, seed=1).route(key) for key in KEYS[:100]] != [
        HashRing(TEN, seed=2).route(key) for key in KEYS[:100]
    ]


# What moves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", TEN)
def test_removing_moves_only_its_keys(leaving: str) -> None:
    ring = HashRing(TEN)
    before = [ring.route(key) for key in KEYS]
    full, share = HashRing(TEN), ring.share(leaving)
    ring.remove(leaving)
    after = [ring.route(key) for key in KEYS]
    assert all((old != new) == (old == leaving) for old, new in zip(before, after, strict=True))
    assert ring.moved(full) == full.moved(ring) == share
    assert leaving not in ring
    assert len(ring) == 9


def test_adding_moves_keys_only_to_the_new_one() -> None:
    ring = HashRing(TEN)
    before = [ring.route(key) for key in KEYS]
    ring.add("q10", 100)
    after = [ring.route(key) for key in KEYS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"q10"}
    assert abs(len(moved) / len(KEYS) - ring.share("q10")) < 0.01


@settings(max_examples=100)
@given(members.filter(lambda found: len(found) > 1), st.data(), st.sampled_from([3, 64]))
def test_coming_and_going_moves_nothing_else(weights: dict[str, int], data: st.DataObject, bits: int) -> None:
    leaving = data.draw(st.sampled_from(sorted(weights)))
    ring = HashRing(weights, space_bits=bits)
    before, share = [ring.route(key) for key in KEYS[:500]], ring.share(leaving)
    ring.remove(leaving)
    for key, old in zip(KEYS, before, strict=False):
        assert old in (leaving, ring.route(key))
    assert HashRing(weights, space_bits=bits).moved(ring) == share
    ring.add(leaving, weights[leaving])
    assert [ring.route(key) for key in KEYS[:500]] == before


def test_moved_is_what_keys_say() -> None:
    ring, other = HashRing(TEN), HashRing({**TEN, "q3": 10, "new": 50})
    measured = np.mean([ring.route(key) != other.route(key) for key in KEYS])
    assert abs(ring.moved(other) - measured) < 0.01
    assert ring.moved(HashRing({"elsewhere": 5})) == 1.0
    assert ring.moved(HashRing({})) == HashRing({}).moved(ring) == 1.0
    assert HashRing({}).moved(HashRing({})) == 0.0


# Shares and balance ----------------------------------------------------------------------------------------------


def test_shares_sum_to_the_whole() -> None:
    ring = HashRing({"a": 10, "b": 10, "c": 20}, points_per_weight=50)
    assert sum(ring.share(name) for name in ring.names) == pytest.approx(1, abs=1e-15)
    assert ring.share("c") == pytest.approx(0.5, abs=0.06)  # standard deviation 0.011
    assert HashRing({"only": 1}).share("only") == 1.0
    assert HashRing({"only": 3}, space_bits=1).share("only") == 1.0


def test_share_is_what_keys_say() -> None:
    ring = HashRing(TEN)
    counts = np.bincount(ring.route_many(np.arange(200_000)), minlength=10)
    for name, count in zip(ring.names, counts, strict=True):
        assert abs(count / 200_000 - ring.share(name)) < 0.004


def test_balance_of_64_members_with_256_points() -> None:
    ring = HashRing({f"worker-{number}": 256 for number in range(64)})
    counts = np.bincount(ring.route_many(np.arange(1_000_000)), minlength=64)
    assert np.abs(counts / counts.mean() - 1).max() < 0.25


# Bounded loads ---------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    members.filter(bool),
    st.sampled_from([Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(2), Fraction(100)]),
    st.lists(st.integers(0, 30), max_size=120),
)
def test_bounded_loads_are_the_oracle_and_keep_their_promise(
    weights: dict[str, int], factor: Fraction, keys: list[int]
) -> None:
    ring = HashRing(weights, load_factor=float(factor))
    reference = ReferenceRing(weights, hasher())
    total = sum(weights.values())
    for count, number in enumerate(keys, 1):
        name = ring.route(KEYS[number])
        assert name == reference.place(KEYS[number].encode(), factor)
        assert ring.loads[name] <= ceil(factor * count * Fraction(weights[name], total))
    assert ring.loads == reference.loads
    again = HashRing(weights, load_factor=float(factor))
    again.route_many([KEYS[number] for number in keys])
    assert again.loads == ring.loads


def test_one_hot_key_is_spread_within_the_bound() -> None:
    ring = HashRing(dict.fromkeys("abcd", 50), load_factor=1.25)
    for _ in range(1000):
        ring.route("hot")
    assert max(ring.loads.values()) <= ceil(1.25 * 1000 / 4)
    assert sum(ring.loads.values()) == 1000


def test_released_load_makes_room() -> None:
    ring = HashRing({"a": 1, "b": 1}, load_factor=1)
    first = ring.route("x")
    second = ring.route("x")
    assert {first, second} == {"a", "b"}
    ring.release(second)
    ring.release(first)
    assert ring.loads == {"a": 0, "b": 0}
    assert ring.route("x") == first
    with pytest.raises(ValueError, match=f"count must be at most the load of '{second}', which is 0, got 1"):
        ring.release(second)
    with pytest.raises(KeyError):
        ring.release("nobody")


def test_loads_stay_with_their_members() -> None:
    ring = HashRing({"a": 5, "b": 5}, load_factor=1)
    ring.route_many(KEYS[:10])
    ring.add("c", 5)
    assert ring.loads == {"a": 5, "b": 5, "c": 0}
    assert [ring.route(key) for key in KEYS[:5]] == ["c"] * 5
    ring.remove("a")
    assert ring.loads == {"b": 5, "c": 5}


def test_unbounded_rings_count_nothing() -> None:
    ring = HashRing({"a": 1})
    ring.route("x")
    assert ring.loads == {"a": 0}


# Edges -----------------------------------------------------------------------------------------------------------


def test_an_empty_ring_routes_nowhere() -> None:
    for ring in (HashRing({}), HashRing({}, load_factor=2)):
        assert ring.route("x") is None
        assert ring.route_many(["x", "y"]).tolist() == [-1, -1]
        assert ring.names == ()
        ring.add("a", 1)
        assert ring.route("x") == "a"
        ring.remove("a")
        assert ring.route("x") is None


def test_pickles_to_the_same_ring() -> None:
    ring = HashRing(TEN, points_per_weight=2, seed=42, space_bits=27)
    copy = pickle.loads(pickle.dumps(ring))
    assert (copy.weights, copy.seed, copy.space_bits, copy.moved(ring)) == (TEN, 42, 27, 0)
    assert repr(HashRing({"a": 1}, seed=3)) == "HashRing({'a': 1}, points_per_weight=1, seed=3)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(HashRing(TEN, load_factor=1.5))


@pytest.mark.parametrize(
    ("weights", "options", "says"),
    [
        ("abc", {}, "weights must map names to weights"),
        ({1: 1}, {}, "a member's name must be a str, got 1"),
        ({"a": 0}, {}, "weight of 'a' must be a positive integer, got 0"),
        ({"a": 1.5}, {}, "weight of 'a' must be a positive integer, got 1.5"),
        ({"a": 2**27 + 1}, {}, "at most 2**27 points"),
        ({"a": 2**20}, {"points_per_weight": 2**8}, "at most 2**27 points"),
        ({"a": 2**20}, {"points_per_weight": 2**50}, "at most 2**27 points"),
        ({"a": 1}, {"points_per_weight": 0}, "points_per_weight must be a positive integer, got 0"),
        ({"a": 1}, {"space_bits": 65}, "space_bits must be 1 to 64, got 65"),
        ({"a": 1}, {"space_bits": 2**32 + 5}, "space_bits must be 1 to 64, got"),
        ({"a": 1}, {"load_factor": 0.9}, "load_factor must be 1 or more, got 0.9"),
        ({"a": 1}, {"load_factor": float("nan")}, "load_factor must be 1 or more, got nan"),
        ({"a": 1}, {"load_factor": float("inf")}, "load_factor must be 1 or more, got inf"),
        ({"a": 1}, {"seed": None}, "seed must be an integer from 0"),
    ],
)
def test_refused(weights: object, options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError) as error:
        HashRing(weights, **options)
    assert says in str(error.value)


def test_refused_changes_change_nothing() -> None:
    ring = HashRing({"a": 1})
    with pytest.raises(ValueError, match="a member named 'a' already exists"):
        ring.add("a", 2)
    with pytest.raises(ValueError, match="at most"):
        ring.add("b", 2**27)
    with pytest.raises(KeyError, match="no member is named 'b'"):
        ring.remove("b")
    with pytest.raises(KeyError, match="no member is named 'b'"):
        ring.share("b")
    with pytest.raises(TypeError, match="must be a HashRing"):
        ring.moved({"a": 1})
    with pytest.raises(ValueError, match="the same seed"):
        ring.moved(HashRing({"a": 1}, seed=1))
    assert ring.weights == {"a": 1}
