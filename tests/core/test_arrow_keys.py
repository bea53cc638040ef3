"""Keys in Arrow arrays, read where they lie."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from fairsched.routing import HashRing, jump_hash, jump_hash_many

RING = HashRing({f"q{number}": 100 for number in range(10)})
TEXTS = ["", "a", None, "user-42", "twelve bytes", "thirteen byte", "x" * 31, "y" * 32, None, "z" * 1000, "\u00fcber"]
NUMBERS = [0, 1, None, 42, 127]


def named(keys: object) -> list[str | None]:
    return [RING.names[index] for index in RING.route_many(keys)]


def routed(keys: list[object]) -> list[str | None]:
    return [RING.route(key) for key in keys]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings(kind: pa.DataType) -> None:
    array = pa.array(TEXTS, kind)
    assert named(array) == routed(TEXTS)
    assert named(array.slice(3, 5)) == routed(TEXTS[3:8])
    assert named(pa.array(TEXTS[:2], kind)) == routed(TEXTS[:2])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_binaries(kind: pa.DataType) -> None:
    data = [None if text is None else text.encode() for text in TEXTS]
    array = pa.array(data, kind)
    assert named(array) == routed(data) == routed(TEXTS)
    assert named(array.slice(1)) == routed(data[1:])


def test_binaries_of_one_width() -> None:
    data = [b"abc", None, b"a\0\0"]
    array = pa.array(data, pa.binary(3))
    assert named(array) == routed(data)
    assert named(array.slice(2)) == routed(data[2:])


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str
)
def test_integers(kind: pa.DataType) -> None:
    array = pa.array(NUMBERS, kind)
    assert named(array) == routed(NUMBERS)
    assert named(array.slice(2, 2)) == routed(NUMBERS[2:4])
    assert jump_hash_many(array, 1000).tolist() == [jump_hash(number, 1000) for number in [0, 1, 0, 42, 127]]


def test_negative_integers() -> None:
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        assert named(pa.array([-1, -128], kind)) == routed([-1, -128])


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64()], ids=str)
def test_dictionaries(index: pa.DataType) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 2, 1], index), pa.array(["a", "b", None]))
    expected = routed(["b", "a", None, None, "b"])
    assert named(array) == expected
    assert named(array.slice(1, 3)) == expected[1:4]
    assert named(array.slice(5)) == []


def test_dictionaries_in_chunks() -> None:
    chunks = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c", None, "a"]).dictionary_encode()]
    assert named(pa.chunked_array(chunks)) == routed(["a", "b", "a", "c", None, "a"])


def test_chunks() -> None:
    chunked = pa.chunked_array([TEXTS, [], TEXTS[::-1]], pa.string())
    assert named(chunked) == routed([*TEXTS, *TEXTS[::-1]])
    assert named(pa.chunked_array([], pa.string())) == []


def test_nothing_but_nulls() -> None:
    assert named(pa.nulls(3)) == routed([None] * 3)
    assert named(pa.nulls(3, pa.string())) == routed([None] * 3)


def test_nulls_beyond_a_byte_and_a_block() -> None:
    keys = [None if number % 7 == 3 else f"k{number}" for number in range(3000)]
    for array in (pa.array(keys), pa.array(keys, pa.string_view()), pa.array(keys).dictionary_encode()):
        assert named(array) == routed(keys)
        assert named(array.slice(13, 2000)) == routed(keys[13:2013])


def test_bounded_loads() -> None:
    keys = ["a", "b", None, "a", "c"] * 20
    rings = [HashRing(dict.fromkeys("xyz", 10), load_factor=1.1) for _ in range(3)]
    expected = rings[0].route_many(keys).tolist()
    assert rings[1].route_many(pa.array(keys)).tolist() == expected
    assert rings[2].route_many(pa.array(keys).dictionary_encode()).tolist() == expected
    assert rings[0].loads == rings[2].loads


def test_an_empty_ring() -> None:
    assert HashRing({}).route_many(pa.chunked_array([["a"], ["b", None]])).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "array",
    [pa.array([1.5]), pa.array([True]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([1], pa.timestamp("s"))],
    ids=lambda array: str(array.type),
)
def test_types_that_no_key_has(array: pa.Array) -> None:
    for keys in (array, pa.chunked_array([array])):
        with pytest.raises(TypeError, match="keys must be strings, binaries or integers, got the Arrow type"):
            RING.route_many(keys)


def test_a_stream_that_breaks_off() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise RuntimeError("the disk is gone")
        yield

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.string())]), batches())
    with pytest.raises(ValueError, match=r"the Arrow stream failed: .*the disk is gone"):
        RING.route_many(reader)
