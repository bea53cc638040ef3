"""Weighted fair consuming for RabbitMQ.

Here is what consumers and publishers need, and the fair queue. Further: `fairsched.aio`, `.errors`, `.metrics`,
`.pullqueue`, `.routing`, `.simulator`, `.spark`, `.stats`, `.testing`, `.prefetch` and `.fairness`.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from fairsched._core import Dwrr
from fairsched.amqp._publishing import Confirmation
from fairsched.config.pools import Pool
from fairsched.config.queue_source import QueueSource
from fairsched.config.queues import Queue
from fairsched.config.retry import Retry
from fairsched.config.tenants import Tenant
from fairsched.errors import (
    ConfigurationError,
    ConnectionFailed,
    DecodingError,
    FairschedError,
    MessageReturned,
    PublishFailed,
    QueueNotFound,
    ShutDown,
    Throttled,
    TimeLimitExceeded,
    UndecodableBody,
)
from fairsched.scheduling._codel import CoDel
from fairsched.scheduling._fairqueue import FairQueue
from fairsched.scheduling.batch import Batch
from fairsched.scheduling.limit import Limit

if TYPE_CHECKING:
    from fairsched.broker import Broker
    from fairsched.config.lanes import Lanes
    from fairsched.consumer import App, Consumer, Message, from_pika
    from fairsched.publisher import Publisher

__version__ = "0.1.0"

__all__ = [
    "App",
    "Batch",
    "Broker",
    "CoDel",
    "ConfigurationError",
    "Confirmation",
    "ConnectionFailed",
    "Consumer",
    "DecodingError",
    "Dwrr",
    "FairQueue",
    "FairschedError",
    "Lanes",
    "Limit",
    "Message",
    "MessageReturned",
    "Pool",
    "PublishFailed",
    "Publisher",
    "Queue",
    "QueueNotFound",
    "QueueSource",
    "Retry",
    "ShutDown",
    "Tenant",
    "Throttled",
    "TimeLimitExceeded",
    "UndecodableBody",
    "from_pika",
]

# Looked up on first use, so that a program that embeds the engine alone does not import pika.
_LATER = {
    "App": "consumer",
    "Broker": "broker",
    "Consumer": "consumer",
    "Lanes": "config.lanes",
    "Message": "consumer",
    "Publisher": "publisher",
    "from_pika": "consumer",
}

logging.getLogger("fairsched").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fairsched.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
