"""Messages that were delivered before: what is looked at before they are handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairsched.consumer.handling.retries import Retries
    from fairsched.consumer.requeueing.late_returns import LateReturns
    from fairsched.delivery._delivery import Message


class Redelivered:
    """Looks at each message that was delivered before, and dead-letters it if it has no attempt left.

    Parameters
    ----------
    late_returns : LateReturns
        Sees what comes back late.
    retries : Retries, optional
        Dead-letters.

    Notes
    -----
    Safe from any thread. It must not be a method of the consumer's `Client`, whose own part would refer to itself by it
    in a way that the garbage collector cannot undo.
    """

    def __init__(self, late_returns: LateReturns, retries: Retries | None) -> None:
        self._late_returns = late_returns
        #: May be set, if queues with retries are added.
        self.retries = retries

    def __call__(self, message: Message) -> bool:
        """Return whether a message was dead-lettered, and is not to be handled. O(its length)."""
        self._late_returns.look(message)
        return self.retries is not None and self.retries.end_if_exhausted(message)
