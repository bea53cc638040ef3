"""Which failures are shown with their traceback."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairsched._delivery import Message

#: Failures that are remembered, the latest ones.
_REMEMBERED = 4096


class Tracebacks:
    """Grants each message one traceback: one that fails again and again would bury the log under its own.

    Notes
    -----
    A message that comes again is known by its content, since nothing else of it stays the same in all kinds of queues;
    so one that was delivered to others before, but never failed here, has its traceback.

    Safe from any thread. O(1), and O(length of the body) for the first look at a message.
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[int, None] = OrderedDict()
        self._guard = threading.Lock()

    def due(self, message: Message, error: Exception, again: bool = False) -> bool:
        """Whether a failure is to be shown with its traceback; it counts as shown then.

        `again`: the message failed before, although it is not redelivered.
        """
        failure = hash((message.queue, message.body, type(error)))
        with self._guard:
            if (again or message.redelivered) and failure in self._shown:
                return False
            self._shown[failure] = None
            self._shown.move_to_end(failure)
            if len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)
        return True
