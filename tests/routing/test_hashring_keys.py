"""Keys in every form that needs nothing but numpy: one key has one place, however it is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from fairsched.routing import HashRing

RING = HashRing({f"q{number}": 100 for number in range(10)}, seed=42)
TEXTS = ["", "a", "user-42", "x" * 31, "y" * 32, "z" * 1000, "\u00fcber", "\U0001f407"]


def named(indices: np.ndarray) -> list[str]:
    return [RING.names[index] for index in indices]


def test_text_is_its_utf8() -> None:
    expected = [RING.route(text) for text in TEXTS]
    assert [RING.route(text.encode()) for text in TEXTS] == expected
    assert [RING.route(bytearray(text.encode())) for text in TEXTS] == expected
    assert [RING.route(memoryview(text.encode())) for text in TEXTS] == expected
    assert [RING.route(type("Name", (str,), {})(text)) for text in TEXTS] == expected
    for keys in (TEXTS, tuple(TEXTS), iter(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)):
        assert named(RING.route_many(keys)) == expected


def test_numpy_bytes_end_before_their_padding() -> None:
    data = [text.encode() for text in TEXTS]
    for array in (np.array(data), np.array(data * 2)[::2], np.array(data)[::-1][::-1]):
        routed = named(RING.route_many(array))
        assert routed == [RING.route(bytes(value)) for value in array]
    assert named(RING.route_many(np.array([b"a\0b", b"a\0\0"]))) == [RING.route(b"a\0b"), RING.route(b"a")]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i8", ">u4"])
def test_integers_of_every_width(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = [int(info.min), int(info.max), 0, 1, 42]
    expected = [RING.route(value) for value in values]
    assert named(RING.route_many(np.array(values, dtype=dtype))) == expected
    assert named(RING.route_many(np.array([value for value in values for _ in "ab"], dtype=dtype)[::2])) == expected
    assert [RING.route(np.dtype(dtype).type(value)) for value in values] == expected


def test_integers_are_eight_bytes() -> None:
    for value in (0, 7, -1, 2**63, 2**64 - 1):
        data = (value % 2**64).to_bytes(8, "little")
        assert RING.route(value) == RING.route(data)
        # As a column of Spark: xxhash64 of a bigint is XXH64 with seed 42 of its eight bytes.
        assert xxhash.xxh64(data, seed=42).intdigest() >= 0


def test_nulls_go_to_one_member() -> None:
    assert len(set(RING.route_many([None] * 100).tolist())) == 1
    assert named(RING.route_many(["a", None])) == [RING.route("a"), RING.route(None)]


def test_nothing_to_route() -> None:
    for keys in ([], (), np.array([], dtype="S3"), np.array([], dtype=np.int64)):
        routed = RING.route_many(keys)
        assert (routed.dtype, routed.shape) == (np.int32, (0,))


def test_more_than_one_block() -> None:
    keys = np.arange(10_000)
    for size in (1023, 1024, 1025, 2048, 10_000):
        assert named(RING.route_many(keys[:size])) == [RING.route(int(key)) for key in keys[:size]]


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ("abc", TypeError, "got one key: 'abc'"),
        (b"abc", TypeError, "got one key: b'abc'"),
        (5, TypeError, "not iterable"),
        ([1.5], TypeError, "a key must be str, bytes, int or None, got 1.5"),
        ([True], TypeError, "got True"),
        (np.array([1.5]), TypeError, "got 1.5"),
        (np.array([True]), TypeError, "got True"),
        (np.zeros((2, 2), dtype=np.int64), ValueError, "keys must be one-dimensional, got 2 dimensions"),
        ([2**64], OverflowError, "an integer key must lie in"),
        (["\ud800"], UnicodeEncodeError, "surrogates"),
    ],
)
def test_refused(keys: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        RING.route_many(keys)
    assert says in str(raised.value)


@pytest.mark.parametrize("change", [list.clear, lambda keys: keys.append("c")], ids=["shrinks", "grows"])
def test_a_list_that_changes_meanwhile(change: Callable[[list[object]], None]) -> None:
    keys: list[object] = []

    class Changes:
        def __index__(self) -> int:
            change(keys)
            return 1

    keys.extend([Changes(), "a", "b"])
    with pytest.raises(ValueError, match="keys must not change while they are hashed"):
        RING.route_many(keys)
