"""Routing beside its peers: one key, a million keys, how it grows with the points, building, jump hash."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from interleave import at_once, medians, record
from uhashring import HashRing as Uhashring

from fairsched.routing import HashRing, jump_hash_many

MANY = 1_000_000
SIZES = (10, 100, 1000)


def names(count: int) -> list[str]:
    return [f"queue-{number}" for number in range(count)]


class BisectRing:
    """What one writes without a library: XXH64 by the wheel, `bisect` over a sorted list."""

    def __init__(self, members: list[str], points: int) -> None:
        made = sorted(
            (xxhash.xxh64_intdigest(f"{name}-{index}".encode()), name) for name in members for index in range(points)
        )
        self.points = [point for point, _ in made]
        self.owners = [name for _, name in made]

    def route(self, key: str) -> str:
        at = bisect_left(self.points, xxhash.xxh64_intdigest(key.encode()))
        return self.owners[at % len(self.owners)]


def each(route: Callable[[str], object], keys: list[str]) -> Callable[[], None]:
    """A loop whose own cost is that of a `for` and a call."""

    def run() -> None:
        for key in keys:
            route(key)

    return run


@pytest.fixture(scope="module")
def arrow_keys() -> pa.Array:
    return pa.array([f"{number:016d}" for number in range(MANY)])


@pytest.mark.parametrize("members", SIZES)
def test_route(benchmark: Any, members: int) -> None:
    """A short str of a thousand, 100 points a member: against uhashring with as many, and xxhash with bisect.

    The figure for 20 000 different keys is that of the second-level cache, which then holds neither keys nor ring.
    """
    ring = HashRing(dict.fromkeys(names(members), 100))
    plain = BisectRing(names(members), 100)
    peer = Uhashring(names(members), vnodes=100, replicas=1)
    keys, different = [f"user-{number}" for number in range(1_000)] * 20, [f"user-{number}" for number in range(20_000)]
    took = medians(
        21,
        fairsched=each(ring.route, keys),
        bisect=each(plain.route, keys),
        uhashring=each(peer.get_node, keys[:2_000]),
        different=each(ring.route, different),
    )
    cost = {name: seconds / (2_000 if name == "uhashring" else 20_000) for name, seconds in took.items()}
    record(
        benchmark,
        {
            f"uhashring : route, one key, {members} × 100 points": (cost["uhashring"] / cost["fairsched"], ">=", 15),
            f"xxhash + bisect : route, one key, {members} × 100 points": (
                cost["bisect"] / cost["fairsched"],
                ">=",
                4,
            ),
        },
        **{f"{name}_{members}_ns": seconds * 1e9 for name, seconds in cost.items()},
    )
    benchmark.pedantic(lambda: ring.route("user-1234"), rounds=50, iterations=1000)


@pytest.mark.parametrize("members", SIZES)
def test_route_many(benchmark: Any, members: int, arrow_keys: pa.Array) -> None:
    """A million Arrow strings of 16 bytes, against searchsorted on hashes that are there already, and uhashring."""
    ring = HashRing(dict.fromkeys(names(members), 100))
    points = np.sort(np.random.default_rng(1).integers(0, 2**64 - 1, 100 * members, dtype=np.uint64))
    hashes = np.random.default_rng(2).integers(0, 2**64 - 1, MANY, dtype=np.uint64)
    peer = Uhashring(names(members), vnodes=100, replicas=1)
    few = arrow_keys[:3_000].to_pylist()
    took = medians(
        9,
        fairsched=lambda: ring.route_many(arrow_keys),
        searchsorted=lambda: np.searchsorted(points, hashes),
        uhashring=each(peer.get_node, few),
    )
    cost = {name: seconds / (3_000 if name == "uhashring" else MANY) for name, seconds in took.items()}
    record(
        benchmark,
        {
            f"searchsorted, hashed before : route_many, {members} × 100 points": (
                cost["searchsorted"] / cost["fairsched"],
                ">=",
                6,
            ),
            f"uhashring : route_many, {members} × 100 points": (cost["uhashring"] / cost["fairsched"], ">=", 100),
        },
        **{f"{name}_{members}_ns": seconds * 1e9 for name, seconds in cost.items()},
    )
    benchmark.pedantic(lambda: ring.route_many(arrow_keys), rounds=5)


def test_two_threads(benchmark: Any, arrow_keys: pa.Array) -> None:
    """Two threads on one ring, each with a million keys: the GIL is given up meanwhile."""
    ring = HashRing(dict.fromkeys(names(10), 100))

    def route() -> object:
        return ring.route_many(arrow_keys)

    took = medians(9, one=lambda: at_once(route), two=lambda: at_once(route, route))
    record(
        benchmark,
        {"two threads on one ring : one thread, keys per second": (2 * took["one"] / took["two"], ">=", 1.6)},
        **{f"{name}_ms": seconds * 1e3 for name, seconds in took.items()},
    )
    benchmark.pedantic(route, rounds=5)


def test_growth_with_the_points(benchmark: Any, arrow_keys: pa.Array) -> None:
    """From a thousand points to a hundred thousand."""
    few, many = (HashRing(dict.fromkeys(names(members), 100)) for members in (10, 1000))
    took = medians(15, few=lambda: few.route_many(arrow_keys), many=lambda: many.route_many(arrow_keys))
    record(
        benchmark,
        {"route_many over 100 000 points : over 1 000": (took["many"] / took["few"], "<=", 3)},
        **{f"{name}_ns": seconds / MANY * 1e9 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: many.route_many(arrow_keys), rounds=5)


def test_jump_hash_many(benchmark: Any) -> None:
    """Integers over 10, 100 and 1 000 buckets."""
    keys = np.arange(MANY, dtype=np.int64) * 7919
    took = medians(
        9,
        ten=lambda: jump_hash_many(keys, 10),
        hundred=lambda: jump_hash_many(keys, 100),
        thousand=lambda: jump_hash_many(keys, 1000),
    )
    cost = {f"{name}_ns": seconds / MANY * 1e9 for name, seconds in took.items()}
    record(benchmark, {"jump_hash_many, 1 000 buckets, ns a key : 1 ns": (cost["thousand_ns"], "<=", 60)}, **cost)
    benchmark.pedantic(lambda: jump_hash_many(keys, 1000), rounds=5)


def test_building(benchmark: Any) -> None:
    """A hundred thousand points, from names."""
    weights = dict.fromkeys(names(1000), 100)
    took = medians(15, fairsched=lambda: HashRing(weights), bisect=lambda: BisectRing(names(1000), 100))
    record(
        benchmark,
        {"building 100 000 points, ms : 1 ms": (took["fairsched"] * 1e3, "<=", 60)},
        **{f"{name}_ms": seconds * 1e3 for name, seconds in took.items()},
    )
    benchmark.pedantic(lambda: HashRing(weights), rounds=10)
