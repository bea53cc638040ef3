"""Tables as the broker reads, compares and writes them, with pamqp as the other side of the wire."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from fairsched import _probe_codec as probe
from fairsched.amqp._properties import FIELD_TYPES
from fairsched.amqp.fieldtables import MAX_DEPTH, read_table
from fairsched.spark.source.typedheaders import typed_headers

#: Values of every kind, as they stand behind their letter, and what the probe makes of them.
KINDS: dict[str, tuple[bytes, Any]] = {
    "t": (b"\1", True),
    "b": (b"\xff", -1),
    "B": (b"\xff", 255),
    "s": (b"\xff\xfe", -2),
    "U": (b"\x80\0", -(2**15)),
    "u": (b"\xff\xfe", 65534),
    "I": (b"\xff\xff\xff\xfd", -3),
    "i": (b"\xff\xff\xff\xfd", 2**32 - 3),
    "l": (b"\xff" * 7 + b"\xfc", -4),
    "L": (b"\x7f" + b"\xff" * 7, 2**63 - 1),
    "f": (struct.pack(">f", 2.5), 2.5),
    "d": (struct.pack(">d", -0.1), -0.1),
    "D": (b"\2\0\0\1\0", ("D", b"\2\0\0\1\0")),
    "T": (b"\0\0\0\0\x65\0\0\0", ("T", b"\0\0\0\0\x65\0\0\0")),
    "V": (b"", ("V", b"")),
    "S": (b"\0\0\0\2\xff\xfe", b"\xff\xfe"),
    "x": (b"\0\0\0\2\0\xfe", ("x", b"\0\xfe")),
    "F": (b"\0\0\0\4\1yt\0", [(b"y", False)]),
    "A": (b"\0\0\0\3Vt\1", [("V", b""), True]),
}


def field(name: bytes, kind: str, value: bytes) -> bytes:
    return bytes((len(name),)) + name + kind.encode() + value


def table(*fields: bytes) -> bytes:
    return struct.pack(">I", sum(map(len, fields))) + b"".join(fields)


ALL = table(*(field(kind.encode() * 3, kind, value) for kind, (value, _) in KINDS.items()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read(kind: str) -> None:
    value, expected = KINDS[kind]
    one = table(field(b"name", kind, value))
    assert probe.table(one) == [(b"name", expected)]
    assert probe.table_value(one, b"name")[0] == expected
    assert probe.copied(one) == one


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_inside_an_array_inside_a_table(kind: str) -> None:
    value, expected = KINDS[kind]
    array = table(kind.encode() + value)
    nested = table(field(b"a", "A", array))
    assert probe.table(table(field(b"t", "F", nested))) == [(b"t", [(b"a", [expected])])]


def test_the_table_of_types_has_every_type_and_no_other() -> None:
    assert set(KINDS) == set(map(chr, FIELD_TYPES))


@pytest.mark.parametrize("letter", [chr(code) for code in range(256)])
def test_all_decoders_know_the_same_types(letter: str) -> None:
    value, _ = KINDS.get(letter, (b"\0" * 8, None))
    one = struct.pack(">I", 6 + len(value)) + b"\4name" + letter.encode("latin-1") + value
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + one
    known = letter in KINDS
    assert (probe.table(one) is not None) == known
    assert (typed_headers(header) is not None) == known
    if known:
        assert list(read_table(one, 0)[0]) == ["name"]
    else:
        with pytest.raises(ValueError, match="of a kind that AMQP knows"):
            read_table(one, 0)


def test_a_table_cut_at_any_octet_is_refused() -> None:
    assert [name for name, _ in probe.table(ALL)] == [kind.encode() * 3 for kind in KINDS]
    for cut in range(len(ALL)):
        assert probe.table(ALL[:cut]) is None
        shorter = struct.pack(">I", max(0, cut - 4)) + ALL[4:cut]
        assert probe.table(shorter) is None or probe.copied(shorter) == shorter


@given(st.integers(0, len(ALL) - 1), st.integers(0, 255))
def test_an_octet_that_is_another_makes_what_python_has_or_nothing(at: int, octet: int) -> None:
    other = ALL[:at] + bytes((octet,)) + ALL[at + 1 :]
    found = probe.table(other)
    try:
        expected, end = read_table(other, 0)
    except ValueError:
        assert found is None
        return
    assert (found is not None) == (end == len(other))
    if found is not None:
        assert {name.decode("utf-8", "replace") for name, _ in found} == set(expected)


@pytest.mark.parametrize("kind", ["F", "A"])
def test_nesting_has_an_end(kind: str) -> None:
    def nested(depth: int) -> bytes:
        inner = b""
        for _ in range(depth - 1):
            inner = (b"\1n" if kind == "F" else b"") + kind.encode() + struct.pack(">I", len(inner)) + inner
        return table(inner if kind == "F" else (field(b"n", "A", inner[1:]) if inner else b""))

    assert probe.table(nested(MAX_DEPTH)) is not None
    assert probe.table(nested(MAX_DEPTH + 1)) is None


values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("z\u00e9") | st.tuples(st.integers(0, 2**31)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", max_size=5), inner, max_size=3),
    max_leaves=6,
)


def encoded(value: Any) -> Any:
    """Texts as the probe wants them."""
    if isinstance(value, dict):
        return {name.encode(): encoded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [encoded(one) for one in value]
    return value.encode() if isinstance(value, str) else value


def decoded(value: Any) -> Any:
    """Instants as the test has them."""
    if isinstance(value, dict):
        return {name: decoded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [decoded(one) for one in value]
    return (int(value.timestamp()),) if hasattr(value, "timestamp") else value


@given(st.dictionaries(st.text("xy\u00e9", max_size=9), values, max_size=4))
def test_a_table_is_written(fields: dict[str, Any]) -> None:
    data = probe.write_table(encoded(fields))
    size, found = decode.field_table(data)
    assert (size, decoded(found)) == (len(data), fields)
    assert probe.copied(data) == data


def test_the_first_of_two_fields_counts_and_names_are_left_out() -> None:
    twice = table(field(b"x", "t", b"\1"), field(b"y", "V", b""), field(b"x", "t", b"\0"))
    assert probe.table_value(twice, b"x") == (True, "the value 'true' of type 'bool'")
    assert probe.table_value(twice, b"z") == (None, "none")
    assert probe.copied(twice, [b"x"]) == table(field(b"y", "V", b""))
    assert probe.copied(twice, [b"y", b"x"]) == table()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("I", b"\0\0\0\x0a", "the value '10' of type 'signedint'"),
        ("l", b"\xff" * 8, "the value '-1' of type 'long'"),
        ("S", b"\0\0\0\4lazy", "the value 'lazy' of type 'longstr'"),
        ("B", b"\5", "the value '5' of type 'unsignedbyte'"),
    ],
)
def test_what_is_said_of_an_argument(kind: str, value: bytes, text: str) -> None:
    assert probe.table_value(table(field(b"x", kind, value)), b"x")[1] == text


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("I", b"\0\0\0\5"), ("b", b"\5"), True),
        (("l", b"\xff" * 8), ("s", b"\xff\xff"), True),
        (("B", b"\xff"), ("b", b"\xff"), False),
        (("i", b"\xff" * 4), ("I", b"\xff" * 4), False),
        (("f", struct.pack(">f", 0.5)), ("d", struct.pack(">d", 0.5)), True),
        (("d", struct.pack(">d", 5.0)), ("I", b"\0\0\0\5"), False),
        (("S", b"\0\0\0\1a"), ("x", b"\0\0\0\1a"), True),
        (("S", b"\0\0\0\1a"), ("x", b"\0\0\0\1b"), False),
        (("S", b"\0\0\0\1a"), ("S", b"\0\0\0\1a"), True),
        (("t", b"\1"), None, False),
        (None, None, True),
    ],
)
def test_arguments_are_equivalent(
    first: tuple[str, bytes] | None, second: tuple[str, bytes] | None, same: bool
) -> None:
    one, other = (table(field(b"x", *found)) if found else encode.field_table({"y": 1}) for found in (first, second))
    assert probe.equivalent(one, other, b"x") is same
    assert probe.equivalent(other, one, b"x") is same
