"""Messages that wait in the relay for lanes that refuse them, and the time at which each is published again.

A broker refuses messages of a lane that is full (``x-overflow`` ``reject-publish``), and may take a later one at once:
messages that are published before the answer comes may overtake the one that was refused. So from its first refusal on
a lane gets one message at a time, in the order of the ingress queue:

1. The message that was refused waits in the `Backlog` of its lane, and so do all later ones of that lane that the relay
   has, whether published or not: those that overtook it are published once more behind it.
2. The first one is published; if it is refused, again after a delay. Once it is confirmed, it is acknowledged in the
   ingress queue, and the next one follows.
3. When nothing has waited or been refused for `QUIET` seconds, the lane gets many messages at a time again.

Two threads take part. The *mover* publishes the messages of the ingress queue, batch by batch; the *settler* goes
through the same batches in the same order once the broker has confirmed them, and owns the backlogs. What keeps them
in step:

- The mover looks at the backlogs once, when it begins a batch, and publishes no message of a lane that has one.
- A backlog notes the batch that was begun last when it was created. Only in this batch and those before it can the
  mover have published messages of the lane past the backlog: the settler has all of these repeated.
- Only the mover ends a backlog, between two batches, when the settler has gone through that batch and through all
  messages of the lane that the mover has left to it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairsched.amqp.backoff import Backoff
from fairsched.consumer.log_limit import LogLimit

if TYPE_CHECKING:
    from fairsched.amqp._publishing import Confirmation
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Seconds without a refusal after which a lane gets many messages at a time again.
QUIET = 10.0
#: Ceilings of the first delay and of all later ones after a refusal, in seconds.
FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
#: Seconds until the next attempt if the publisher has no room, or the broker has blocked the connection.
_NO_ROOM = 0.05

#: Publishes a message to a lane; None: there is no room. Raises ValueError for one that cannot be published at all.
Publish = Callable[["Message", str], "Confirmation | None"]


class Backlog:
    """Messages that wait for one lane.

    Parameters
    ----------
    lane : str
        The name of the lane.
    last_past : int
        The number of the last batch in which the mover may have published messages of the lane past the backlog.
    """

    def __init__(self, lane: str, last_past: int) -> None:
        self.lane = lane
        self.last_past = last_past
        #: Messages that the mover left to the settler; and how many of these are or were in `waiting`.
        self.left = 0
        self.taken = 0
        #: The first one stays until the broker has confirmed it.
        self.waiting: deque[Message] = deque()
        self.under_way: Confirmation | None = None
        self.refusals = 0
        self.refused_at = -math.inf
        self.due = -math.inf
        self._backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)

    def is_over(self, settled: int, now: float) -> bool:
        """Return whether the mover may publish to the lane itself; `settled` is the last batch of the settler."""
        # In this order: the settler counts a message as taken after it has appended it.
        return (
            settled >= self.last_past
            and self.left == self.taken
            and not self.waiting
            and now >= self.refused_at + QUIET
        )

    def refused(self, now: float) -> None:
        """Wait before the next attempt."""
        self.refusals += 1
        self.refused_at = now
        self.due = now + self._backoff.failed()

    def confirmed(self) -> None:
        """Go on with the next message at once."""
        self._backoff.useful()
        self.due = -math.inf


class Backlogs:
    """The backlogs of all lanes that have one.

    Parameters
    ----------
    publish : callable
        Publishes a message.
    wake : callable
        Called with a `Confirmation`, in any thread, when `go_on` should be called.
    settle : callable
        Acknowledges messages.
    count : callable
        Called for each refusal.
    always : bool
        Whether every lane has a backlog from the beginning, since all of them may refuse messages.

    Notes
    -----
    `begin_batch` and `leave` are for the mover, `waiting` for any thread, the rest for the settler.
    """

    def __init__(
        self,
        publish: Publish,
        wake: Callable[[Confirmation], object],
        settle: Callable[[list[Message]], object],
        count: Callable[[], object],
        always: bool = False,
    ) -> None:
        self._publish = publish
        self._wake = wake
        self._settle = settle
        self._count = count
        self._always = always
        self._guard = threading.Lock()
        #: By lane; replaced rather than changed, so that the mover keeps what it began a batch with.
        self._found: Mapping[str, Backlog] = {}
        #: The last batch that the mover has begun, and the last one that the settler has gone through.
        self._begun = 0
        self._settled = 0
        self._reports = LogLimit()

    # The mover ---------------------------------------------------------------------------------------------------

    def begin_batch(self) -> tuple[int, Mapping[str, Backlog]]:
        """Return the number of the next batch, and the backlogs of the lanes to which it must not be published."""
        with self._guard:
            self._begun += 1
            if self._found and not self._always:
                now = time.monotonic()
                over = [lane for lane, one in self._found.items() if one.is_over(self._settled, now)]
                if over:
                    self._found = {lane: one for lane, one in self._found.items() if lane not in over}
                    for lane in over:
                        _log.info("lane %r takes messages again", lane)
            return self._begun, self._found

    def backlog_for(self, lane: str) -> Backlog:
        """Return the backlog of a lane, created if it has none."""
        found = self._found.get(lane)
        if found is None:
            with self._guard:
                # One that exists from the beginning is passed by nothing.
                found = Backlog(lane, 0 if self._always else self._begun)
                self._found = {**self._found, lane: found}
        return found

    # The settler -------------------------------------------------------------------------------------------------

    @property
    def found(self) -> Mapping[str, Backlog]:
        """The backlogs by lane."""
        return self._found

    def settled(self, number: int) -> None:
        """Note that the settler has gone through a batch."""
        self._settled = number

    def waiting(self) -> int:
        """Return how many messages wait."""
        return sum(len(one.waiting) for one in self._found.values())

    def refused(self, message: Message, lane: str, error: BaseException) -> None:
        """Have a message wait that the broker refused."""
        found = self.backlog_for(lane)
        first = not found.waiting
        found.waiting.append(message)
        if first:
            self._note_refusal(found, error)

    def _note_refusal(self, backlog: Backlog, error: BaseException) -> None:
        self._count()
        backlog.refused(time.monotonic())
        if self._reports.due(backlog.lane):
            _log.warning(
                "lane %r refuses messages, which wait here and are published again, one at a time: %s",
                backlog.lane, error,
            )  # fmt: skip

    def go_on(self) -> float:
        """Publish what is due; return the seconds until more will be."""
        soonest = math.inf
        for backlog in self._found.values():
            if backlog.waiting:
                soonest = min(soonest, self._go_on_with(backlog))
        return soonest

    def _go_on_with(self, backlog: Backlog) -> float:
        """Publish the first message of a backlog; return the seconds until the next attempt."""
        if backlog.under_way is not None:
            if not backlog.under_way.done():
                return math.inf
            error = backlog.under_way.exception()
            backlog.under_way = None
            if error is None:
                backlog.confirmed()
                self._settle([backlog.waiting[0]])
                backlog.waiting.popleft()
            else:
                self._note_refusal(backlog, error)
        while backlog.waiting and not backlog.waiting[0].alive:
            backlog.waiting.popleft()  # its channel is gone, and the broker delivers it again
        if not backlog.waiting:
            return math.inf
        wait = backlog.due - time.monotonic()
        return wait if wait > 0 else self._publish_first(backlog)

    def _publish_first(self, backlog: Backlog) -> float:
        message = backlog.waiting[0]
        try:
            found = self._publish(message, backlog.lane)
        except (TypeError, ValueError) as error:
            self._note_refusal(backlog, error)
            return max(0.0, backlog.due - time.monotonic())
        if found is None:
            return _NO_ROOM
        backlog.under_way = found
        found.add_done_callback(self._wake)
        return math.inf

    def is_refused(self) -> bool:
        """Return whether nothing waits but for lanes that refused the last message."""
        now = time.monotonic()
        return all(one.due > now for one in self._found.values() if one.waiting)

    def is_under_way(self) -> bool:
        """Return whether a message is published and not confirmed."""
        return any(one.under_way is not None for one in self._found.values())

    def take_all(self) -> list[Message]:
        """Return all messages that wait, and forget them."""
        messages: list[Message] = []
        for backlog in self._found.values():
            messages += backlog.waiting
            backlog.waiting.clear()
        return messages
