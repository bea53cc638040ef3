"""Convert rows to messages: properties from columns, message ids, and the queue of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairsched.amqp._properties import PROPERTY_NAMES
from fairsched.errors import FairschedError
from fairsched.routing._ring import HashRing
from fairsched.spark.sink.options import SinkOptions

#: The allowed columns, and their types in Spark.
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "routing_key": ("string",),
    "exchange": ("string",),
    "message_id": ("string",),
    "headers": ("map<string,string>",),
    "priority": ("int", "bigint"),
    "expiration": ("string",),
    "content_type": ("string",),
    "correlation_id": ("string",),
}
#: Columns whose values are properties, unchanged.
_PROPERTIES = [name for name in COLUMNS if name in PROPERTY_NAMES and name not in ("message_id", "headers")]


class Outgoing(NamedTuple):
    """One message to publish: arguments of `fairsched.Publisher.publish`."""

    exchange: str
    routing_key: str
    body: bytes
    properties: dict[str, Any]


class Messages:
    """Converts the rows of one task to messages.

    Parameters
    ----------
    options : SinkOptions
        The sink's options.
    name : str
        Name of the task, the same for all its attempts; a generated message id is this name and the row's number.

    Notes
    -----
    For one thread.
    """

    def __init__(self, options: SinkOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._row = 0
        self._ring = HashRing(options.hash_ring, points_per_weight=options.hash_points) if options.hash_ring else None

    def of(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield the messages of a record batch."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in COLUMNS}
        rows = range(batch.num_rows)
        nothing = [None] * batch.num_rows
        exchanges = columns.get("exchange", nothing)
        keys = self._routed(batch) or columns.get("routing_key", nothing)
        ids = columns.get("message_id", nothing)
        properties = [name for name in _PROPERTIES if name in columns]
        options = self._options
        for row in rows:
            body, key, exchange = columns["body"][row], keys[row], exchanges[row]
            if body is None:
                raise FairschedError(f"row {self._row} cannot be published: its body is null")
            yield Outgoing(
                options.exchange if exchange is None else exchange,
                options.routing_key if key is None else key,
                body.encode() if isinstance(body, str) else body,
                {
                    "delivery_mode": options.delivery_mode,
                    "message_id": self._id(ids[row]),
                    "headers": dict(columns["headers"][row] or ()) if "headers" in columns else None,
                    **{name: columns[name][row] for name in properties},
                },
            )
            self._row += 1

    def _id(self, given: str | None) -> str | None:
        kind = self._options.message_id
        if kind == "none":
            return None
        if given is None and kind == "column":
            raise FairschedError(f"row {self._row} cannot be published: messageId=column, but its message_id is null")
        return f"{self._name}-{self._row}" if given is None else given

    def _routed(self, batch: pa.RecordBatch) -> list[Any] | None:
        """Return the queue of each row on the ring; null is a key like any other."""
        if self._ring is None:
            return None
        found = pa.array(self._ring.route_many(batch.column(self._options.hash_column)))
        queues: list[Any] = pc.take(pa.array(self._ring.names), found).to_pylist()
        return queues
