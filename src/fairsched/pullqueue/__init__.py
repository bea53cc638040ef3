"""A queue whose consumers pull: one wake-up per message, by priority and interest, as Qpid Broker-J has it."""

from __future__ import annotations

from fairsched.pullqueue._pullqueue import Entry, PullQueue, Subscription
from fairsched.pullqueue._target import Target

__all__ = ["Entry", "PullQueue", "Subscription", "Target"]
