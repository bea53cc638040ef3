"""A flag, step by step: threads that wait, that raise it, that take it down, and handlers of signals in their midst.

The steps are those of amqp/flag.py: each operation of an attribute, a list or a lock is one. The handler of a signal
runs in the thread that it interrupts, which does nothing meanwhile: a handler is a thread here that the one it
interrupts stands still for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
#: What the flag does in its order, each of which the model can leave out.
GUARDS = ("lists itself first", "looks again", "raises before it reads", "own lock")


@dataclass
class Waiter:
    """A thread that waits; its handler, if it has one, raises the flag or waits for it."""

    handler: str = ""
    locked: bool = False
    listed: bool = False
    interrupted: bool = False


@dataclass
class FlagModel:
    """Waiters with their handlers, and threads that raise the flag. `missing` is a guard that is left out."""

    handlers: tuple[str, ...] = ("",)  # of each waiter: "", "set" or "wait"
    setters: int = 1
    missing: str = ""
    up: bool = False
    shared: bool = False  # whether the one lock is taken that a flag without locks of its own would have
    waiters: list[Waiter] = field(default_factory=list)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        self.waiters = [Waiter(handler) for handler in self.handlers]
        handlers = [self.handle(waiter) for waiter in self.waiters if waiter.handler]
        return [self.wait(one) for one in self.waiters] + [self.set() for _ in range(self.setters)] + handlers

    def check(self, finished: list[bool]) -> None:
        assert all(finished), "a thread sleeps though the flag is up"
        assert not any(one.listed for one in self.waiters), "a lock stays in the list"

    # Operations ---------------------------------------------------------------------------------------------------

    def handle(self, host: Waiter) -> Steps:
        """Interrupt a waiter, at any of its steps or after them, until the end of what the handler does."""
        yield None
        host.interrupted = True
        if host.handler == "set":
            yield from self.set()
        else:
            self.waiters.append(inner := Waiter())
            yield from self.wait(inner)
        host.interrupted = False

    def set(self) -> Steps:
        if not self.kept("own lock"):
            yield lambda: not self.shared
            self.shared = True
        if self.kept("raises before it reads"):
            yield None
            self.up = True
        yield None
        listed = [one for one in self.waiters if one.listed]
        for one in listed:
            yield None
            one.locked = False
        if not self.kept("raises before it reads"):
            yield None
            self.up = True
        self.shared = False

    def wait(self, me: Waiter) -> Steps:
        def goes_on() -> bool:
            return not me.interrupted

        yield goes_on
        looked = self.up
        if looked:
            return
        if not self.kept("own lock"):
            yield lambda: goes_on() and not self.shared
            self.shared = True
            yield goes_on
            self.shared = False
        if self.kept("lists itself first"):
            yield goes_on
            me.locked = me.listed = True
        if self.kept("looks again"):
            yield goes_on
            looked = self.up
        if not looked:
            if not self.kept("lists itself first"):
                yield goes_on
                me.locked = me.listed = True
            yield lambda: goes_on() and not me.locked
        yield goes_on
        me.listed = False
