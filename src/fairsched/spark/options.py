"""The options of a reader or writer, checked, in one frozen and picklable object that never shows its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairsched._codel import CoDel
from fairsched.consumer.keys import PROPERTIES
from fairsched.errors import ConfigurationError
from fairsched.spark.optionreader import Broker, Taker, as_json

#: Where RabbitMQ says when it took a message, in milliseconds since 1970, if it is told to.
TIME_HEADER = "timestamp_in_ms"
#: Bytes of bodies in a batch by default: what the spool must have room for, and what is done again after a failure.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Shedding:
    """What becomes of messages that waited too long; ``flag``, ``requeue`` or ``dead-letter`` is the action."""

    target: float
    interval: float
    action: str


@dataclass(frozen=True)
class SourceOptions:
    """What a source is told; each field is the option of that name (see docs/howto/spark.md)."""

    broker: Broker
    quanta: Mapping[str, int]
    streams: bool
    spool: str | None
    most: int
    least: int
    delay: float
    most_bytes: int | None
    partitions: int
    split: bool
    allow_split: bool
    fair: bool
    key: str | None
    key_quanta: Mapping[str, int]
    lookahead: int
    idle: float
    pace: float
    starting: str | Mapping[str, int] | None
    ending: str | Mapping[str, int]
    strict: bool
    browse_most: int
    properties: bool
    headers: bool
    time_header: str | None
    shedding: Shedding | None
    at_most_once: bool


@dataclass(frozen=True)
class SinkOptions:
    """What a sink is told; each field is the option of that name (see docs/howto/spark.md)."""

    broker: Broker
    exchange: str
    routing_key: str
    mandatory: bool
    window: int
    confirm_timeout: float
    delivery_mode: int
    message_id: str
    ring: Mapping[str, int]
    ring_column: str
    ring_points: int


def _offsets(taker: Taker, name: str, default: str | None) -> str | Mapping[str, int] | None:
    """Take ``earliest``, ``latest`` or ``{"stream": offset}``."""
    text = taker.text(name, default)
    if text is None or text.lower() in ("earliest", "latest"):
        return text and text.lower()
    shape = 'earliest, latest or a JSON object of offsets, such as {"events": 1200}'
    found = as_json(text, name, shape)
    if not isinstance(found, dict) or not all(type(value) is int and value >= 0 for value in found.values()):
        raise ConfigurationError(f"option {name} must be {shape}, got {text!r}")
    return found


def _key(taker: Taker) -> str | None:
    text = taker.text("fairKey", None)
    if text is None:
        return None
    source, _, name = text.partition(":")
    if not name or source not in ("header", "property"):
        raise ConfigurationError(f"option fairKey must be header:NAME or property:NAME, got {text!r}")
    if source == "property" and name not in PROPERTIES - {"cluster_id"}:
        raise ConfigurationError(f"option fairKey: there is no property {name!r}")
    return text


def _at_most_once(taker: Taker, spool: str | None, streams: Mapping[str, int]) -> bool:
    """Take ackMode: whether messages are acknowledged without being kept."""
    auto = taker.choice("ackMode", "spool", "auto") == "auto"
    if auto and (spool is not None or streams):
        raise ConfigurationError(
            "option ackMode=auto is for queues without spoolLocation: it keeps nothing to read a batch again from"
        )
    return auto


def _most_bytes(taker: Taker, spool: str | None, streams: Mapping[str, int]) -> int | None:
    """Take maxBytesPerTrigger; None for no bound."""
    found = taker.number("maxBytesPerTrigger", 0 if spool is None or streams else MOST_BYTES, 0, 2**62)
    if found and streams:
        raise ConfigurationError(
            f"option maxBytesPerTrigger is for queues, or 0, got {found}: a batch of streams is a range of offsets, "
            "which is written down before anybody has seen the messages. Bound it by maxMessagesPerTrigger"
        )
    return found or None


def _shedding(taker: Taker, streams: Mapping[str, int]) -> Shedding | None:
    """Take the options of CoDel; None without a target."""
    found = Shedding(
        taker.seconds("codelTargetMs", "0"),
        taker.seconds("codelIntervalMs", "100"),
        taker.choice("codelAction", "flag", "requeue", "dead-letter"),
    )
    if not taker.given("codelTargetMs"):
        idle = taker.given("codelIntervalMs", "codelAction")
        if idle:
            raise ConfigurationError(f"option {', '.join(idle)} has a meaning only together with codelTargetMs")
        return None
    if streams:
        raise ConfigurationError("option codelTargetMs is for queues: a message of a stream cannot go back")
    try:
        CoDel(found.target, found.interval)
    except ValueError as error:
        raise ConfigurationError(f"options codelTargetMs and codelIntervalMs: {error}") from None
    return found


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """source_options(options)
    --

    Check the options of a reader.

    Parameters
    ----------
    options : mapping of str to str
        As Spark gives them; names in any case.

    Returns
    -------
    SourceOptions
        Picklable.

    Raises
    ------
    ConfigurationError
        An option is missing, unknown or wrong; the message names it, and never shows a URL's password.

    Notes
    -----
    O(number of options). Safe from any thread.
    """
    taker = Taker(options)
    broker = taker.broker()
    queues, streams = taker.weights("queues"), taker.weights("streams")
    spool = taker.text("spoolLocation", None)
    shedding = _shedding(taker, streams)
    if bool(queues) == bool(streams):
        raise ConfigurationError("exactly one of the options queues and streams must name something")
    found = SourceOptions(
        broker=broker,
        quanta=queues or streams,
        streams=bool(streams),
        spool=spool,
        most=taker.number("maxMessagesPerTrigger", 10_000),
        least=taker.number("minMessagesPerTrigger", 1),
        delay=taker.seconds("maxTriggerDelay", "15m"),
        most_bytes=_most_bytes(taker, spool, streams),
        partitions=taker.number("numPartitions", min(len(queues or streams), 8), 1, 10_000),
        split=taker.choice("queueAssignment", "affinity", "split") == "split",
        allow_split=taker.flag("allowSplit", False),
        fair=taker.choice("rowOrder", "fair", "queue") == "fair",
        key=_key(taker),
        key_quanta=taker.weights("keyQuanta", listed=False),
        lookahead=taker.number("fairLookahead", 1, 1, 100),
        idle=taker.seconds("pollTimeoutMs", "2000"),
        pace=taker.seconds("planningIntervalMs", "200"),
        starting=_offsets(taker, "startingOffsets", None),
        ending=_offsets(taker, "endingOffsets", "latest") or "latest",
        strict=taker.flag("failOnDataLoss", True),
        browse_most=taker.number("maxMessages", 10_000),
        properties=taker.flag("includeProperties", False),
        headers=taker.flag("includeHeaders", False),
        time_header=taker.text("enqueueTimeHeader", TIME_HEADER if shedding else None),
        shedding=shedding,
        at_most_once=_at_most_once(taker, spool, streams),
    )
    taker.choice("readMode", "browse")
    taker.end()
    if found.key is None and (found.key_quanta or found.lookahead > 1):
        raise ConfigurationError("options keyQuanta and fairLookahead have a meaning only together with fairKey")
    return found


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """sink_options(options)
    --

    Check the options of a writer, as `source_options` does those of a reader.
    """
    taker = Taker(options)
    found = SinkOptions(
        # Nobody serves the connection while a task waits for its rows: with heartbeats the broker would end it.
        broker=taker.broker(heartbeat=0),
        exchange=taker.text("exchange", ""),
        routing_key=taker.text("routingKey", ""),
        mandatory=taker.flag("mandatory", True),
        window=taker.number("confirmWindow", 2000),
        confirm_timeout=taker.seconds("confirmTimeoutMs", "30000"),
        delivery_mode=taker.number("deliveryMode", 2, 1, 2),
        message_id=taker.choice("messageId", "auto", "column", "none"),
        ring=taker.weights("hashRing"),
        ring_column=taker.text("hashColumn", "key"),
        ring_points=taker.number("hashPoints", 256, 1, 100_000),
    )
    taker.end()
    if found.ring and (found.exchange or found.routing_key):
        raise ConfigurationError("option hashRing chooses the queue itself; exchange and routingKey must not be given")
    return found
