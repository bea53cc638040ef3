"""Returned messages that their queue delays: a policy of the broker says so, which AMQP does not show.

RabbitMQ delivers returned messages before all others, and a return makes room in the window of the consumer. So a
message that no other consumer had in between comes back at once, unless other returned messages go before it.
docs/design/retries.md has the argument.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from fairsched.consumer.requeueing.content import content_of

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: How often RabbitMQ, from 4.3 on, delivered a message of a quorum queue before, returns included.
_DELIVERED = "x-acquired-count"
#: Returned messages that are remembered, the latest ones.
REMEMBERED = 1024
#: Seconds after which a message comes back late; and messages that must, before the log says so.
LATE, ENOUGH = 1.0, 2


class LateReturns:
    """Warns, once for each queue, if messages that this consumer returns come back late.

    Notes
    -----
    Safe from any thread. O(length of the message).
    """

    def __init__(self) -> None:
        #: By content: when a message was returned, with which count it should come back, and its delivery tag.
        self._returned: OrderedDict[int, tuple[float, int, int]] = OrderedDict()
        #: By queue: when its latest message arrived that was delivered before.
        self._latest: dict[str, float] = {}
        #: Late messages of each queue that counts deliveries; None: there was a warning, or it does not count them.
        self._late: dict[str, int | None] = {}
        self._guard = threading.RLock()

    def returning(self, message: Message) -> None:
        """Remember a message that is about to be returned by basic.nack."""
        if self._late.get(message.queue, 0) is None:
            return
        content, count = content_of(message), _deliveries(message) or 0
        with self._guard:
            self._returned.pop(content, None)
            self._returned[content] = (time.monotonic(), count + 1, message.delivery_tag)
            if len(self._returned) > REMEMBERED:
                self._returned.popitem(last=False)

    def look(self, message: Message) -> None:
        """Look at a message that was delivered before."""
        queue = message.queue
        if not self._returned or self._late.get(queue, 0) is None:
            return
        content, count = content_of(message), _deliveries(message)
        with self._guard:
            latest = self._latest.get(queue, 0.0)
            self._latest[queue] = max(latest, message.arrived)
            if count is None:
                self._late[queue] = None  # a classic queue, or an older broker
                return
            found = self._returned.get(content)
            if found is None or found[1] != count:
                return
            del self._returned[content]
            begin, _, tag = found
            # The tags of a new channel begin at 1: without a consumer, it could not come.
            if message.delivery_tag < tag or latest > begin or message.arrived - begin < LATE:
                return
            late = (self._late.get(queue) or 0) + 1
            self._late[queue] = late if late < ENOUGH else None
        if late == ENOUGH:
            _log.warning(
                "queue %r delays messages that this consumer returns: one came back after %.3g s, although there was "
                "room for it. A policy with delayed-retry-type 'all' or 'returned' does that, to what CoDel returns, "
                "too, and to all that is not handled when a consumer stops; 'failed' delays retries only",
                queue, message.arrived - begin,
            )  # fmt: skip

    def connected(self) -> None:
        """Forget what was returned: it could not come back without a connection."""
        with self._guard:
            self._returned.clear()

    def forget(self, queue: str) -> None:
        """Forget a queue that is not consumed any more."""
        with self._guard:
            self._latest.pop(queue, None)
            self._late.pop(queue, None)


def _deliveries(message: Message) -> int | None:
    """Return how often a message was delivered before, if its queue counts it."""
    if not message.redelivered:
        return 0
    try:
        found = message.headers.get(_DELIVERED)
    except Exception:
        return None  # headers that cannot be decoded say nothing
    return found if isinstance(found, int) and not isinstance(found, bool) else None
