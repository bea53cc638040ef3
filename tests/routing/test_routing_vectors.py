"""Hashes, held against published vectors, Erlang's own values, the xxhash wheel and the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from oracles.routing import jump_hash as reference_jump
from oracles.routing import phash2_of_binary
from oracles.routing import rabbitmq_bucket as reference_bucket

from fairsched.routing import jump_hash, jump_hash_many
from fairsched.routing._ring import phash2, rabbitmq_bucket, xxh64

words = st.integers(0, 2**64 - 1)

# XXH64 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [*range(101), 127, 128, 129, 1000, 4096, 100_003])
def test_xxh64_of_every_short_length(length: int) -> None:
    data = bytes((17 * i + length) % 256 for i in range(length))
    for seed in (0, 1, 42, 2**64 - 1):
        assert xxh64(data, seed) == xxhash.xxh64(data, seed=seed).intdigest()


@given(st.binary(max_size=300), words)
def test_xxh64_is_that_of_the_wheel(data: bytes, seed: int) -> None:
    expected = xxhash.xxh64(data, seed=seed).intdigest()
    assert xxh64(data, seed) == expected
    assert xxh64(bytearray(data), seed) == expected
    assert xxh64(memoryview(b"?" + data)[1:], seed) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_xxh64_of_text_is_that_of_its_utf8(text: str) -> None:
    assert xxh64(text) == xxhash.xxh64(text.encode()).intdigest()


@pytest.mark.parametrize(
    ("data", "shown"),
    [("Spark", -4294468057691064905), ((123).to_bytes(8, "little"), -3178482946328430151)],
)
def test_xxh64_is_that_of_spark(data: str | bytes, shown: int) -> None:
    """SELECT xxhash64('Spark'), xxhash64(123L): the seed is 42, the results are signed."""
    assert xxh64(data, 42) == shown % 2**64


def test_xxh64_refuses_other_data() -> None:
    with pytest.raises(TypeError, match="data must be str or bytes, got 5"):
        xxh64(5)
    with pytest.raises(UnicodeEncodeError):
        xxh64("\ud800")
    for seed, error in ((-1, OverflowError), (2**64, OverflowError), (True, ValueError), ("1", ValueError)):
        with pytest.raises(error, match="seed must be an integer from 0"):
            xxh64(b"", seed)


# Jump hash -------------------------------------------------------------------------------------------------------

JUMPS = [
    (0, 1, 0), (0, 2, 0), (1, 2, 0), (2, 3, 0), (42, 57, 43), (256, 1024, 520), (0xDEAD10CC, 1, 0),
    (0xDEAD10CC, 666, 361), (10863919174838991, 11, 6), (2016238256797177309, 11, 3), (1673758223894951030, 11, 5),
    (2**64 - 1, 10, 9), (123456789, 1000, 294),
]  # fmt: skip


@pytest.mark.parametrize(("key", "buckets", "expected"), JUMPS)
def test_jump_hash_vectors(key: int, buckets: int, expected: int) -> None:
    assert jump_hash(key, buckets) == reference_jump(key, buckets) == expected
    assert jump_hash_many(np.array([key] * 5, dtype=np.uint64), buckets).tolist() == [expected] * 5


@given(st.lists(words, max_size=9), st.integers(1, 2**31 - 1))
def test_jump_hash_is_the_oracle_one_by_one_and_in_blocks(keys: list[int], buckets: int) -> None:
    expected = [reference_jump(key, buckets) for key in keys]
    assert [jump_hash(key, buckets) for key in keys] == expected
    assert jump_hash_many(np.array(keys, dtype=np.uint64), buckets).tolist() == expected
    assert jump_hash_many(keys, buckets).tolist() == expected


def test_jump_hash_of_other_keys() -> None:
    assert jump_hash(-1, 10) == jump_hash(2**64 - 1, 10)
    assert jump_hash("user", 1000) == jump_hash(b"user", 1000) == jump_hash(xxh64("user"), 1000)
    assert jump_hash_many(["user", 7, None], 1000).tolist() == [
        jump_hash(key, 1000) for key in ("user", 7, None)
    ]  # fmt: skip
    assert jump_hash_many([], 3).dtype == np.int32


def test_jump_hash_moves_one_key_in_n() -> None:
    keys = np.arange(100_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ten, eleven = jump_hash_many(keys, 10), jump_hash_many(keys, 11)
    moved = ten != eleven
    assert set(eleven[moved].tolist()) == {10}
    assert abs(moved.mean() - 1 / 11) < 0.005


@pytest.mark.parametrize("buckets", [0, -1, 2**31, 1.5, "3", True])
def test_jump_hash_refuses_other_buckets(buckets: object) -> None:
    for function, key in ((jump_hash, 1), (jump_hash_many, [1])):
        with pytest.raises(ValueError, match=r"buckets must be an integer from 1 to 2\*\*31 - 1"):
            function(key, buckets)


@pytest.mark.parametrize("key", [1.5, True, object(), ["a"]])
def test_keys_of_no_such_type(key: object) -> None:
    with pytest.raises(TypeError, match="a key must be str, bytes, int or None"):
        jump_hash(key, 10)


@pytest.mark.parametrize("key", [2**64, -(2**63) - 1])
def test_keys_out_of_range(key: int) -> None:
    with pytest.raises(OverflowError, match="an integer key must lie in"):
        jump_hash(key, 10)


# Erlang's phash2 and RabbitMQ's buckets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 13708901), ("0", 107350362), ("1", 59054609), ("a", 112802447), ("hello", 47480723),
        ("user-42", 106851094), ("key", 6681389), (None, 45914356), (0, 88723725), (5, 5878562), (-1, 44071773),
        (-5, 115015680), (2**27 - 1, 112602999), (2**27, 12354923), (-(2**27), 69672967), (-(2**27) - 1, 76739502),
        (2**40, 13893919), (-(2**40), 48180921), (2**62, 29238129), (-(2**62), 82210594), (2**63 - 1, 28179613),
        (-(2**63), 126213383), (True, 506293), (False, 7111573), (1.5, 10380315), (-1.5, 13753666), (0.0, 20875736),
        (-0.0, 20875736),
    ],
)  # fmt: skip
def test_phash2_is_that_of_erlang(value: object, expected: int) -> None:
    assert phash2(value) == expected


@pytest.mark.parametrize(
    ("tag", "value", "expected"),
    [
        ("longstr", "1", 101410271), ("longstr", "", 116351706), ("signedint", 5, 40839585), ("long", -5, 54650909),
        ("long", 2**40, 93748608), ("bool", True, 32030443), ("bool", False, 54145719), ("double", 1.5, 115320697),
        ("timestamp", 1700000000, 59280699), ("binary", b"x", 59194669), ("void", None, 27077197),
    ],
)  # fmt: skip
def test_phash2_of_pairs_is_that_of_erlang(tag: str, value: object, expected: int) -> None:
    assert phash2(value, tag=tag) == expected


@given(st.binary(max_size=60))
def test_phash2_of_binaries_is_the_oracle(data: bytes) -> None:
    assert phash2(data) == phash2_of_binary(data)


def test_phash2_refuses_what_amqp_cannot_carry() -> None:
    with pytest.raises(OverflowError, match="an AMQP integer must lie in"):
        phash2(2**63)
    with pytest.raises(TypeError, match="a value to hash must be"):
        phash2({})


SIZES = (2, 3, 4, 6, 10, 100, 1000)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", (1, 1, 3, 3, 3, 50, 201)), ("1", (1, 2, 2, 2, 8, 76, 391)), ("a", (1, 1, 1, 1, 6, 47, 47)),
        ("hello", (1, 1, 3, 5, 9, 43, 315)), ("user-42", (1, 2, 2, 2, 2, 87, 161)), ("", (0, 0, 0, 0, 9, 45, 161)),
        (None, (1, 1, 1, 1, 1, 39, 491)),
    ],
)  # fmt: skip
def test_rabbitmq_buckets(value: str | None, expected: tuple[int, ...]) -> None:
    assert tuple(rabbitmq_bucket(phash2(value), size) for size in SIZES) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (0, (0, 0, 3, 4, 4, 47)), (1, (0, 2, 3, 3, 3, 29)), (2, (0, 0, 0, 0, 9, 9)), (42, (1, 1, 3, 3, 6, 6)),
        (1_000_000, (0, 0, 0, 0, 0, 78)),
    ],
)  # fmt: skip
def test_rabbitmq_buckets_of_integer_headers(key: int, expected: tuple[int, ...]) -> None:
    assert tuple(rabbitmq_bucket(key, size) for size in SIZES[:-1]) == expected


@given(st.integers(-(2**70), 2**70), st.integers(1, 2**31 - 1))
def test_rabbitmq_bucket_is_the_oracle(key: int, buckets: int) -> None:
    assert rabbitmq_bucket(key, buckets) == reference_bucket(key, buckets)


def test_long_runs_of_the_generator() -> None:
    # More jumps than the generator has words.
    assert [rabbitmq_bucket(key, 2**31 - 1) for key in range(300)] == [
        reference_bucket(key, 2**31 - 1) for key in range(300)
    ]
