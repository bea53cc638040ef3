"""Fair, fresh, ordered consuming over RabbitMQ, on an engine that runs without the GIL."""

from __future__ import annotations

import logging

from fairsched._ackledger import AckLedger
from fairsched._core import Dwrr
from fairsched._fairqueue import FairQueue
from fairsched.batch import Batch
from fairsched.errors import ConfigurationError, ConnectionFailed, FairschedError, QueueNotFound, ShutDown
from fairsched.slotstats import SlotStats

__version__ = "0.1.0"

__all__ = [
    "AckLedger",
    "Batch",
    "ConfigurationError",
    "ConnectionFailed",
    "Dwrr",
    "FairQueue",
    "FairschedError",
    "QueueNotFound",
    "ShutDown",
    "SlotStats",
]

logging.getLogger("fairsched").addHandler(logging.NullHandler())
