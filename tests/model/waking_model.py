"""The wake-up of a publisher's I/O thread, step by step: threads that publish, and handlers of signals in their midst.

The steps are those of `PublishWindow.put`, `output` and `wake_again` in amqp/_publishing.pyx: the exclusion is one
step, and so is each operation without it. The handler of a signal publishes in the thread that it interrupts, which
does nothing meanwhile; and it may wait for room or a confirm, so it must not depend on what it interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
GUARDS = (
    "wakes while another wakes",
    "wakes before it waits",
    "asks once more after each take",
    "counts until it woke",
    "counts each",
)


@dataclass
class WakingModel:
    """Publishers of a message each; a handler interrupts some, and publishes and polls ("p") or flushes ("f")."""

    publishers: int = 1
    handlers: str = "p"
    missing: str = ""
    queued: int = 0
    confirmed: int = 0
    callbacks: int = 0
    requested: bool = False
    waking: int = 0
    interrupted: list[bool] = field(default_factory=list)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        self.interrupted = [False] * self.publishers
        handlers = [self.handle(host, kind) for host, kind in enumerate(self.handlers)]
        return [self.publish(host) for host in range(self.publishers)] + handlers + [self.io_thread()]

    def check(self, finished: list[bool]) -> None:
        assert all(finished[:-1]), "a publisher waits, and nothing wakes the I/O thread"

    def put(self, host: int | None) -> Steps:
        """Add a message, and wake the I/O thread if that is not asked for yet, or may not have been done."""

        def goes_on() -> bool:
            return host is None or not self.interrupted[host]

        yield goes_on
        self.queued += 1
        wake = not self.requested or (self.waking and self.kept("wakes while another wakes"))
        if not wake:
            return
        self.requested = True
        self.waking += 1
        if not self.kept("counts until it woke"):
            self.waking -= 1
        yield goes_on
        self.callbacks += 1
        if self.kept("counts until it woke"):
            yield goes_on
            self.waking = self.waking - 1 if self.kept("counts each") else 0

    def publish(self, host: int) -> Steps:
        yield from self.put(host)
        yield from self.await_confirms(host)

    def await_confirms(self, host: int | None, polls: bool = False) -> Steps:
        """Wait until as many are confirmed as have been published by now."""

        def goes_on() -> bool:
            return host is None or not self.interrupted[host]

        yield goes_on
        wanted = self.queued + self.confirmed
        if self.waking and not polls and self.kept("wakes before it waits"):
            yield goes_on
            self.callbacks += 1
        yield lambda: goes_on() and self.confirmed >= wanted

    def handle(self, host: int, kind: str) -> Steps:
        """Interrupt a publisher until all is confirmed that is published by then."""
        yield None
        self.interrupted[host] = True
        if kind == "p":
            yield from self.put(None)
        yield from self.await_confirms(None, polls=kind == "p")
        self.interrupted[host] = False

    def io_thread(self) -> Steps:
        while True:
            yield lambda: self.callbacks > 0
            self.callbacks -= 1
            if self.kept("asks once more after each take"):
                self.requested = False
            self.confirmed += self.queued
            self.queued = 0
