"""The checked options of a writer, in a frozen and picklable object whose repr does not show the URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairsched.errors import ConfigurationError
from fairsched.publisher.options import CONFIRM_WINDOW
from fairsched.spark.broker import Broker
from fairsched.spark.optionreader import OptionReader


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink; each field is the option of that name (see docs/howto/spark.md)."""

    broker: Broker
    exchange: str
    routing_key: str
    mandatory: bool
    confirm_window: int
    confirm_timeout: float
    delivery_mode: int
    message_id: str
    hash_ring: Mapping[str, int]
    hash_column: str
    hash_points: int


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a writer; see `fairsched.spark.source.options.source_options` for those of a reader."""
    reader = OptionReader(options)
    found = SinkOptions(
        broker=reader.broker(),
        exchange=reader.text("exchange", ""),
        routing_key=reader.text("routingKey", ""),
        mandatory=reader.flag("mandatory", True),
        confirm_window=reader.number("confirmWindow", CONFIRM_WINDOW),
        confirm_timeout=reader.seconds("confirmTimeout", "30s"),
        delivery_mode=reader.number("deliveryMode", 2, 1, 2),
        message_id=reader.choice("messageId", "auto", "column", "none"),
        hash_ring=reader.weights("hashRing"),
        hash_column=reader.text("hashColumn", "key"),
        hash_points=reader.number("hashPoints", 256, 1, 100_000),
    )
    reader.refuse_unknown()
    if found.hash_ring and (found.exchange or found.routing_key):
        raise ConfigurationError("option hashRing chooses the queue, so exchange and routingKey must not be given")
    return found
