"""Raw deliveries become columns; pika's own encoder is the oracle."""

from __future__ import annotations

import json
import struct
import time
from datetime import UTC, datetime

import numpy as np
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wiretables import Encoded, field, nested, table

from fairsched.delivery._collected import CollectedDeliveries
from fairsched.errors import ConfigurationError
from fairsched.spark.source.columns import COLUMNS, Decoder, check_columns, column_names, ddl
from fairsched.spark.source.options import source_options

text = st.text(max_size=20).filter(lambda value: len(value.encode()) <= 255)
properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": text,
        "content_encoding": text,
        "headers": st.dictionaries(st.text("abc", min_size=1, max_size=3), st.one_of(text, st.integers(0, 2**40))),
        "delivery_mode": st.integers(1, 2),
        "priority": st.integers(0, 255),
        "correlation_id": text,
        "reply_to": text,
        "expiration": text,
        "message_id": text,
        "timestamp": st.integers(0, 2**33),
        "type": text,
        "user_id": text,
        "app_id": text,
        "cluster_id": text,
    },
)


Delivery = tuple[bytes, bytes, bytes]


def delivery(body: bytes = b"", tag: str = "t", exchange: str = "", key: str = "k", **given_: object) -> Delivery:
    method = pika.spec.Basic.Deliver(tag, 7, False, exchange, key)
    frame = pika.frame.Method(1, method).marshal()[7:-1]
    header = pika.frame.Header(1, len(body), pika.BasicProperties(**given_)).marshal()[7:-1]
    return frame, header, body


def collected(*deliveries: Delivery) -> CollectedDeliveries:
    """Deliveries of a channel, their tags in order."""
    found = CollectedDeliveries()
    found.want(len(deliveries), 10**6)
    for number, (method, header, body) in enumerate(deliveries, 1):
        at = 5 + method[4]
        found.deliver(method[:at] + number.to_bytes(8, "big") + method[at + 8 :], header, body)
    return found


def rows_of(decoder: Decoder, *deliveries: Delivery) -> list[dict[str, object]]:
    """Rows as a query has them, and "key" and "sent_by" where the decoder makes them."""
    found = collected(*deliveries)
    known = decoder.look(found, {b"t": "q"})
    more = {name: known[name].to_pylist() for name in ("key", "sent_by") if name in known}
    rows = decoder.batch(found, known)
    rows.validate(full=True)
    return [{**row, **{name: values[at] for name, values in more.items()}} for at, row in enumerate(rows.to_pylist())]


@given(properties, st.binary(max_size=30), text, text)
def test_everything_is_decoded_as_pika_encoded_it(given_, body, exchange, key):
    names = [name for name in COLUMNS if name != "shed"]
    decoder = Decoder(names, "property:app_id")
    before = time.time()
    [row] = rows_of(decoder, delivery(body, "t", exchange, key, **given_))
    assert (row["body"], row["queue"], row["exchange"], row["routing_key"]) == (body, "q", exchange, key)
    assert row["message_id"] == given_.get("message_id")
    assert row["key"] == given_.get("app_id", "")
    seconds = given_.get("timestamp")
    assert row["enqueued_at"] == (None if seconds is None else datetime.fromtimestamp(seconds, UTC))
    assert before - 1e-6 <= row["received_at"].timestamp() <= time.time()
    for name, value in row["properties"].items():
        if name != "timestamp":
            assert value == given_.get(name)
    headers = given_.get("headers")
    expected = headers and {name: value if isinstance(value, str) else str(value) for name, value in headers.items()}
    assert (None if row["headers"] is None else dict(row["headers"])) == (expected if headers else headers)


def test_a_header_may_say_when_a_message_was_sent():
    decoder = Decoder(["body"], time_header="timestamp_in_ms")
    found = collected(delivery(headers={"timestamp_in_ms": 1_700_000_000_042}), delivery(timestamp=5), delivery())
    known = decoder.look(found, {b"t": "q"})
    assert known["enqueued_at"].to_pylist() == [1_700_000_000_042_000, 5_000_000, None]


def test_a_message_was_sent_by_the_end_of_the_second_that_it_names():
    decoder = Decoder(["body"], time_header="sent", timed=True)
    rows = [delivery(headers={"sent": 7_042}), delivery(timestamp=5), delivery(), delivery(headers={"sent": True})]
    assert [row["sent_by"] for row in rows_of(decoder, *rows)] == [7_042_000, 5_999_999, None, None]


@pytest.mark.parametrize("kind", [b"b", b"B", b"s", b"u", b"I", b"i", b"l", b"L"])
def test_a_time_is_any_whole_number_that_makes_sense(kind):
    size = {b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}[kind]
    decoder = Decoder(["enqueued_at"], time_header="t")
    for raw, expected in ((b"\x00" * (size - 1) + b"\x2a", 42), (b"\xff" * size, 2 ** (8 * size) - 1)):
        header = pika.frame.Header(1, 0, Encoded(table(field(b"a", b"I", bytes(4)), field(b"t", kind, raw))))
        [row] = rows_of(decoder, (delivery()[0], header.marshal()[7:-1], b""))
        moment = datetime.fromtimestamp(expected / 1000, UTC) if expected == 42 or kind in (b"B", b"u", b"i") else None
        assert row["enqueued_at"] == moment


def test_nonsense_instants_are_no_instants():
    decoder = Decoder(["enqueued_at", "properties"], time_header="t")
    rows = rows_of(decoder, delivery(timestamp=2**62, headers={"t": "then"}), delivery(headers={"t": 2**62}))
    assert [row["enqueued_at"] for row in rows] == [None, None]


def test_bytes_that_are_no_text_do_not_stop_a_query():
    method, header, body = delivery(message_id="xx")
    broken = method, header.replace(b"xx", b"\xff\xfe"), body
    assert rows_of(Decoder(["message_id"]), broken) == [{"message_id": "\ufffd\ufffd"}]


@pytest.mark.parametrize("headers", [nested(1500), table(field(b"a", b"?", b""))])
def test_headers_that_cannot_be_decoded_are_null(headers):
    method, _, body = delivery()
    header = pika.frame.Header(1, 0, Encoded(headers, message_id="m")).marshal()[7:-1]
    decoder = Decoder(["message_id", "headers"], "header:a", "sent")
    assert rows_of(decoder, (method, header, body)) == [{"message_id": "m", "headers": None, "key": ""}]


@pytest.mark.parametrize("cut", [12, 13, -1])
@pytest.mark.parametrize("flags", [b"\x80\x01", b"\x80\x02", b"\xff\xfc"])
def test_properties_of_which_none_can_be_decoded_are_null(flags, cut):
    """Flags that no property has, more flags than were sent, or a header cut short: of one message among others."""
    method, header, body = delivery(b"broken", message_id="m", app_id="a", timestamp=5)
    broken = (header[:12] + flags + header[14:])[: cut if cut > 0 else None]
    good = delivery(b"good", message_id="m", app_id="a", timestamp=5)
    decoder = Decoder(["body", "message_id", "enqueued_at", "properties", "headers"], "property:app_id", timed=True)
    rows = rows_of(decoder, good, (method, broken, body), good, delivery())
    assert [row.pop("key") for row in rows] == ["a", "", "a", ""]
    assert [row.pop("sent_by") for row in rows] == [5_999_999, None, 5_999_999, None]
    assert rows[1] == {"body": b"broken", "message_id": None, "enqueued_at": None, "properties": None, "headers": None}
    assert rows[0] == rows[2]
    assert rows[0]["properties"]["app_id"] == "a"
    assert set(rows[3]["properties"].values()) == {None}


def test_headers_that_are_no_text_become_json():
    found = delivery(headers={"list": [1, "a"], "table": {"b": b"\xff"}, "flag": True, "none": None})
    decoder = Decoder(["headers"], "header:list")
    [row] = rows_of(decoder, found)
    assert row["key"] == '[1, "a"]'
    values = {name: json.loads(value) for name, value in row["headers"]}
    assert values == {"list": [1, "a"], "table": {"b": "\ufffd"}, "flag": True, "none": None}


def test_the_offset_in_a_stream_is_found():
    name = "x-stream-offset"
    high = 2**40
    rows = [{name: high}, {"a": 1}, None, {"a": "x" * 99, name: high + 1}, {"t": {"a": {}}, name: high + 2},
            {name: high + 3, "t": [1]}]  # fmt: skip
    found = collected(*(delivery(headers=headers) for headers in rows))
    expected = [high, -1, -1, high + 1, high + 2, high + 3]
    assert memoryview(found.offsets()).cast("q").tolist() == expected
    assert found.last_offset() == high + 3
    columns = Decoder(["offset"]).batch(found, {})
    assert columns.column("offset").to_pylist() == [None if offset < 0 else offset for offset in expected]


def test_the_offset_in_a_stream_is_the_one_that_the_broker_added():
    def number(value: int) -> bytes:
        return field(b"x-stream-offset", b"l", struct.pack(">q", value))

    text, inner = field(b"x-stream-offset", b"S", struct.pack(">I", 4) + b"mine"), table(number(9))
    cases = ((table(number(5), text), 5), (table(number(6), number(2**40)), 6), (table(text, number(7)), -1),
             (table(field(b"a", b"F", inner), number(8)), 8), (table(field(b"a", b"F", inner)), -1))  # fmt: skip
    headers = [pika.frame.Header(1, 0, Encoded(octets)).marshal()[7:-1] for octets, _ in cases]
    found = collected(*((delivery()[0], one, b"") for one in headers))
    assert memoryview(found.offsets()).cast("q").tolist() == [expected for _, expected in cases]


def test_rows_are_taken_in_the_order_given():
    decoder = Decoder(["body", "queue", "redelivered"])
    found = collected(delivery(b"a"), delivery(b"b", "u"), delivery(b"c"))
    known = decoder.look(found, {b"t": "q", b"u": "r"})
    rows = decoder.batch(found, known, [2, 0, 1]).to_pylist()
    assert [(row["body"], row["queue"]) for row in rows] == [(b"c", "q"), (b"a", "q"), (b"b", "r")]
    for wrong in ([3], [-1]):
        with pytest.raises(ValueError, match="order must have rows from 0 to 2"):
            found.arrange(np.array(wrong))
    with pytest.raises(KeyError):
        decoder.look(found, {b"t": "q"})


def test_columns_depend_on_the_options():
    plain = source_options({"url": "amqp://h", "queues": "a"})
    assert column_names(plain)[0] == "body"
    assert not {"offset", "key", "headers", "properties"} & set(column_names(plain))
    more = source_options({"url": "amqp://h", "streams": "a", "includeHeaders": "true", "includeProperties": "true"})
    assert {"offset", "headers", "properties"} <= set(column_names(more))
    assert "headers MAP<STRING, STRING>" in ddl(column_names(more))
    with pytest.raises(ConfigurationError, match="no such column: bogus"):
        check_columns(["body", "bogus"], plain)
