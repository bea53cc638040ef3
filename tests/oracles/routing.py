"""Routing in plain Python, written for reading: the oracle that the compiled hashes and rings are held against."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import ceil

MASK64, MASK32, MASK21 = 2**64 - 1, 2**32 - 1, 2**21 - 1


# Erlang's phash2 -------------------------------------------------------------------------------------------------


def mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    """Jenkins's mix of 1996; the third word is the hash."""
    a, b, c = a & MASK32, b & MASK32, c & MASK32
    for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & MASK32) ^ c >> first
        b = (b - c - a & MASK32) ^ a << second & MASK32
        c = (c - a - b & MASK32) ^ b >> third
    return a, b, c


def kind(number: int) -> int:
    return 0x9E3779B9 * number & MASK32


def phash2_of_binary(data: bytes) -> int:
    a = b = kind(1)
    c = kind(13)
    if not data:
        return c % 2**27
    whole = len(data) // 12 * 12
    for at in range(0, whole, 12):
        words = struct.unpack_from("<3I", data, at)
        a, b, c = mixed(a + words[0], b + words[1], c + words[2])
    rest = data[whole:].ljust(11, b"\0")
    words = struct.unpack("<3I", rest[:8] + b"\0" + rest[8:])
    # The lowest byte of the third word is the length's.
    return mixed(a + words[0], b + words[1], c + words[2] + len(data))[2] % 2**27


# Jump hash, with either generator --------------------------------------------------------------------------------


def jump(buckets: int, jumps: Callable[[int], int]) -> int:
    bucket, candidate = -1, 0
    while candidate < buckets:
        bucket = candidate
        candidate = jumps(bucket)
    return bucket


def jump_hash(key: int, buckets: int) -> int:
    state = key & MASK64

    def jumps(bucket: int) -> int:
        nonlocal state
        state = state * 2862933555777941757 + 1 & MASK64
        return int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))

    return jump(buckets, jumps)


def exs1024(key: int) -> Iterator[int]:
    """Erlang's generator exs1024, seeded with three times the key."""
    base = (key & MASK21) + 1
    parts = [base * factor & MASK21 for factor in (2097131, 2097133, 2097143)]
    state = parts[0] << 43 | parts[1] << 22 | parts[2] << 1 | 1
    words: list[int] = []
    for _ in range(16):
        state ^= state >> 12
        state ^= state << 25 & MASK64
        state ^= state >> 27
        words.insert(0, state * 2685821657736338717 & MASK64)
    while True:
        old, word = words[0], words[1]
        word ^= word << 31 & MASK64
        word ^= word >> 11
        word ^= old ^ old >> 30
        words = [word, *words[2:], old]
        yield word * 1181783497276652981 & MASK64


def rabbitmq_bucket(key: int, buckets: int) -> int:
    numbers = exs1024(key)
    return 0 if buckets == 1 else jump(buckets, lambda bucket: int((bucket + 1) / (next(numbers) / 2**64)))


# The ring --------------------------------------------------------------------------------------------------------


def splitmix(base: int, index: int) -> int:
    word = base + (index + 1) * 0x9E3779B97F4A7C15 & MASK64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK64
    return word ^ word >> 31


class ReferenceRing:
    """A sorted list of points; `hashed` is XXH64 of bytes with the ring's seed."""

    def __init__(
        self, weights: Mapping[str, int], hashed: Callable[[bytes], int], per_weight: int = 1, space_bits: int = 64
    ) -> None:
        self.weights, self.hashed, self.space_bits = dict(weights), hashed, space_bits
        self.points = sorted(
            (splitmix(hashed(name.encode()), index) >> 64 - space_bits, name.encode(), name)
            for name, weight in weights.items()
            for index in range(weight * per_weight)
        )
        self.loads = dict.fromkeys(weights, 0)

    def first(self, key: bytes) -> int:
        return bisect_left(self.points, (self.hashed(key) >> 64 - self.space_bits,))

    def route(self, key: bytes) -> str:
        return self.points[self.first(key) % len(self.points)][2]

    def place(self, key: bytes, factor: Fraction) -> str:
        """Bounded loads: the first member from the key on that has room."""
        total, first = sum(self.loads.values()) + 1, self.first(key)
        for step in range(len(self.points)):
            name = self.points[(first + step) % len(self.points)][2]
            bound = ceil(factor * total * Fraction(self.weights[name], sum(self.weights.values())))
            if self.loads[name] + 1 <= bound:
                self.loads[name] += 1
                return name
        raise AssertionError("no node has room")

    def share(self, name: str) -> Fraction:
        size = 2**self.space_bits
        arcs = Fraction(0)
        for index, (point, _, owner) in enumerate(self.points):
            before = self.points[index - 1][0] - (size if index == 0 else 0)
            arcs += (point - before) * (owner == name)
        return arcs / size
