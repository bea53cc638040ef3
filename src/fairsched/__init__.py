"""Weighted fair consuming for RabbitMQ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairsched._core import Dwrr
from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp._publishing import Confirmation
from fairsched.config.pools import Pool
from fairsched.config.queues import Queue
from fairsched.config.retry import Retry
from fairsched.errors import (
    ConfigurationError,
    ConnectionFailed,
    DecodingError,
    ExistingConsumerPreventsExclusive,
    ExistingExclusiveConsumer,
    FairschedError,
    MessageReturned,
    PublishFailed,
    QueueNotFound,
    ShutDown,
    TimeLimitExceeded,
    UndecodableBody,
)
from fairsched.pullqueue._pullqueue import Entry, PullQueue, Subscription, Target
from fairsched.routing import ConsistentHashExchange, RabbitMQHash
from fairsched.routing._ring import HashRing, jump_hash, jump_hash_many
from fairsched.scheduling._codel import CoDel
from fairsched.scheduling._fairqueue import FairQueue
from fairsched.scheduling.batch import Batch
from fairsched.scheduling.limit import Limit
from fairsched.stats import CoDelStats, LimitStats, SlotOutlook, SlotStats

if TYPE_CHECKING:
    from fairsched.broker import Broker
    from fairsched.consumer import (
        App,
        ArrowBatch,
        Consumer,
        ConsumerState,
        Explanation,
        Message,
        MessageBatch,
        from_pika,
    )
    from fairsched.publisher import Publisher
    from fairsched.simulator import Scenario, simulate

__version__ = "0.1.0"

__all__ = [
    "AckLedger",
    "App",
    "ArrowBatch",
    "Batch",
    "Broker",
    "CoDel",
    "CoDelStats",
    "ConfigurationError",
    "Confirmation",
    "ConnectionFailed",
    "ConsistentHashExchange",
    "Consumer",
    "ConsumerState",
    "DecodingError",
    "Dwrr",
    "Entry",
    "ExistingConsumerPreventsExclusive",
    "ExistingExclusiveConsumer",
    "Explanation",
    "FairQueue",
    "FairschedError",
    "HashRing",
    "Limit",
    "LimitStats",
    "Message",
    "MessageBatch",
    "MessageReturned",
    "Pool",
    "PublishFailed",
    "Publisher",
    "PullQueue",
    "Queue",
    "QueueNotFound",
    "RabbitMQHash",
    "Retry",
    "Scenario",
    "ShutDown",
    "SlotOutlook",
    "SlotStats",
    "Subscription",
    "Target",
    "TimeLimitExceeded",
    "UndecodableBody",
    "from_pika",
    "jump_hash",
    "jump_hash_many",
    "simulate",
]

# Looked up on first use, so that whoever embeds the engine alone does not import pika.
_FROM_CONSUMER = {
    "App",
    "ArrowBatch",
    "Consumer",
    "ConsumerState",
    "Explanation",
    "Message",
    "MessageBatch",
    "from_pika",
}
_FROM_PUBLISHER = {"Publisher"}
_FROM_BROKER = {"Broker"}
_FROM_SIMULATOR = {"Scenario", "simulate"}

logging.getLogger("fairsched").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _FROM_SIMULATOR:
        from fairsched import simulator

        return getattr(simulator, name)
    if name in _FROM_BROKER:
        from fairsched import broker

        return getattr(broker, name)
    if name in _FROM_PUBLISHER:
        from fairsched import publisher

        return getattr(publisher, name)
    if name not in _FROM_CONSUMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairsched import consumer

    return getattr(consumer, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
