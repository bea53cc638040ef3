"""Exceptions: one base, and a child only where somebody would catch it apart."""

from __future__ import annotations

import queue
import sys


class FairschedError(Exception):
    """Base of every error that fairsched itself defines."""


# Python 3.13 gave queues a shutdown; code written for it catches ours too.
if sys.version_info >= (3, 13):
    _ShutDown = queue.ShutDown
else:
    _ShutDown = Exception


class ShutDown(FairschedError, _ShutDown):
    """A queue that was shut down, or closed, takes no more items, or has none left."""


class ExistingExclusiveConsumer(FairschedError):
    """A PullQueue has an exclusive subscription, so no other may be made."""


class ExistingConsumerPreventsExclusive(FairschedError):
    """A subscription cannot be exclusive, because the PullQueue has others."""


class ConfigurationError(FairschedError, ValueError):
    """A setting has a value that is not allowed; the message names the value, its source and the rule."""


class DecodingError(FairschedError, ValueError):
    """What a publisher said about a message cannot be decoded; its body can be had, and so can the rest."""


class ConnectionFailed(FairschedError):
    """No broker could be reached, or it refused; the message names host and port, never a password."""


class QueueNotFound(ConnectionFailed):
    """A queue to consume from does not exist on the broker."""
