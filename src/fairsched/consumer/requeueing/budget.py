"""The number of times that a message has been returned, and whether once more is too often."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: What a quorum queue counts: failed deliveries, and since RabbitMQ 4.3, where a nack is none of these, how often a
#: message was handed out before.
COUNTS = ("x-delivery-count", "x-acquired-count")

#: Returned messages that are remembered, the latest ones.
REMEMBERED = 16_384


class Budget:
    """Grants each message a number of returns.

    Parameters
    ----------
    limit : int
        Returns of one message.

    Notes
    -----
    A quorum queue says how often a message was delivered before. A classic queue says only that it was, so what was
    returned from here is remembered by its content, and a redelivered message that is not remembered (another
    consumer had it, or it was long ago) counts as spent. Equal messages cannot be told apart: they share what is
    remembered, so that one of them may get fewer returns, never more.

    O(1), and O(length of the body) for the first look at a message. Thread safety: none; the caller synchronizes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._returns: OrderedDict[int, int] = OrderedDict()

    def grant(self, message: Message) -> bool:
        """Grant a message one more return, if it has one left; what is granted is spent."""
        content = _fingerprint(message)  # before a look at the headers, which decodes the properties
        if self._spent(message, content):
            return False
        self._returns[content] = self._returns.pop(content, 0) + 1  # moves it to the end
        if len(self._returns) > REMEMBERED:
            self._returns.popitem(last=False)
        return True

    def _spent(self, message: Message, content: int) -> bool:
        if self.limit == 0 or not message.redelivered:
            return self.limit == 0
        try:
            headers = message.headers
        except Exception:
            return True  # headers that cannot be decoded say nothing
        counts = [count for name in COUNTS if isinstance(count := headers.get(name), int)]
        if counts:
            # A count may have come with the message from another queue, and grow no more: ours holds too.
            return max(*counts, self._returns.get(content, 0)) >= self.limit
        return self._returns.get(content, self.limit) >= self.limit


def _fingerprint(message: Message) -> int:
    return hash((message.queue, message.raw_properties, message.body))
