"""The checked options of a reader, in a frozen and picklable object whose repr does not show the URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fairsched.amqp._properties import PROPERTY_NAMES
from fairsched.amqp.fieldtables import LATEST_SECOND
from fairsched.amqp.urls import endpoint
from fairsched.errors import ConfigurationError
from fairsched.scheduling._codel import CoDel
from fairsched.spark.broker import Broker
from fairsched.spark.optionreader import OptionReader, as_json

#: Header in which RabbitMQ, if configured, writes the time it received a message, in milliseconds since 1970.
TIME_HEADER = "timestamp_in_ms"
#: Default of maxBytesPerTrigger: what the spool must have room for, and what is repeated after a failure.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Shedding:
    """The handling of messages that waited too long; the action is ``flag``, ``requeue`` or ``dead-letter``."""

    target: float
    interval: float
    action: str


@dataclass(frozen=True)
class SourceOptions:
    """The options of a source; each field is the option of that name (see docs/howto/spark.md)."""

    broker: Broker
    quanta: Mapping[str, int]
    streams: bool
    super_stream: str | None
    spool_location: str | None
    max_messages_per_trigger: int
    min_messages_per_trigger: int
    max_trigger_delay: float
    max_bytes_per_trigger: int | None
    num_partitions: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    queue_assignment: str
    row_order: str
    fair_key: str | None
    key_quanta: Mapping[str, int]
    fair_lookahead: int
    max_returns: int
    poll_timeout: float
    planning_interval: float
    consumer_arguments: Mapping[str, Any]
    protocol: str
    stream_port: int | None
    starting_offsets: str | Mapping[str, int] | datetime | None
    ending_offsets: str | Mapping[str, int]
    fail_on_data_loss: bool
    max_messages: int
    include_properties: bool
    include_headers: bool
    include_typed_headers: bool
    enqueue_time_header: str | None
    shedding: Shedding | None
    at_most_once: bool

    @property
    def description(self) -> str:
        """The queues or streams and the broker; Spark's own description of a Python source is only its class name."""
        kind = "streams" if self.streams else "queues"
        names = ", ".join(f"{name} ({weight})" for name, weight in self.quanta.items())
        if self.super_stream is not None:
            kind, names = "super stream", self.super_stream
        return f"{kind} {names} at {', '.join(map(endpoint, self.broker.urls))}"


def _offsets(reader: OptionReader, name: str, default: str | None) -> str | Mapping[str, int] | None:
    """Read ``earliest``, ``latest`` or ``{"stream": offset}``."""
    text = reader.text(name, default)
    if text is None or text.lower() in ("earliest", "latest"):
        return text and text.lower()
    shape = 'earliest, latest or a JSON object of offsets, such as {"events": 1200}'
    found = as_json(text, name, shape)
    if not isinstance(found, dict) or not all(type(value) is int and value >= 0 for value in found.values()):
        raise ConfigurationError(f"option {name} must be {shape}, got {text!r}")
    return found


def _super_stream(reader: OptionReader) -> str | None:
    """Read superStream; None if it is not given."""
    found = reader.text("superStream", None)
    if found is not None and not found:
        raise ConfigurationError("option superStream must be the name of a super stream, got an empty text")
    if found is not None and not found.isspace() and str(reader.peek("protocol")).lower() == "amqp":
        raise ConfigurationError(
            "option superStream needs the stream protocol, which tells its streams: leave out protocol=amqp, or name "
            "the streams in option streams"
        )
    return found


def _starting(reader: OptionReader, streams: Mapping[str, int]) -> str | Mapping[str, int] | datetime | None:
    """Read startingOffsets, or startingTimestamp."""
    offsets = _offsets(reader, "startingOffsets", None)
    moment = reader.number("startingTimestamp", -1, 0, LATEST_SECOND * 1000)
    if moment < 0:
        return offsets
    if offsets is not None:
        raise ConfigurationError("options startingOffsets and startingTimestamp exclude each other: give one of them")
    if not streams:
        raise ConfigurationError(
            f"option startingTimestamp is for streams only, got {moment}: a queue is read from its head"
        )
    return datetime.fromtimestamp(moment // 1000, UTC) + timedelta(milliseconds=moment % 1000)


def _key(reader: OptionReader) -> str | None:
    text = reader.text("fairKey", None)
    if text is None:
        return None
    source, _, name = text.partition(":")
    if not name or source not in ("header", "property"):
        raise ConfigurationError(f"option fairKey must be header:NAME or property:NAME, got {text!r}")
    if source == "property" and name not in {*PROPERTY_NAMES} - {"headers", "cluster_id"}:
        raise ConfigurationError(f"option fairKey: unknown property {name!r}")
    return text


def _at_most_once(reader: OptionReader, spool: str | None, streams: Mapping[str, int]) -> bool:
    """Read ackMode; return whether messages are acknowledged without being stored."""
    auto = reader.choice("ackMode", "spool", "auto") == "auto"
    if auto and (spool is not None or streams):
        raise ConfigurationError(
            "option ackMode=auto is for queues without spoolLocation only: it does not store batches"
        )
    return auto


def _most_bytes(reader: OptionReader, spool: str | None, streams: Mapping[str, int]) -> int | None:
    """Read maxBytesPerTrigger; None for no limit."""
    found = reader.number("maxBytesPerTrigger", 0 if spool is None or streams else MOST_BYTES, 0, 2**62)
    if found and streams:
        raise ConfigurationError(
            f"option maxBytesPerTrigger must be 0 for streams, got {found}: a batch of streams is a range of offsets, "
            "planned before any message is read. Use maxMessagesPerTrigger instead"
        )
    return found or None


def _shedding(reader: OptionReader, streams: Mapping[str, int]) -> Shedding | None:
    """Read the options of CoDel; None without a target."""
    found = Shedding(
        reader.seconds("codelTarget", "0s"),
        reader.seconds("codelInterval", "100ms"),
        reader.choice("codelAction", "flag", "requeue", "dead-letter"),
    )
    if not reader.given("codelTarget"):
        idle = reader.given("codelInterval", "codelAction")
        if idle:
            raise ConfigurationError(f"option {', '.join(idle)} is valid only together with codelTarget")
        return None
    if streams:
        raise ConfigurationError("option codelTarget is for queues only: messages of a stream cannot be returned")
    try:
        CoDel(found.target, found.interval)
    except ValueError as error:
        raise ConfigurationError(f"options codelTarget and codelInterval: {error}") from None
    return found


def _min_partitions(reader: OptionReader, streams: Mapping[str, int]) -> int | None:
    """Read minPartitions; None if it is not given."""
    found = reader.number("minPartitions", 0, 1, 10_000)
    if not found:
        return None
    if not streams:
        raise ConfigurationError(
            f"option minPartitions is for streams only, got {found}: for queues use numPartitions, and "
            "queueAssignment=split to divide one queue among several partitions"
        )
    if others := reader.given("numPartitions", "queueAssignment"):
        raise ConfigurationError(f"option minPartitions replaces {' and '.join(others)}: give one or the other")
    return found


def _consumer_arguments(reader: OptionReader, streams: Mapping[str, int]) -> Mapping[str, Any]:
    found = reader.arguments("consumerArguments")
    if found and streams:
        raise ConfigurationError(
            f"option consumerArguments is for queues only, got {', '.join(found)}: use startingOffsets or "
            "startingTimestamp to choose where to start reading a stream"
        )
    return found


def _refuse_other_kind(reader: OptionReader, streams: Mapping[str, int]) -> None:
    """Raise ConfigurationError if an option is given that has no effect on what is read."""
    if not streams and (given := reader.given("protocol", "streamPort")):
        raise ConfigurationError(f"option {given[0]} is for streams only: queues are read over AMQP 0-9-1")
    if not streams and (given := reader.given("startingOffsets", "endingOffsets")):
        raise ConfigurationError(
            f"option {given[0]} is for streams only: a queue is read from its head. To read a stream, name it in "
            "option streams instead of queues"
        )
    if streams and (given := reader.given("fairLookahead", "maxReturns", "rowOrder")):
        raise ConfigurationError(
            f"option {given[0]} is for queues only: the rows of a stream are in the order of their offsets"
        )


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of a reader.

    Parameters
    ----------
    options : mapping of str to str
        The options that Spark passes; names in any case.

    Returns
    -------
    SourceOptions
        The checked options; picklable.

    Raises
    ------
    ConfigurationError
        If an option is missing, unknown or invalid; the message names it, and never contains the URL's password.

    Notes
    -----
    O(number of options). Safe from any thread.
    """
    reader = OptionReader(options)
    broker = reader.broker()
    queues, streams = reader.weights("queues"), reader.weights("streams")
    super_stream = _super_stream(reader)
    if super_stream is not None and not queues and not streams:
        # Its streams are looked up where a query is planned; until then its name stands for them.
        streams = {super_stream: 1}
    elif super_stream is not None:
        raise ConfigurationError("option superStream replaces queues and streams: give one of them")
    spool = reader.text("spoolLocation", None)
    shedding = _shedding(reader, streams)
    if bool(queues) == bool(streams):
        reader.refuse_alike("queues", "streams")
        raise ConfigurationError("exactly one of the options queues and streams must be given")
    found = SourceOptions(
        broker=broker,
        quanta=queues or streams,
        streams=bool(streams),
        super_stream=super_stream,
        spool_location=spool,
        max_messages_per_trigger=reader.number("maxMessagesPerTrigger", 100_000),
        min_messages_per_trigger=reader.number("minMessagesPerTrigger", 1),
        max_trigger_delay=reader.seconds("maxTriggerDelay", "15m"),
        max_bytes_per_trigger=_most_bytes(reader, spool, streams),
        num_partitions=reader.number("numPartitions", 0, 1, 10_000) or None,
        min_partitions=_min_partitions(reader, streams),
        max_records_per_partition=reader.number("maxRecordsPerPartition", 0, 1) or None,
        queue_assignment=reader.choice("queueAssignment", "affinity", "split-large", "split"),
        row_order=reader.choice("rowOrder", "fair", "queue"),
        fair_key=_key(reader),
        key_quanta=reader.weights("keyQuanta", listed=False),
        fair_lookahead=reader.number("fairLookahead", 1, 1, 100),
        max_returns=reader.number("maxReturns", 1, 0),
        poll_timeout=reader.seconds("pollTimeout", "2s"),
        planning_interval=reader.seconds("planningInterval", "200ms"),
        consumer_arguments=_consumer_arguments(reader, streams),
        protocol=reader.choice("protocol", "auto", "stream", "amqp"),
        stream_port=reader.number("streamPort", 0, 1, 65_535) or None,
        starting_offsets=_starting(reader, streams),
        ending_offsets=_offsets(reader, "endingOffsets", "latest") or "latest",
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        max_messages=reader.number("maxMessages", 10_000),
        include_properties=reader.flag("includeProperties", False),
        include_headers=reader.flag("includeHeaders", False),
        include_typed_headers=reader.flag("includeTypedHeaders", False),
        enqueue_time_header=reader.text("enqueueTimeHeader", TIME_HEADER if shedding else None),
        shedding=shedding,
        at_most_once=_at_most_once(reader, spool, streams),
    )
    reader.refuse_unknown()
    _refuse_other_kind(reader, streams)
    if found.fair_key is None and (found.key_quanta or found.fair_lookahead > 1):
        raise ConfigurationError("options keyQuanta and fairLookahead are valid only together with fairKey")
    if found.fair_lookahead == 1 and reader.given("maxReturns"):
        raise ConfigurationError("option maxReturns is valid only together with fairLookahead")
    return found
