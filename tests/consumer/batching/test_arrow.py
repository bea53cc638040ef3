"""Arrow batches, without a broker: their columns equal what the messages have."""

from __future__ import annotations

import ctypes
import gc
import itertools
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties
from support.wiretables import Encoded, field, table

from fairsched import ConfigurationError, Consumer, DecodingError, Message
from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.fieldtables import LATEST_SECOND, as_text
from fairsched.consumer.batching.batches import LARGEST
from fairsched.delivery._columns import MessageColumns
from fairsched.delivery._settling import settle_all
from fairsched.testing import FakeChannel, FakeConsumer


def filled(*bodies: bytes, on_error: Any = "requeue") -> tuple[FakeConsumer, list[Message]]:
    consumer = FakeConsumer(on_error=on_error)
    return consumer, [consumer.put(body, queue=f"q{number % 2}") for number, body in enumerate(bodies)]


VALUES = {
    "text": ("x", "x"), "number": (7, "7"), "flag": (True, "true"), "fraction": (1.5, "1.5"),
    "decimal": (Decimal("1.25"), '"1.25"'),
    "instant": (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00+00:00"'),
    "table": ({"a": [1, None]}, '{"a": [1, null]}'), "octets": (b"\xff", '"\ufffd"'), "empty": ("", ""),
    "none": (None, None),
}  # fmt: skip
PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 9,
    "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "ä", "timestamp": 1_700_000_000,
    "type": "t", "user_id": "u", "app_id": "a", "cluster_id": "k",
}  # fmt: skip


def test_arrow_has_what_the_messages_have() -> None:
    consumer = FakeConsumer()
    headers = {name: given for name, (given, _) in VALUES.items()}
    consumer.put(b"first", queue="a", headers=headers, exchange="e", routing_key="ü", redelivered=True, **PROPERTIES)
    consumer.put(b"", queue="b")
    (batch,) = consumer.arrow_batches(headers=[*VALUES, "missing"], properties=list(PROPERTIES))
    found = batch.record_batch
    found.validate(full=True)
    assert found.schema.field("body").type == pa.binary()
    assert found.schema.field("queue").type == pa.dictionary(pa.int32(), pa.string())
    assert found.schema.field("priority").type == pa.int32()
    first, second = found.to_pylist()
    assert {name: first[name] for name in VALUES} == {name: expected for name, (_, expected) in VALUES.items()}
    expected = {**PROPERTIES, "timestamp": datetime.fromtimestamp(PROPERTIES["timestamp"], UTC)}
    assert {name: first[name] for name in PROPERTIES} == expected
    fixed = ["body", "queue", "exchange", "routing_key", "redelivered"]
    assert found.schema.names[:5] == fixed
    assert [first[name] for name in fixed] == [b"first", "a", "e", "ü", True]
    assert [second[name] for name in fixed] == [b"", "b", "", "b", False]
    assert {second[name] for name in [*VALUES, *PROPERTIES, "missing"]} == {None}


def test_an_arrow_batch_is_settled_like_any_other_and_is_arrow_data() -> None:
    consumer, messages = filled(b"0", b"1", b"2")
    with next(consumer.arrow_batches()) as batch:
        assert pa.record_batch(batch).equals(batch.record_batch)
        assert pa.table(batch).to_batches() == [batch.record_batch]
        assert pa.schema(batch) == batch.record_batch.schema
        batch[1].nack()
    assert (consumer.acked, consumer.requeued) == ([messages[0], messages[2]], [messages[1]])
    assert batch.record_batch["body"].to_pylist() == [b"0", b"1", b"2"]


def test_queues_of_a_double_are_those_put_in_so_far() -> None:
    consumer = FakeConsumer()
    batches = consumer.arrow_batches()
    consumer.put(queue="late")
    (row,) = next(batches).record_batch.to_pylist()
    assert row["queue"] == "late"


def raw(properties: BasicProperties) -> bytes:
    """Properties as a broker sends them."""
    return bytes(12) + b"".join(properties.encode())


def method(exchange: bytes, key: bytes) -> bytes:
    """Encode a basic.deliver as a broker sends it."""
    tag = (1).to_bytes(8, "big")
    return b"\x00\x3c\x00\x3c\x01c" + tag + b"\x00" + bytes([len(exchange)]) + exchange + bytes([len(key)]) + key


NAMES = st.one_of(st.binary(max_size=8), st.text(max_size=4).map(str.encode), st.just(b"k" * 255))


@given(st.lists(st.tuples(st.binary(max_size=300), NAMES, NAMES, st.booleans()), min_size=1, max_size=20))
def test_arrow_columns_equal_those_of_the_messages_as_they_were_received(rows: list[Any]) -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    origins = [FakeChannel("ä"), FakeChannel("b")]
    messages = [
        Message(body, tag, again, method(exchange, key), raw(BasicProperties()), origins[tag % 2])
        for tag, (body, exchange, key, again) in enumerate(rows)
    ]
    found = ArrowColumns(["ä", "b"], (), ()).make(messages)
    found.validate(full=True)
    assert found.num_rows == len(messages)
    for name in ("body", "queue", "exchange", "routing_key", "redelivered"):
        assert found[name].to_pylist() == [getattr(message, name) for message in messages]


def fitting(messages: Sequence[Message], most: int, with_properties: bool) -> int:
    """Return how many messages go into a record batch whose columns have so many octets: at least one."""
    size = 0
    for count, message in enumerate(messages):
        size += max(len(message.body), 6 * len(message.raw_properties) if with_properties else 0)
        if count and size > most:
            return count
    return len(messages)


@given(
    st.lists(st.tuples(st.integers(0, 3000), NAMES, st.booleans(), st.text(max_size=20)), min_size=1, max_size=40),
    st.integers(0, 30_000),
    st.booleans(),
)
def test_a_record_batch_has_the_first_messages_that_fit(rows: list[Any], most: int, with_properties: bool) -> None:
    """Whatever the first is like, from which it is reckoned how much room the others need."""
    from fairsched.consumer.batching import arrow

    origins = [FakeChannel("ä"), FakeChannel("b")]
    messages = [
        Message(
            bytes([tag]) * size, tag, again, method(b"e", key), raw(BasicProperties(message_id=text)), origins[tag % 2]
        )
        for tag, (size, key, again, text) in enumerate(rows)
    ]
    columns = arrow.ArrowColumns(["ä", "b"], (), ("message_id",) if with_properties else ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "_MOST", most)
        found = columns.make(messages)
    found.validate(full=True)
    rest = messages[: fitting(messages, most, with_properties)]
    assert found.num_rows == len(rest)
    for name in ("body", "queue", "exchange", "routing_key", "redelivered"):
        assert found[name].to_pylist() == [getattr(message, name) for message in rest]
    if with_properties:
        assert found["message_id"].to_pylist() == [message.properties.message_id for message in rest]


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SHORT = st.fixed_dictionaries(
    {},
    optional={
        "message_id": TEXT,
        "type": TEXT,
        "priority": st.integers(0, 255),
        "delivery_mode": st.integers(1, 2),
        "timestamp": st.integers(0, 2**63),
        "headers": st.dictionaries(
            st.sampled_from(["h", "i", "é", "other"]),
            st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none(), st.binary(max_size=5)),
            max_size=4,
        ),
    },
)


@given(st.lists(SHORT, min_size=1, max_size=10))
def test_properties_and_headers_equal_those_of_the_messages(rows: list[dict[str, Any]]) -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    names = ["message_id", "type", "priority", "delivery_mode"]
    messages = [Message(b"", 1, False, method(b"", b""), raw(BasicProperties(**row)), FakeChannel("q")) for row in rows]
    found = ArrowColumns(["q"], ["h", "i", "é"], [*names, "timestamp"]).make(messages)
    found.validate(full=True)
    for name in names:
        assert found[name].to_pylist() == [getattr(message.properties, name) for message in messages]
    stamps = [message.properties.timestamp for message in messages]
    expected = [None if one is None or one > LATEST_SECOND else datetime.fromtimestamp(one, UTC) for one in stamps]
    assert found["timestamp"].to_pylist() == expected
    for name in ("h", "i", "é"):
        values = [message.headers.get(name) for message in messages]
        assert found[name].to_pylist() == [None if value is None else as_text(value) for value in values]


#: Octets of the values of kinds that have a fixed size.
SIZES = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"U": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4, b"D": 5, b"l": 8, b"L": 8,
         b"d": 8, b"T": 8, b"V": 0}  # fmt: skip
LABELS = st.sampled_from([b"h", b"i", "é".encode(), b"hh", b"\xff", b""])
LONG = st.one_of(st.binary(max_size=20), st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace")))
FIELDS = st.one_of(
    st.sampled_from(sorted(SIZES.items())).flatmap(
        lambda kind: st.tuples(LABELS, st.just(kind[0]), st.binary(min_size=kind[1], max_size=kind[1]))
    ),
    st.tuples(LABELS, st.sampled_from([b"S", b"x"]), LONG.map(lambda octets: len(octets).to_bytes(4, "big") + octets)),
    st.tuples(LABELS, st.just(b"F"), st.just(table(field(b"n", b"t", b"\1")))),
    st.tuples(LABELS, st.sampled_from([b"A", b"?", b"S", b"F"]), st.binary(max_size=6)),
)


@given(st.lists(st.tuples(st.lists(FIELDS, max_size=5), st.integers(0, 3)), min_size=1, max_size=8))
def test_headers_of_every_kind_equal_those_of_the_messages(rows: list[Any]) -> None:
    """Also such as no encoder makes, and those that are cut short."""
    from fairsched.consumer.batching.arrow import ArrowColumns

    names = ["h", "i", "é", "hh"]
    messages = []
    for fields, cut in rows:
        encoded = b"".join(Encoded(table(*(field(*one) for one in fields)), message_id="m").encode())
        header = bytes(12) + encoded
        messages.append(
            Message(b"", 1, False, method(b"", b""), header[: len(header) - cut], FakeChannel("q"))
        )  # fmt: skip
    found = ArrowColumns(["q"], names, ["message_id"]).make(messages)
    found.validate(full=True)
    for name in names:
        assert found[name].to_pylist() == [header_text(message, name) for message in messages]
    assert found["message_id"].to_pylist() == [property_of(message, "message_id") for message in messages]


def header_text(message: Message, name: str) -> str | None:
    try:
        value = message.headers.get(name)
    except DecodingError:
        return None
    return None if value is None else as_text(value)


def property_of(message: Message, name: str) -> object:
    try:
        return getattr(message.properties, name)
    except DecodingError:
        return None


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=40)), min_size=1, max_size=5))
def test_columns_of_any_bytes_are_those_of_the_messages_or_none(rows: list[tuple[bytes, bytes]]) -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    messages = [Message(b"", 1, False, method(b"", b"")[:15] + path, header, FakeChannel("q")) for path, header in rows]
    names = [name for name in PROPERTIES if name != "timestamp"]
    columns = ArrowColumns(["q"], ["h"], names)
    for message in messages:
        try:
            expected = [message.exchange, message.routing_key]
        except Exception:
            continue  # it is no basic.deliver, of which none has come that far
        (row,) = columns.make([message]).to_pylist()
        assert [row["exchange"], row["routing_key"]] == expected
        assert row["h"] == header_text(message, "h")
        for name in names:
            value = property_of(message, name)
            assert row[name] == (value.decode("utf-8", "replace") if isinstance(value, bytes) else value)


def test_what_cannot_be_decoded_is_null() -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    good = raw(BasicProperties(headers={"h": "x"}, message_id="m"))
    headers = raw(BasicProperties(headers={"h": "x"}, message_id="m")).replace(b"\x01hS", b"\x01h?")
    messages = [
        Message(b"", 1, False, method(b"", b""), header, FakeChannel("q")) for header in (good, headers, b"short")
    ]
    found = ArrowColumns(["q"], ["h"], ["message_id"]).make(messages)
    assert found["h"].to_pylist() == ["x", None, None]
    assert found["message_id"].to_pylist() == ["m", "m", None]


def test_text_that_is_no_utf8_is_replaced() -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    bad = raw(BasicProperties(message_id="mm")).replace(b"mm", b"m\xff")
    message = Message(b"", 1, False, method(b"e\xff", b"\xc3"), bad, FakeChannel("q"))
    (row,) = ArrowColumns(["q"], (), ["message_id"]).make([message]).to_pylist()
    assert (row["exchange"], row["routing_key"], row["message_id"]) == ("e\ufffd", "\ufffd", "m\ufffd")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"headers": "tenant"}, "headers must be a sequence of names, got 'tenant'"),
        ({"headers": [b"tenant"]}, "headers must be a sequence of names"),
        ({"headers": [""]}, "headers must be a sequence of names"),
        ({"headers": ["queue"]}, "different names, got 'queue' twice"),
        ({"headers": ["h", "h"]}, "different names, got 'h' twice"),
        ({"headers": ["type"], "properties": ["type"]}, "different names, got 'type' twice"),
        ({"properties": ["colour"]}, "no such property: 'colour'; there are content_type, "),
        ({"properties": ["headers"]}, "no such property: 'headers'"),
    ],
)
def test_columns_that_are_not_allowed(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        FakeConsumer().arrow_batches(**arguments)


def test_without_pyarrow_the_call_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="needs pyarrow: pip install"):
        FakeConsumer().arrow_batches()


def test_more_than_a_record_batch_holds_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairsched.consumer.batching import arrow

    monkeypatch.setattr(arrow, "_MOST", 1000)
    consumer, messages = filled(b"x" * 600, b"y" * 600, b"z" * 5000, b"0", b"1")
    batches = consumer.arrow_batches()
    found = [next(batches), next(batches)]
    assert [list(batch) for batch in found] == [messages[:1], messages[1:2]]
    batches.close()  # and nothing that was not handed out is kept
    assert sorted(consumer.requeued, key=messages.index) == messages[2:]
    assert [batch.ack() for batch in found] == [1, 1]


def test_messages_without_a_body_are_refused() -> None:
    consumer, (message,) = filled(b"x")
    message.body = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="body must be bytes, got None"):
        next(consumer.arrow_batches())
    assert consumer.requeued == [message]
    with pytest.raises(AttributeError):
        settle_all([Message.__new__(Message)], AckLedger.ACK)


class Twisted(str):
    """The name of a queue whose hash changes what is being made into columns."""

    messages: list[Message]

    def __hash__(self) -> int:
        for message in self.messages:
            message.body = b"changed, and longer than it was"
        self.messages.clear()
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def test_what_changes_messages_while_columns_are_made_breaks_nothing() -> None:
    from fairsched.consumer.batching.arrow import ArrowColumns

    columns = ArrowColumns(["q"], (), ())
    name = Twisted("q")
    origin = FakeChannel(name)
    path = method(b"e", b"k")
    messages = [Message(b"%d" % tag, tag, False, path, raw(BasicProperties()), origin) for tag in range(5)]
    name.messages = messages
    found = columns.make(messages)
    found.validate(full=True)
    assert (found.num_rows, messages) == (5, [])
    assert set(found["body"].to_pylist()) <= {b"changed, and longer than it was", *(b"%d" % tag for tag in range(5))}


@pytest.mark.parametrize("size", [0, -1, LARGEST + 1, 2.0, True, "10", None])
def test_sizes_that_are_not_allowed(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_size"):
        FakeConsumer().arrow_batches(size)


def test_batches_are_taken_inside_the_block_only() -> None:
    with pytest.raises(RuntimeError, match="inside 'with consumer:'"):
        Consumer("amqp://localhost", ["q"]).arrow_batches()


# Handed over by the Arrow C data interface ----------------------------------------------------------------------------


class CArray(ctypes.Structure):
    """The specification's layout of struct ArrowArray."""


CArray._fields_ = [
    ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64), ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(CArray))), ("dictionary", ctypes.POINTER(CArray)),
    ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p),
]  # fmt: skip


def moved(array: CArray) -> CArray:
    """Move an array away, as the specification says."""
    found = CArray.from_buffer_copy(array)
    array.release = None
    return found


def release(array: CArray) -> None:
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(array.release)(ctypes.addressof(array))
    assert array.release is None


def buffer(array: CArray, number: int, size: int) -> bytes:
    return ctypes.string_at(array.buffers[number], size)


def columns_of(queues: Sequence[str]) -> MessageColumns:
    def unasked(*_: Any) -> Any:
        raise AssertionError("nothing is read by Python")

    return MessageColumns(list(queues), (), [], unasked, unasked, LATEST_SECOND)


def received(body: bytes, count: int = 3) -> list[Message]:
    origins = [FakeChannel("ä"), FakeChannel("b")]
    return [
        Message(body, tag, False, method(b"e", b"k"), raw(BasicProperties()), origins[tag % 2]) for tag in range(count)
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(["batch", "body", "queue", "names"])))
def test_parts_that_were_moved_away_stay_until_each_is_released(order: Sequence[str]) -> None:
    made = columns_of(["ä", "b"]).make(received(b"0123456789"))
    parts = {"batch": moved(CArray.from_address(made.address))}
    del made
    batch = parts["batch"]
    assert (batch.length, batch.n_children, batch.n_buffers, batch.null_count) == (3, 5, 1, 0)
    parts["body"], parts["queue"] = (moved(batch.children[number].contents) for number in range(2))
    parts["names"] = moved(parts["queue"].dictionary.contents)
    for name in order:
        for kept in order[order.index(name) :]:
            if kept == "body":
                assert buffer(parts["body"], 2, 30) == b"0123456789" * 3
            elif kept == "queue":
                assert list(memoryview(buffer(parts["queue"], 1, 12)).cast("i")) == [0, 1, 0]
            elif kept == "names":
                assert buffer(parts["names"], 2, 3).decode() == "äb"
        release(parts[name])


def imported() -> None:
    columns = columns_of(["ä", "b"])
    made = columns.make(received(LARGE))
    batch = pa.RecordBatch._import_from_c(made.address, SCHEMA)
    assert not CArray.from_address(made.address).release
    del columns, made
    body = batch["body"].slice(2)
    del batch
    assert body[0].as_py() == LARGE


def not_imported() -> None:
    columns_of(["ä", "b"]).make(received(LARGE))


def not_importable() -> None:
    made = columns_of(["ä", "b"]).make(received(LARGE))
    with pytest.raises(pa.ArrowInvalid):
        pa.RecordBatch._import_from_c(made.address, pa.schema([SCHEMA.field(0)]))


def not_finished() -> None:
    messages = received(LARGE)
    messages[-1].body = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="body must be bytes"):
        columns_of(["ä", "b"]).make(messages)


def one_column_kept() -> None:
    made = columns_of(["ä", "b"]).make(received(LARGE))
    body = moved(CArray.from_address(made.address).children[0].contents)
    del made
    release(body)


LARGE = bytes(4 << 20)
SCHEMA = pa.schema(
    {"body": pa.binary(), "queue": pa.dictionary(pa.int32(), pa.string()), "exchange": pa.string(),
     "routing_key": pa.string(), "redelivered": pa.bool_()}
)  # fmt: skip


@pytest.mark.parametrize("use", [imported, not_imported, not_importable, not_finished, one_column_kept])
def test_the_memory_of_a_batch_is_freed_whatever_becomes_of_it(use: Callable[[], None]) -> None:
    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        use()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB, of 1 200 000


def test_a_record_batch_outlives_all_that_made_it() -> None:
    consumer = FakeConsumer()
    consumer.put(b"first", queue="ä", routing_key="k")
    consumer.put(b"second", queue="b")
    with next(consumer.arrow_batches(properties=["message_id"])) as batch:
        found = batch.record_batch
    del consumer, batch
    gc.collect()
    queue = found["queue"]
    table = pa.Table.from_batches([found]).select(["body", "message_id"])
    del found
    gc.collect()
    assert queue.to_pylist() == ["ä", "b"]
    assert table.to_pydict() == {"body": [b"first", b"second"], "message_id": [None, None]}


def test_batches_with_one_dictionary_are_made_and_freed_by_many_threads() -> None:
    columns, messages, wrong = columns_of(["ä", "b"]), received(b"x", 50), []

    def make() -> None:
        kept = []
        for _ in range(2_000):
            made = columns.make(messages)
            found = pa.RecordBatch._import_from_c(made.address, SCHEMA)
            kept = [*kept[-5:], found]
        if any(one["queue"].to_pylist() != ["ä", "b"] * 25 for one in kept):
            wrong.append(kept)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
