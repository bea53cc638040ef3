"""Batches as Arrow record batches: one row per message."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp.fieldtables import LATEST_SECOND, as_text
from fairsched.amqp.properties import PROPERTY_NAMES
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.delivery._columns import MessageColumns
from fairsched.delivery._settling import settle_all
from fairsched.errors import ConfigurationError, DecodingError

if TYPE_CHECKING:
    import pyarrow as pa

    from fairsched.delivery._delivery import Message

#: Columns that are always there.
FIXED = ("body", "queue", "exchange", "routing_key", "redelivered")
#: Properties that can be a column.
PROPERTIES = tuple(name for name in PROPERTY_NAMES if name != "headers")
#: Octets of one column of a record batch.
_MOST = MessageColumns.MOST
#: Names of queues that are kept, present and earlier ones.
_MOST_QUEUES = 4096


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise ConfigurationError("arrow_batches needs pyarrow: pip install pyarrow, or 'fairsched[spark]'") from None
    return pa


def _names(given: Iterable[str], what: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str | bytes) else tuple(given)
    if isinstance(given, str | bytes) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"{what} must be a sequence of names, got {given!r}")
    return names


class ArrowBatch(MessageBatch):
    """A `MessageBatch` that also has its messages as an Arrow record batch.

    Returned by ``arrow_batches()`` of a consumer.

    Attributes
    ----------
    record_batch : pyarrow.RecordBatch
        One row per message, in the order of the messages.

    Notes
    -----
    The batch supports the Arrow PyCapsule interface, so that ``pyarrow.table(batch)`` and ``polars.DataFrame(batch)``
    accept it. The data is a copy, which stays valid after the messages are settled.
    """

    __slots__ = ("record_batch",)

    def __init__(
        self,
        messages: list[Message],
        failed: Callable[[list[Message], Exception], None],
        handled: Callable[[list[Message], int], None],
        record_batch: pa.RecordBatch,
    ) -> None:
        super().__init__(messages, failed, handled)
        self.record_batch = record_batch

    def __arrow_c_schema__(self) -> object:
        return self.record_batch.schema.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        found: tuple[object, object] = self.record_batch.__arrow_c_array__(requested_schema)
        return found


class ArrowColumns:
    """Converts messages to record batches.

    Parameters
    ----------
    queues : sequence of str
        Queues that the messages come from.
    headers, properties : sequence of str
        Names of headers and properties to include as columns.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns; see `Consumer.arrow_batches`.

    Raises
    ------
    ConfigurationError
        If pyarrow is not installed, a property does not exist, or two columns would have the same name.

    Notes
    -----
    Safe from any thread. O(octets).
    """

    def __init__(self, queues: Sequence[str], headers: Iterable[str], properties: Iterable[str]) -> None:
        pa = _pyarrow()
        self._headers, self._properties = _names(headers, "headers"), _names(properties, "properties")
        for name in self._properties:
            if name not in PROPERTIES:
                raise ConfigurationError(f"properties: no such property: {name!r}; there are {', '.join(PROPERTIES)}")
        names = [*FIXED, *self._properties, *self._headers]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"columns of a batch must have different names, got {name!r} twice")
        special = {
            "body": pa.binary(), "queue": pa.dictionary(pa.int32(), pa.string()), "redelivered": pa.bool_(),
            "delivery_mode": pa.int32(), "priority": pa.int32(), "timestamp": pa.timestamp("us", tz="UTC"),
        }  # fmt: skip
        typed = {name: special.get(name, pa.string()) for name in (*FIXED, *self._properties)}
        self.schema = pa.schema([*typed.items(), *((name, pa.string()) for name in self._headers)])
        self._import: Callable[[int, Any], Any] = pa.RecordBatch._import_from_c
        self._queues = list(queues)
        self._columns = self._columns_of(self._queues)

    def _columns_of(self, queues: list[str]) -> MessageColumns:
        return MessageColumns(
            queues,
            tuple(PROPERTY_NAMES.index(name) for name in self._properties),
            [name.encode() for name in self._headers],
            _read,
            self._texts,
            LATEST_SECOND,
        )

    def make(self, messages: list[Message]) -> pa.RecordBatch:
        """Return as many messages as fit in one record batch, from the first on."""
        # As a whole: an object of pyarrow for each buffer and column would cost as much as making them.
        try:
            made = self._columns.make(messages, _MOST)
        except KeyError:
            self._learn(messages)
            made = self._columns.make(messages, _MOST)
        found: pa.RecordBatch = self._import(made.address, self.schema)
        return found

    def _learn(self, messages: list[Message]) -> None:
        """Take up queues that were added; forget the others when there are too many to keep."""
        here = dict.fromkeys(message.queue for message in messages)
        known = self._queues if len(self._queues) + len(here) <= _MOST_QUEUES else []
        self._queues = list(dict.fromkeys([*known, *here]))
        self._columns = self._columns_of(self._queues)

    def _texts(self, message: Message) -> list[str | None]:
        """Return the columns made from headers; None for a header that is missing or cannot be decoded."""
        try:
            found = message.headers
        except DecodingError:
            found = {}
        values = [found.get(name) for name in self._headers]
        return [None if value is None else as_text(value) for value in values]

    def batches(
        self,
        messages: list[Message],
        failed: Callable[[list[Message], Exception], None],
        handled: Callable[[list[Message], int], None],
    ) -> Generator[ArrowBatch]:
        """Yield messages as one batch, or as several if they do not fit in one record batch.

        Messages not yet yielded when the generator ends are requeued.
        """
        rest = messages
        try:
            while rest:
                record_batch = self.make(rest)
                count = record_batch.num_rows
                part, left = (rest[:count], rest[count:]) if count < len(rest) else (rest, [])
                found = ArrowBatch(part, failed, handled, record_batch)
                rest = left
                yield found
        finally:
            settle_all(rest, AckLedger.REQUEUE)


def _read(message: Message, number: int) -> Any:
    """Return the value of a property; None if it is missing or cannot be decoded."""
    try:
        found = getattr(message.properties, PROPERTY_NAMES[number])
    except DecodingError:
        return None
    if PROPERTY_NAMES[number] == "timestamp":
        return found * 1_000_000 if found is not None and found <= LATEST_SECOND else None
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found
