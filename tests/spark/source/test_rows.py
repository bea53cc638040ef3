"""Raw deliveries become columns; pika's own encoder is the oracle."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wiretables import Encoded, field, nested, table

from fairsched.errors import ConfigurationError
from fairsched.spark.source.options import source_options
from fairsched.spark.source.rows import COLUMNS, Decoder, check_columns, column_names, ddl, stream_offset
from fairsched.spark.transport import Delivery

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


def delivery(body: bytes = b"", tag: str = "t", exchange: str = "", key: str = "k", **given_: object) -> Delivery:
    method = pika.spec.Basic.Deliver(tag, 7, False, exchange, key)
    frame = pika.frame.Method(1, method).marshal()[7:-1]
    header = pika.frame.Header(1, len(body), pika.BasicProperties(**given_)).marshal()[7:-1]
    return frame, header, body, 1_700_000_000_123_456_789


@given(properties, st.binary(max_size=30), text, text)
def test_everything_is_decoded_as_pika_encoded_it(given_, body, exchange, key):
    names = [name for name in COLUMNS if name != "shed"]
    decoder = Decoder(names, "property:app_id")
    columns = decoder.decode([delivery(body, "tag", exchange, key, **given_)], {b"tag": "q"})
    [row] = decoder.batch(columns).to_pylist()
    assert (row["body"], row["queue"], row["exchange"], row["routing_key"]) == (body, "q", exchange, key)
    assert row["message_id"] == given_.get("message_id")
    assert row["key"] == given_.get("app_id", "")
    seconds = given_.get("timestamp")
    assert row["enqueued_at"] == (None if seconds is None else datetime.fromtimestamp(seconds, UTC))
    assert row["received_at"] == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_456)
    for name, value in row["properties"].items():
        if name != "timestamp":
            assert value == given_.get(name)
    headers = given_.get("headers")
    expected = headers and {name: value if isinstance(value, str) else str(value) for name, value in headers.items()}
    assert (None if row["headers"] is None else dict(row["headers"])) == (expected if headers else headers)


def test_a_header_may_say_when_a_message_was_sent():
    decoder = Decoder(["body"], time_header="timestamp_in_ms")
    rows = [delivery(headers={"timestamp_in_ms": 1_700_000_000_042}), delivery(timestamp=5), delivery()]
    assert decoder.decode(rows, {b"t": "q"})["enqueued_at"] == [1_700_000_000_042_000, 5_000_000, None]


def test_a_message_was_sent_by_the_end_of_the_second_that_it_names():
    decoder = Decoder(["body"], time_header="sent", timed=True)
    rows = [delivery(headers={"sent": 7_042}), delivery(timestamp=5), delivery(), delivery(headers={"sent": True})]
    assert decoder.decode(rows, {b"t": "q"})["sent_by"] == [7_042_000, 5_999_999, None, None]


def test_nonsense_instants_are_no_instants():
    decoder = Decoder(["enqueued_at", "properties"], time_header="t")
    rows = [delivery(timestamp=2**62, headers={"t": "then"}), delivery(headers={"t": 2**62})]
    columns = decoder.decode(rows, {b"t": "q"})
    assert decoder.batch(columns).column("enqueued_at").to_pylist() == [None, None]


def test_bytes_that_are_no_text_do_not_stop_a_query():
    method, header, body, received = delivery(message_id="xx")
    broken = method, header.replace(b"xx", b"\xff\xfe"), body, received
    decoder = Decoder(["message_id"])
    assert decoder.batch(decoder.decode([broken], {b"t": "q"})).to_pylist() == [{"message_id": "\ufffd\ufffd"}]


@pytest.mark.parametrize("headers", [nested(1500), table(field(b"a", b"?", b""))])
def test_headers_that_cannot_be_decoded_are_null(headers):
    method, _, body, received = delivery()
    header = pika.frame.Header(1, 0, Encoded(headers, message_id="m")).marshal()[7:-1]
    decoder = Decoder(["message_id", "headers"], "header:a", "sent")
    columns = decoder.decode([(method, header, body, received)], {b"t": "q"})
    assert columns["key"] == [""]
    assert decoder.batch(columns).to_pylist() == [{"message_id": "m", "headers": None}]


@pytest.mark.parametrize("cut", [12, 13, -1])
@pytest.mark.parametrize("flags", [b"\x80\x01", b"\x80\x02", b"\xff\xfc"])
def test_properties_of_which_none_can_be_decoded_are_null(flags, cut):
    """Flags that no property has, more flags than were sent, or a header cut short: of one message among others."""
    method, header, body, received = delivery(b"broken", message_id="m", app_id="a", timestamp=5)
    broken = (header[:12] + flags + header[14:])[: cut if cut > 0 else None]
    good = delivery(b"good", message_id="m", app_id="a", timestamp=5)
    decoder = Decoder(["body", "message_id", "enqueued_at", "properties", "headers"], "property:app_id", timed=True)
    columns = decoder.decode([good, (method, broken, body, received), good, delivery()], {b"t": "q"})
    assert columns["key"] == ["a", "", "a", ""]
    assert columns["sent_by"] == [5_999_999, None, 5_999_999, None]
    rows = decoder.batch(columns).to_pylist()
    assert rows[1] == {"body": b"broken", "message_id": None, "enqueued_at": None, "properties": None, "headers": None}
    assert rows[0] == rows[2]
    assert rows[0]["properties"]["app_id"] == "a"
    assert set(rows[3]["properties"].values()) == {None}


def test_headers_that_are_no_text_become_json():
    found = delivery(headers={"list": [1, "a"], "table": {"b": b"\xff"}, "flag": True, "none": None})
    decoder = Decoder(["headers"], "header:list")
    columns = decoder.decode([found], {b"t": "q"})
    assert columns["key"] == ['[1, "a"]']
    values = {name: json.loads(value) for name, value in columns["headers"][0]}
    assert values == {"list": [1, "a"], "table": {"b": "\ufffd"}, "flag": True, "none": None}


def test_the_offset_in_a_stream_is_found():
    assert stream_offset(delivery(headers={"x-stream-offset": 2**40})[1]) == 2**40
    assert stream_offset(delivery(headers={"a": 1})[1]) is None


def test_rows_are_taken_in_the_order_given():
    decoder = Decoder(["body"])
    columns = decoder.decode([delivery(b"a"), delivery(b"b"), delivery(b"c")], {b"t": "q"})
    assert decoder.batch(columns, [2, 0, 1]).column("body").to_pylist() == [b"c", b"a", b"b"]


def test_columns_depend_on_the_options():
    plain = source_options({"url": "amqp://h", "queues": "a"})
    assert column_names(plain)[0] == "body"
    assert not {"offset", "key", "headers", "properties"} & set(column_names(plain))
    more = source_options({"url": "amqp://h", "streams": "a", "includeHeaders": "true", "includeProperties": "true"})
    assert {"offset", "headers", "properties"} <= set(column_names(more))
    assert "headers MAP<STRING, STRING>" in ddl(column_names(more))
    with pytest.raises(ConfigurationError, match="no such column: bogus"):
        check_columns(["body", "bogus"], plain)
