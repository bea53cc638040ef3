"""A consumer of several queues, in plain Python: one message of each in turn, and one wish for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReferenceTarget:
    """Qpid Broker-J's ConsumerTarget: sendNextMessage and setNotifyWorkDesired."""

    def __init__(self, subscriptions: Sequence[Any]) -> None:
        self.subscriptions = list(subscriptions)
        self.rest: list[Any] = []  # of the round
        self.desired = True
        self.open = True

    def pull(self) -> Any:
        """The next message: the round goes on, and if it ends without one, begins once more."""
        entry = self.go_on()
        if entry is None:
            self.rest = list(self.subscriptions)
            entry = self.go_on()
        return entry

    def go_on(self) -> Any:
        while self.rest:
            entry = self.rest.pop(0).pull()
            if entry is not None:
                return entry
        return None

    @property
    def interested(self) -> bool:
        return self.desired

    @interested.setter
    def interested(self, interested: bool) -> None:
        if self.open and interested != self.desired:
            self.desired = interested
            for subscription in self.subscriptions:
                subscription.interested = interested

    def cancel(self) -> None:
        self.interested = False
        self.open = False
        for subscription in self.subscriptions:
            subscription.cancel()
