"""The exceptions of fairsched: one base, and a subclass where it is useful to catch it separately."""

from __future__ import annotations

import queue
import sys


class FairschedError(Exception):
    """Base of every error that fairsched itself defines."""


# Code written for the ShutDown of Python 3.13's queues also catches this one.
if sys.version_info >= (3, 13):
    _ShutDown = queue.ShutDown
else:
    _ShutDown = Exception


class ShutDown(FairschedError, _ShutDown):
    """The queue was shut down or closed: it accepts no more items, or has none left."""


class ExistingExclusiveConsumer(FairschedError):
    """The PullQueue has an exclusive subscription, so no other can be added."""


class ExistingConsumerPreventsExclusive(FairschedError):
    """The subscription cannot be exclusive because the PullQueue has others."""


class ConfigurationError(FairschedError, ValueError):
    """A setting has a value that is not allowed; the message names the value, its source and the rule."""


class DecodingError(FairschedError, ValueError):
    """A message's properties or headers cannot be decoded; its body and the other properties are available."""


class ConnectionFailed(FairschedError):
    """No broker was reached, or it refused the connection; the message names host and port, never a password."""


class QueueNotFound(ConnectionFailed):
    """A queue to consume does not exist."""
