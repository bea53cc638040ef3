"""Retries that their queue delays and counts itself: quorum queues of RabbitMQ 4.3, by their arguments.

docs/design/retries.md has the reasons: when a queue delays, which of its counts can be believed, and how a queue shows
that it does not delay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from fairsched.config.delayed_retry import DELAYS_RETURNS, TYPE, obstacle
from fairsched.consumer.requeueing.budget import COUNTS
from fairsched.consumer.requeueing.content import content_of

if TYPE_CHECKING:
    from fairsched.config.queues import Queue
    from fairsched.config.retry import Retry
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Rejected messages that are remembered, the latest ones, to see when they come back.
REMEMBERED = 4096
#: Seconds for which retries of a queue are copies, once it did not delay one.
DOUBT = 60.0
#: The first version of RabbitMQ that delays.
_DELAYING = (4, 3)


def delays_retries(server_properties: Mapping[str, Any] | None) -> bool:
    """Return whether a broker can delay retries, by the properties that it sent when the connection was opened."""
    found = server_properties or {}
    if found.get("product") != "RabbitMQ":
        return False
    numbers = str(found.get("version", "")).split(".")[:2]
    return len(numbers) == 2 and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= _DELAYING


def failures(message: Message) -> int:
    """Return how often a quorum queue of RabbitMQ 4.3 counted a message as failed; 0 if it does not say so.

    What came with the message, published or from another queue, is not believed. O(length of the headers).
    """
    if not message.redelivered:
        return 0
    try:
        headers = message.headers
    except Exception:
        return 0  # headers that cannot be decoded say nothing
    found = [headers.get(name) for name in COUNTS]
    counts = [one for one in found if isinstance(one, int) and not isinstance(one, bool)]
    if "x-death" in headers or len(counts) < len(COUNTS):
        return 0
    return max(0, min(counts))


class DelayedRetries:
    """Knows which queues delay and count their retries themselves.

    Notes
    -----
    Safe from any thread. O(1) for each message that fails or was delivered before, and O(its length).
    """

    def __init__(self) -> None:
        self._queues: Mapping[str, Queue] = {}
        self._rules: Mapping[str, Retry] = {}
        #: Queues that count failures: they delay them, too, unless there is doubt.
        self._counting: frozenset[str] = frozenset()
        #: Until when, by the monotonic clock, what fails in a queue is copied.
        self._doubted: dict[str, float] = {}
        #: By content: when a message was rejected, with which count it should come back, and after how long.
        self._rejected: OrderedDict[int, tuple[float, int, float]] = OrderedDict()
        self._told: set[tuple[str, str]] = set()
        self._guard = threading.RLock()

    def take(self, queues: Mapping[str, Queue], rules: Mapping[str, Retry]) -> None:
        """Take the queues that are consumed, and their rules; forget others."""
        with self._guard:
            self._queues, self._rules = queues, rules
            self._counting &= rules.keys()
            self._told = {one for one in self._told if one[0] in queues}
            for name in [name for name in self._doubted if name not in rules]:
                del self._doubted[name]

    def connected(self, names: Collection[str], server_properties: Mapping[str, Any] | None) -> frozenset[str]:
        """Take what is known of the broker of some queues; return those of them that delay their retries."""
        able = delays_retries(server_properties)
        queues, rules = self._queues, self._rules
        found = frozenset(name for name in names if self._is_delayed(name, queues.get(name), rules.get(name), able))
        with self._guard:
            found &= self._rules.keys()  # of what was not removed meanwhile
            self._counting = self._counting.difference(names) | found
        return found

    def counts(self, message: Message) -> bool:
        """Whether the queue of a message counts its failures.

        A message that was dead-lettered may have brought a count along, and never gets one of its own.
        """
        if message.queue not in self._counting:
            return False
        try:
            return "x-death" not in message.headers
        except Exception:
            return False  # headers that cannot be decoded say nothing

    def delays(self, message: Message) -> bool:
        """Whether the queue of a message delays it if it is rejected."""
        return self.counts(message) and time.monotonic() >= self._doubted.get(message.queue, 0.0)

    def rejecting(self, message: Message, seconds: float) -> None:
        """Remember a message that is about to be rejected, and should not come back for so long."""
        content, count = content_of(message), failures(message) + 1
        with self._guard:
            self._rejected.pop(content, None)
            self._rejected[content] = (time.monotonic(), count, seconds)
            if len(self._rejected) > REMEMBERED:
                self._rejected.popitem(last=False)

    def look(self, message: Message) -> None:
        """Look whether a message that was delivered before came back too soon."""
        if not self._rejected or message.queue not in self._counting:
            return
        content, count = content_of(message), failures(message)
        with self._guard:
            found = self._rejected.get(content)
            if found is None or found[1] != count:
                return
            del self._rejected[content]
            begin, _, delay = found
            took = message.arrived - begin
            if took >= delay / 2:
                return
            self._doubted[message.queue] = time.monotonic() + DOUBT
        _log.warning(
            "message %d of queue %r came back %.3g s after it was rejected, instead of %g s: a policy overrules "
            "x-delayed-retry-type, or a node of the cluster is older than 4.3. What fails in this queue is copied for "
            "%g s", message.delivery_tag, message.queue, took, delay, DOUBT,
        )  # fmt: skip

    def _is_delayed(self, name: str, queue: Queue | None, rule: Retry | None, able: bool) -> bool:
        """Whether a queue delays its retries, if its broker is `able` to; say once why it does not although it should.

        Called without the guard, since it logs.
        """
        arguments = (queue.arguments if queue is not None else None) or {}
        if able and arguments.get(TYPE) in DELAYS_RETURNS and self._is_news(name, TYPE):
            _log.warning(
                "%s of queue %r is %r, so what this consumer returns without a failure is delayed, too: what CoDel "
                "returns, and all that is not handled when it stops. 'failed' delays retries only",
                TYPE, name, arguments[TYPE],
            )  # fmt: skip
        if rule is None:
            return False
        reason = obstacle(arguments, rule)
        if reason is None and not able:
            reason = "the broker is not RabbitMQ 4.3 or later"
        if reason and self._is_news(name, reason):
            _log.warning("queue %r is to delay its retries, but they are copied: %s", name, reason)
        return reason is None

    def _is_news(self, name: str, what: str) -> bool:
        """Whether this was not said of a queue yet; it counts as said then."""
        with self._guard:
            known = (name, what) in self._told
            self._told.add((name, what))
        return not known
