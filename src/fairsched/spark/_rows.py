"""From raw deliveries to Arrow columns: only the fields that the query's schema asks for are decoded.

Layout of a content header: AMQP 0-9-1, section 4.2.6.1; of the method, section 1.8.3.13. A pure function of its input;
an instance is for one thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any

import pyarrow as pa
from pika.data import decode_table

from fairsched.errors import ConfigurationError
from fairsched.spark._options import SourceOptions

_INSTANT = pa.timestamp("us", tz="UTC")
_PROPERTIES: dict[str, pa.DataType] = {
    "content_type": pa.string(),
    "content_encoding": pa.string(),
    "delivery_mode": pa.int32(),
    "priority": pa.int32(),
    "correlation_id": pa.string(),
    "reply_to": pa.string(),
    "expiration": pa.string(),
    "timestamp": _INSTANT,
    "type": pa.string(),
    "user_id": pa.string(),
    "app_id": pa.string(),
}
#: All columns there can be, in the order in which a source offers them.
COLUMNS: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "queue": pa.string(),
    "routing_key": pa.string(),
    "exchange": pa.string(),
    "message_id": pa.string(),
    "redelivered": pa.bool_(),
    "offset": pa.int64(),
    "enqueued_at": _INSTANT,
    "received_at": _INSTANT,
    "key": pa.string(),
    "shed": pa.bool_(),
    "properties": pa.struct(list(_PROPERTIES.items())),
    "headers": pa.map_(pa.string(), pa.string()),
}
_SPARK = {pa.binary(): "BINARY", pa.string(): "STRING", pa.bool_(): "BOOLEAN", pa.int64(): "BIGINT",
          pa.int32(): "INT", _INSTANT: "TIMESTAMP"}  # fmt: skip

# Fields of a content header in the order of their flags, from bit 15: name and how it is written.
_TEXT, _OCTET, _TABLE, _TIME = range(4)
_FIELDS = (
    ("content_type", _TEXT), ("content_encoding", _TEXT), ("headers", _TABLE), ("delivery_mode", _OCTET),
    ("priority", _OCTET), ("correlation_id", _TEXT), ("reply_to", _TEXT), ("expiration", _TEXT),
    ("message_id", _TEXT), ("timestamp", _TIME), ("type", _TEXT), ("user_id", _TEXT), ("app_id", _TEXT),
    ("cluster_id", _TEXT),
)  # fmt: skip
_LONG, _QUAD, _SIGNED = Struct(">I"), Struct(">Q"), Struct(">q")
_STREAM_OFFSET = b"\x0fx-stream-offsetl"
# Beyond the year 9999 neither Python nor Spark has a name for an instant.
_LATEST = 253_402_300_799


#: One message as it came: method, content header, both undecoded, body, and when, in nanoseconds since 1970.
Delivery = tuple[bytes, bytes, bytes, int]


def column_names(options: SourceOptions) -> list[str]:
    """Names of the columns that a source with these options offers."""
    left_out = {
        "offset": not options.streams,
        # A queue's batch is spooled with it; a stream's is read again, and must be the same.
        "received_at": options.streams,
        "key": options.key is None,
        "shed": options.shedding is None or options.shedding.action != "flag",
        "properties": not options.properties,
        "headers": not options.headers,
    }
    return [name for name in COLUMNS if not left_out.get(name, False)]


def ddl(names: Iterable[str]) -> str:
    """Return the columns as Spark writes a schema."""
    inner = ", ".join(f"{name}: {_SPARK[kind]}" for name, kind in _PROPERTIES.items())
    special = {"properties": f"STRUCT<{inner}>", "headers": "MAP<STRING, STRING>"}
    return ", ".join(f"{name} {special.get(name) or _SPARK[COLUMNS[name]]}" for name in names)


def check_columns(names: Sequence[str], options: SourceOptions) -> None:
    """Refuse columns of a user's schema that there are not."""
    wrong = [name for name in names if name not in column_names(options)]
    if wrong:
        raise ConfigurationError(
            f"schema: no such column: {', '.join(wrong)}; there are {', '.join(column_names(options))}"
        )


class Decoder:
    """Decoder(names, key=None, time_header=None, timed=False)
    --

    Decodes deliveries into columns.

    Parameters
    ----------
    names : sequence of str
        Columns to make.
    key : str or None
        ``header:NAME`` or ``property:NAME``.
    time_header : str or None
        Header that says when a message was sent, in milliseconds since 1970.
    timed : bool
        Whether to make the column "sent_by" as well: the latest moment at which a message may have been sent.
    """

    def __init__(
        self, names: Sequence[str], key: str | None = None, time_header: str | None = None, *, timed: bool = False
    ) -> None:
        self._names = list(names)
        self._further = ["queue", "key", "enqueued_at", "received_at", *(["sent_by"] if timed else [])]
        self._source, _, self._key = (key or "").partition(":")
        self._time_header = time_header
        wanted = {"headers", "message_id"} & {*names} | {"timestamp"}
        if "properties" in names:
            wanted |= set(_PROPERTIES)
        if self._source == "property":
            wanted.add(self._key)
        if time_header or self._source == "header":
            wanted.add("headers")
        self._wanted = wanted
        self._layouts: dict[int, list[tuple[str, int]]] = {}
        self._routes: dict[bytes, tuple[str, str]] = {}

    def decode(self, deliveries: Sequence[Delivery], queues: Mapping[bytes, str]) -> dict[str, list[Any]]:
        """Return column name to values, in the order of arrival; `queues` says which queue a consumer tag belongs to.

        The columns "queue", "key", "enqueued_at" and "received_at" (both in microseconds) are always there; "shed" is
        for others to say.
        """
        columns: dict[str, list[Any]] = {name: [] for name in {*self._names, *self._further} - {"shed"}}
        add_queue, add_enqueued, add_key = (columns[name].append for name in ("queue", "enqueued_at", "key"))
        others = [name for name in ("message_id", "offset", "properties", "headers", "sent_by") if name in columns]
        makers = [(columns[name].append, getattr(self, f"_make_{name}")) for name in others]
        paths, redelivered, keyed = [], [], bool(self._key)
        for method, header, _body, _received in deliveries:
            tag_end = 5 + method[4]
            add_queue(queues[method[5:tag_end]])
            redelivered.append(method[tag_end + 8] != 0)
            paths.append(method[tag_end + 9 :])
            values = self._properties(header)
            add_enqueued(self._enqueued(values) if "timestamp" in values or "headers" in values else None)
            add_key(self._key_of(values) if keyed else None)
            for add, make in makers:
                add(make(values, header))
        columns["redelivered"] = redelivered
        columns["body"] = [one[2] for one in deliveries]
        columns["received_at"] = [one[3] // 1000 for one in deliveries]
        routes = list(map(self._route, paths)) if {"exchange", "routing_key"} & columns.keys() else []
        for name, place in (("exchange", 0), ("routing_key", 1)):
            if name in columns:
                columns[name] = [route[place] for route in routes]
        return columns

    def batch(self, columns: Mapping[str, list[Any]], order: Any = None) -> pa.RecordBatch:
        """Make a record batch of the asked-for columns, its rows taken in `order`."""
        arrays = [pa.array(columns[name], COLUMNS[name]) for name in self._names]
        found = pa.RecordBatch.from_arrays(arrays, names=self._names)
        return found if order is None else found.take(pa.array(order))

    def _route(self, path: bytes) -> tuple[str, str]:
        found = self._routes.get(path)
        if found is None:
            middle = 1 + path[0]
            found = _text(path[1:middle]), _text(path[middle + 1 : middle + 1 + path[middle]])
            # Topics may be as many as messages.
            if len(self._routes) < 10_000:
                self._routes[path] = found
        return found

    def _layout(self, flags: int) -> list[tuple[str, int]]:
        """Return name and kind of the fields that are there, up to the last that is wanted; no name for the others."""
        there = [field for number, field in enumerate(_FIELDS) if flags & 0x8000 >> number]
        found = [(name if name in self._wanted else "", kind) for name, kind in there]
        while found and not found[-1][0]:
            found.pop()
        return found

    def _properties(self, header: bytes) -> dict[str, Any]:
        flags = header[12] << 8 | header[13]
        layout = self._layouts.get(flags)
        if layout is None:
            layout = self._layouts[flags] = self._layout(flags)
        values: dict[str, Any] = {}
        position = 14
        for name, kind in layout:
            start = position
            if kind == _TEXT:
                position += 1 + header[position]
                if name:
                    values[name] = _text(header[start + 1 : position])
            elif kind == _OCTET:
                values[name] = header[position]
                position += 1
            elif kind == _TIME:
                values[name] = _QUAD.unpack_from(header, position)[0]
                position += 8
            else:
                position += 4 + _LONG.unpack_from(header, position)[0]
                if name:
                    values[name] = decode_table(header, start)[0]
        return values

    def _enqueued(self, values: Mapping[str, Any]) -> int | None:
        found = self._by_header(values)
        return _instant(values) if found is None else found

    def _by_header(self, values: Mapping[str, Any]) -> int | None:
        if self._time_header is None:
            return None
        found = (values.get("headers") or {}).get(self._time_header)
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        return int(found) * 1000 if 0 <= found <= _LATEST * 1000 else None

    def _make_sent_by(self, values: Mapping[str, Any], _header: bytes) -> int | None:
        found = self._by_header(values)
        if found is not None:
            return found
        # The property has whole seconds, cut: the message may be almost one younger.
        found = _instant(values)
        return None if found is None else found + 999_999

    def _key_of(self, values: Mapping[str, Any]) -> str:
        holder = (values.get("headers") or {}) if self._source == "header" else values
        found = holder.get(self._key)
        return "" if found is None else _as_text(found)

    @staticmethod
    def _make_message_id(values: Mapping[str, Any], _header: bytes) -> str | None:
        return values.get("message_id")

    @staticmethod
    def _make_offset(_values: Mapping[str, Any], header: bytes) -> int | None:
        return stream_offset(header)

    @staticmethod
    def _make_properties(values: Mapping[str, Any], _header: bytes) -> dict[str, Any]:
        found = {name: values.get(name) for name in _PROPERTIES}
        found["timestamp"] = _instant(values)
        return found

    @staticmethod
    def _make_headers(values: Mapping[str, Any], _header: bytes) -> list[tuple[str, str]] | None:
        headers = values.get("headers")
        return None if headers is None else [(name, _as_text(value)) for name, value in headers.items()]


def stream_offset(header: bytes) -> int | None:
    """Return the offset of a message in its stream, or None if it came from none."""
    found = header.find(_STREAM_OFFSET)
    return None if found < 0 else int(_SIGNED.unpack_from(header, found + len(_STREAM_OFFSET))[0])


def _instant(values: Mapping[str, Any]) -> int | None:
    """Return the property "timestamp" in microseconds."""
    seconds = values.get("timestamp")
    return seconds * 1_000_000 if seconds is not None and seconds <= _LATEST else None


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def _as_text(value: object) -> str:
    """Return a header's value: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_jsonable)


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
