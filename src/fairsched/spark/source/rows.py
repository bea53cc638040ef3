"""From raw deliveries to Arrow columns: only the fields that the query's schema asks for are decoded.

Layout of a content header: AMQP 0-9-1, section 4.2.6.1; of the method, section 1.8.3.13. A pure function of its input;
an instance is for one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from fairsched._amqp import PROPERTY_NAMES, read_methods, read_properties
from fairsched.amqp.fieldtables import LATEST_SECOND, as_text, read_table
from fairsched.errors import ConfigurationError
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.transport import Delivery

_INSTANT = pa.timestamp("us", tz="UTC")
_NO_TEXT = {"delivery_mode": pa.int32(), "priority": pa.int32(), "timestamp": _INSTANT}
#: Fields of the column "properties": those that are no column of their own, and that publishers may set.
_PROPERTIES: dict[str, pa.DataType] = {
    name: _NO_TEXT.get(name, pa.string())
    for name in PROPERTY_NAMES
    if name not in ("headers", "message_id", "cluster_id")
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

_SIGNED = Struct(">q")
_STREAM_OFFSET = b"\x0fx-stream-offsetl"
#: Stands for properties of which none can be decoded: told apart from those of a message that has none by what it is.
_UNREADABLE: Mapping[str, Any] = {}


def column_names(options: SourceOptions) -> list[str]:
    """Names of the columns that a source with these options offers."""
    left_out = {
        "offset": not options.streams,
        # A queue's batch is spooled with it; a stream's is read again, and must be the same.
        "received_at": options.streams,
        "key": options.fair_key is None,
        "shed": options.shedding is None or options.shedding.action != "flag",
        "properties": not options.include_properties,
        "headers": not options.include_headers,
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
    """Decodes deliveries into columns.

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
        self._source, _, self._key = (key or "").partition(":")
        self._time_header = time_header
        wanted = {"headers", "message_id"} & {*names} | {"timestamp"}
        if "properties" in names:
            wanted |= set(_PROPERTIES)
        if self._source == "property":
            wanted.add(self._key)
        if time_header or self._source == "header":
            wanted.add("headers")
        self._wanted = tuple(number for number, name in enumerate(PROPERTY_NAMES) if name in wanted)
        self._makers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            name: make for name, make in (("properties", _properties), ("headers", _headers)) if name in names
        }
        if timed:
            self._makers["sent_by"] = self._sent_by
        self._routes: dict[bytes, tuple[str, str]] = {}

    def decode(self, deliveries: list[Delivery], queues: Mapping[bytes, str]) -> dict[str, list[Any]]:
        """Return column name to values, in the order of arrival; `queues` says which queue a consumer tag belongs to.

        The columns "queue", "key", "enqueued_at" and "received_at" (both in microseconds) are always there; "shed" is
        for others to say.
        """
        wanted, columns = self._wanted, dict[str, list[Any]]()
        tags, columns["redelivered"], paths = read_methods(deliveries)
        found = _all_properties(deliveries, wanted)
        columns["queue"] = [queues[tag] for tag in tags]
        columns["body"] = [one[2] for one in deliveries]
        columns["received_at"] = [one[3] // 1000 for one in deliveries]
        columns["enqueued_at"] = [
            self._enqueued(one) if "timestamp" in one or "headers" in one else None for one in found
        ]
        columns["key"] = [self._key_of(one) for one in found] if self._key else [None] * len(found)
        if "message_id" in self._names:
            columns["message_id"] = [one.get("message_id") for one in found]
        if "offset" in self._names:
            columns["offset"] = [stream_offset(one[1]) for one in deliveries]
        columns |= {name: [make(one) for one in found] for name, make in self._makers.items()}
        if {"exchange", "routing_key"} & {*self._names}:
            known = self._routes
            routes = [known.get(path) or self._route(path) for path in paths]
            for name, place in (("exchange", 0), ("routing_key", 1)):
                if name in self._names:
                    columns[name] = [route[place] for route in routes]
        return columns

    def batch(self, columns: Mapping[str, list[Any]], order: Any = None) -> pa.RecordBatch:
        """Make a record batch of the asked-for columns, its rows taken in `order`."""
        arrays = [pa.array(columns[name], COLUMNS[name]) for name in self._names]
        found = pa.RecordBatch.from_arrays(arrays, names=self._names)
        return found if order is None else found.take(pa.array(order))

    def _route(self, path: bytes) -> tuple[str, str]:
        middle = 1 + path[0]
        found = path[1:middle].decode("utf-8", "replace"), path[middle + 1 :].decode("utf-8", "replace")
        # Topics may be as many as messages.
        if len(self._routes) < 10_000:
            self._routes[path] = found
        return found

    def _enqueued(self, values: Mapping[str, Any]) -> int | None:
        found = self._by_header(values)
        return _instant(values) if found is None else found

    def _by_header(self, values: Mapping[str, Any]) -> int | None:
        if self._time_header is None:
            return None
        found = (values.get("headers") or {}).get(self._time_header)
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        return int(found) * 1000 if 0 <= found <= LATEST_SECOND * 1000 else None

    def _sent_by(self, values: Mapping[str, Any]) -> int | None:
        found = self._by_header(values)
        if found is not None:
            return found
        # The property has whole seconds, cut: the message may be almost one younger.
        found = _instant(values)
        return None if found is None else found + 999_999

    def _key_of(self, values: Mapping[str, Any]) -> str:
        holder = (values.get("headers") or {}) if self._source == "header" else values
        found = holder.get(self._key)
        return "" if found is None else as_text(found)


def stream_offset(header: bytes) -> int | None:
    """Return the offset of a message in its stream, or None if it came from none."""
    found = header.find(_STREAM_OFFSET)
    return None if found < 0 else int(_SIGNED.unpack_from(header, found + len(_STREAM_OFFSET))[0])


def _all_properties(deliveries: list[Delivery], wanted: tuple[int, ...]) -> list[Mapping[str, Any]]:
    """Read the properties of all messages; those that cannot be are `_UNREADABLE`: an error would stop the query."""
    try:
        return [read_properties(one[1], wanted, _table) for one in deliveries]
    except ValueError:
        return [_one_properties(one[1], wanted) for one in deliveries]


def _one_properties(header: bytes, wanted: tuple[int, ...]) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = read_properties(header, wanted, _table)
    except ValueError:
        return _UNREADABLE
    return found


def _table(header: bytes, begin: int) -> tuple[dict[str, Any] | None, int]:
    """Decode headers; those that cannot be are null, since an error would end every attempt at the batch."""
    try:
        return read_table(header, begin)
    except ValueError:
        return None, begin


def _properties(values: Mapping[str, Any]) -> dict[str, Any] | None:
    if values is _UNREADABLE:
        return None
    found = {name: values.get(name) for name in _PROPERTIES}
    found["timestamp"] = _instant(values)
    return found


def _headers(values: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    headers = values.get("headers")
    return None if headers is None else [(name, as_text(value)) for name, value in headers.items()]


def _instant(values: Mapping[str, Any]) -> int | None:
    """Return the property "timestamp" in microseconds."""
    seconds = values.get("timestamp")
    return seconds * 1_000_000 if seconds is not None and seconds <= LATEST_SECOND else None
