"""From collected deliveries to Arrow columns: only the fields that the query's schema asks for are decoded.

That is done in two steps: `Decoder.look` makes the columns that say which rows are shown, and in which order, and
`Decoder.batch` all others, of these rows and in that order. No object is made for a row, but for headers that take
Python to decode, and for the map of all headers. For one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairsched.amqp._properties import PROPERTY_NAMES, read_properties
from fairsched.amqp.fieldtables import LATEST_SECOND, as_text, read_table
from fairsched.errors import ConfigurationError
from fairsched.spark.source.options import SourceOptions
from fairsched.spark.source.typedheaders import typed_headers

if TYPE_CHECKING:
    from fairsched.delivery._collected import CollectedDeliveries

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
    "typed_headers": pa.list_(pa.struct([("key", pa.string()), ("type", pa.string()), ("value", pa.binary())])),
}
_SPARK = {pa.binary(): "BINARY", pa.string(): "STRING", pa.bool_(): "BOOLEAN", pa.int64(): "BIGINT",
          pa.int32(): "INT", _INSTANT: "TIMESTAMP"}  # fmt: skip

#: Values of rows that are known before the rows are made, by column.
Known = dict[str, pa.Array]

#: A column that was made in C: rows, nulls, and the buffers: validity (None: all are there), offsets of 32 bits, data.
Column = tuple[int, int, tuple[bytes | None, bytes, bytes]]

_HEADERS = (PROPERTY_NAMES.index("headers"),)


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
        "typed_headers": not options.include_typed_headers,
    }
    return [name for name in COLUMNS if not left_out.get(name, False)]


def ddl(names: Iterable[str]) -> str:
    """Return the columns as Spark writes a schema."""
    inner = ", ".join(f"{name}: {_SPARK[kind]}" for name, kind in _PROPERTIES.items())
    special = {
        "properties": f"STRUCT<{inner}>",
        "headers": "MAP<STRING, STRING>",
        "typed_headers": "ARRAY<STRUCT<key: STRING, type: STRING, value: BINARY>>",
    }
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
        self._timed = timed

    def look(self, deliveries: CollectedDeliveries, queues: Mapping[bytes, str]) -> Known:
        """Return what chooses and orders rows; `queues` says which queue a consumer tag belongs to.

        These are "queue", "size" (with all headers), "redelivered", "enqueued_at" and "received_at" (in microseconds);
        "key" and "sent_by" where they were asked for. "shed" is for others to say.
        """
        return self._known(deliveries, queues, None)

    def rows(self, deliveries: CollectedDeliveries, queues: Mapping[bytes, str]) -> pa.RecordBatch:
        """Make a record batch of all rows in the order of arrival; looks at nothing but the asked-for columns."""
        return self.batch(deliveries, self._known(deliveries, queues, self._names))

    def _known(
        self, deliveries: CollectedDeliveries, queues: Mapping[bytes, str], wanted: Sequence[str] | None
    ) -> Known:
        """Return those of the columns of `look` that are wanted; None for all."""
        rows, known = deliveries.count, {}
        if wanted is None or "queue" in wanted:
            names = list(dict.fromkeys(queues.values()))
            numbers = {tag: names.index(name) for tag, name in queues.items()}
            places = _fixed(pa.int32(), rows, deliveries.queues(numbers))
            known["queue"] = pa.DictionaryArray.from_arrays(places, pa.array(names, pa.string())).cast(pa.string())
        if wanted is None:
            known["size"] = _fixed(pa.int64(), rows, deliveries.sizes())
        if wanted is None or "redelivered" in wanted:
            known["redelivered"] = _fixed(pa.bool_(), rows, deliveries.redelivered())
        if wanted is None or "received_at" in wanted:
            known["received_at"] = _fixed(pa.int64(), rows, deliveries.received())
        if wanted is None or "enqueued_at" in wanted:
            self._add_times(deliveries, known)
        if self._key and (wanted is None or "key" in wanted):
            known["key"] = self._keys(deliveries)
        return known

    def _add_times(self, deliveries: CollectedDeliveries, known: Known) -> None:
        """Add when messages were sent: as a header says it, or else the property, which has whole seconds."""
        [instants] = _properties(deliveries, ["timestamp"])
        known["enqueued_at"] = instants = instants.cast(pa.int64())
        stamped = None if self._time_header is None else self._by_header(deliveries, self._time_header)
        if stamped is None and not self._timed:
            return
        # Slow to import, and not needed for planning.
        import pyarrow.compute as pc

        if self._timed:
            # The seconds are cut: the message may be almost one younger.
            latest = pc.add(instants, 999_999)
            known["sent_by"] = latest if stamped is None else pc.coalesce(stamped, latest)
        if stamped is not None:
            known["enqueued_at"] = pc.coalesce(stamped, instants)

    def batch(
        self, deliveries: CollectedDeliveries, known: Known, order: Sequence[int] | NDArray[Any] | None = None
    ) -> pa.RecordBatch:
        """Make a record batch of the asked-for columns, its rows taken in `order`."""
        if order is not None:
            known = taken(deliveries, known, order)
        arrays: list[pa.Array] = []
        paths: tuple[Any, ...] = ()
        for name in self._names:
            if name in known:
                found = known[name].cast(COLUMNS[name])
            elif name == "body":
                found = texts_or_numbers(COLUMNS[name], deliveries.bodies())
            elif name in ("exchange", "routing_key"):
                paths = paths or deliveries.paths()
                found = texts_or_numbers(COLUMNS[name], paths[name == "routing_key"])
            elif name == "offset":
                offsets = np.frombuffer(deliveries.offsets(), np.int64)
                found = pa.array(offsets, COLUMNS[name], mask=offsets < 0)
            elif name == "properties":
                found = _struct(deliveries)
            elif name == "headers":
                found = pa.array([_headers(one) for one in deliveries.content_headers()], COLUMNS[name])
            elif name == "typed_headers":
                found = pa.array([typed_headers(one) for one in deliveries.content_headers()], COLUMNS[name])
            else:
                [found] = _properties(deliveries, [name])
            arrays.append(found)
        return pa.RecordBatch.from_arrays(arrays, names=self._names)

    def _by_header(self, deliveries: CollectedDeliveries, name: str) -> pa.Array:
        """Return when messages were sent, as a header says it; null where it says nothing, or nonsense."""
        import pyarrow.compute as pc

        latest = LATEST_SECOND * 1000

        def whole(header: bytes) -> int | None:
            found = headers_of(header).get(name)
            return found if type(found) is int and 0 <= found <= latest else None

        there, values = deliveries.numbers(name.encode(), whole)
        found = _fixed(pa.int64(), deliveries.count, values, there)
        sane = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, latest))
        return pc.multiply(pc.if_else(sane, found, pa.scalar(None, pa.int64())), 1000)

    def _keys(self, deliveries: CollectedDeliveries) -> pa.Array:
        name = self._key
        if self._source == "property" and name in _NO_TEXT:
            number = (PROPERTY_NAMES.index(name),)
            values = [_readable(header, number).get(name) for header in deliveries.content_headers()]
            return pa.array(["" if value is None else as_text(value) for value in values], pa.string())
        if self._source == "property":
            [found] = _properties(deliveries, [name])
        else:

            def text(header: bytes) -> list[str | None]:
                value = headers_of(header).get(name)
                return [None if value is None else as_text(value)]

            [column], _ = deliveries.properties((), [name.encode()], text, LATEST_SECOND)
            found = texts_or_numbers(pa.string(), column)
        return found.fill_null("")


def taken(deliveries: CollectedDeliveries, known: Known, rows: Sequence[int] | NDArray[Any]) -> Known:
    """Keep some rows, in the order given."""
    places = np.ascontiguousarray(rows, np.int64)
    deliveries.arrange(places)
    return {name: values.take(pa.array(places)) for name, values in known.items()}


def texts_or_numbers(kind: pa.DataType, column: Column) -> pa.Array:
    """Return a column of `fairsched.delivery._delivery` as Arrow has it: texts have offsets, numbers have not."""
    rows, nulls, (there, offsets, data) = column
    parts = [there, data] if pa.types.is_primitive(kind) else [there, offsets, data]
    return pa.Array.from_buffers(kind, rows, [None if part is None else pa.py_buffer(part) for part in parts], nulls)


def _fixed(kind: pa.DataType, rows: int, values: bytes, there: bytes | None = None) -> pa.Array:
    """Return a column of values that all take as many bits."""
    return pa.Array.from_buffers(kind, rows, [there if there is None else pa.py_buffer(there), pa.py_buffer(values)])


def _properties(deliveries: CollectedDeliveries, names: Sequence[str]) -> list[pa.Array]:
    """Return properties; null where there is none, or none that can be decoded."""
    numbers = tuple(PROPERTY_NAMES.index(name) for name in names)
    columns, _ = deliveries.properties(numbers, [], None, LATEST_SECOND)
    kinds = [_NO_TEXT.get(name, pa.string()) for name in names]
    return list(map(texts_or_numbers, kinds, columns))


def _struct(deliveries: CollectedDeliveries) -> pa.Array:
    """Return the column "properties"; null where none can be decoded: an error would stop the query."""
    numbers = tuple(PROPERTY_NAMES.index(name) for name in _PROPERTIES)
    columns, readable = deliveries.properties(numbers, [], None, LATEST_SECOND)
    arrays = list(map(texts_or_numbers, _PROPERTIES.values(), columns))
    missing = ~_fixed(pa.bool_(), deliveries.count, readable).to_numpy(zero_copy_only=False)
    return pa.StructArray.from_arrays(arrays, names=list(_PROPERTIES), mask=pa.array(missing))


def _readable(header: bytes, wanted: tuple[int, ...]) -> dict[str, Any]:
    """Read properties; none where they cannot be."""
    try:
        found: dict[str, Any] = read_properties(header, wanted, read_table)
    except ValueError:
        return {}
    return found


def _table(header: bytes) -> dict[str, Any] | None:
    """Decode headers; those that cannot be are null, since an error would end every attempt at the batch."""
    return _readable(header, _HEADERS).get("headers")


def headers_of(header: bytes) -> dict[str, Any]:
    """Decode the headers in a content header; none where there are none that can be decoded."""
    return _table(header) or {}


def _headers(header: bytes) -> list[tuple[str, str]] | None:
    headers = _table(header)
    return None if headers is None else [(name, as_text(value)) for name, value in headers.items()]
