"""A connection that the I/O thread lends while it waits, step by step: which thread reads and which is woken.

The steps are those of `LentConnection` in _delivery.pyx and of amqp/polling/lending.py: what holds the lock of the
connection for one step, and a stretch without Python code, are one step. The broker sends deliveries ("d"), which
either may take, and other frames ("f"), which the I/O thread alone may take. A consumer takes what is in its queue,
reads when that is empty and it is fast, and sleeps when it is not; how fast it is, the schedule decides. One that "goes
away" stops looking, as a handler does that takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
GUARDS = (
    "looks again when it has borrowed",
    "unwatches only while no thread sleeps",
    "counts itself before it watches",
    "watches before it sleeps",
    "leaves all from the first other frame on",
    "is not borrowed while something is left",
    "wakes the I/O thread for what is left",
    "does what was left",
    "watches what it does not lend",
    "takes the reading back in time",
)


@dataclass
class LendingModel:
    """A broker that sends these frames one by one, consumers, and the I/O thread. `missing` is a guard left out.

    Each consumer looks so many times while it is fast. Then it is slow and goes on for ever ("s"), or goes away ("a").
    One that only settles ("w") sends so often, each time a "1" and a "2", of which the socket may take one at first.
    """

    frames: str
    consumers: tuple[tuple[int, str], ...]
    lends: tuple[bool, ...] = (True,)  # whether the I/O thread lends it for reading; the last of them goes on
    missing: str = ""
    socket: str = ""
    rest: str = ""  # what was read, and not taken
    taken: str = ""
    worker_queue: int = 0
    locked: bool = True  # by the I/O thread, in the beginning
    usable: bool = False
    readable: bool = False
    unwatched: bool = False
    left: bool = False
    sent: str = ""
    unsent: str = ""
    full: bool = True  # the socket takes one of two octets, this once
    wakes: int = 0
    sleepers: int = 0
    away: int = 0
    faults: list[str] = field(default_factory=list)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        return [self.broker(), *(self.consume(*one) for one in self.consumers), self.serve()]

    def broker(self) -> Steps:
        for one in self.frames:
            yield None
            self.socket += one

    def take(self) -> None:
        self.worker_queue += self.rest[0] == "d"
        self.taken, self.rest = self.taken + self.rest[0], self.rest[1:]

    # A thread that consumes ---------------------------------------------------------------------------------------

    def consume(self, looks: int, then: str) -> Steps:
        if then == "w":
            for _ in range(looks):
                yield from self.write()
            looks = 0
        for _ in range(looks):
            yield None
            if self.worker_queue:
                self.worker_queue -= 1
            elif self.readable and not self.sleepers:
                yield from self.read()
            else:
                yield from self.watch()
        while then == "s":
            yield None
            if self.worker_queue:
                self.worker_queue -= 1
            else:
                yield from self.sleep()
        self.away += 1

    def read(self) -> Steps:
        yield None
        if self.locked:
            return
        self.locked = True
        if self.kept("looks again when it has borrowed") and not self.readable:
            self.locked = False
            return
        if not self.readable:
            self.faults.append("it is read although it is not lent")
        yield None
        if not self.sleepers or not self.kept("unwatches only while no thread sleeps"):
            self.unwatched = True
        yield None
        self.rest, self.socket = self.rest + self.socket, ""
        while self.rest and (self.rest[0] == "d" or not self.kept("leaves all from the first other frame on")):
            if self.rest[0] == "f":
                self.faults.append("a frame is taken that is for the I/O thread")
            self.take()
        self.left = bool(self.rest)
        yield from self.give_back()

    def give_back(self) -> Steps:
        left = self.left
        if left and self.kept("is not borrowed while something is left"):
            self.usable = self.readable = False
        yield None
        self.locked = False
        if left and self.kept("wakes the I/O thread for what is left"):
            yield None
            self.wakes += 1

    def write(self) -> Steps:
        yield None
        if self.locked or not self.usable:
            return  # it asks the I/O thread
        self.locked = True
        yield None
        if self.full:
            self.full, self.left = False, True
            self.sent, self.unsent = self.sent + "1", "2"
        else:
            self.sent += "12"
        yield from self.give_back()

    def watch(self) -> Steps:
        yield None
        self.unwatched = False

    def sleep(self) -> Steps:
        if self.kept("counts itself before it watches"):
            yield None
            self.sleepers += 1
        if self.kept("watches before it sleeps"):
            yield from self.watch()
        if not self.kept("counts itself before it watches"):
            yield None
            self.sleepers += 1
        yield lambda: self.worker_queue > 0
        self.sleepers -= 1

    # The I/O thread -----------------------------------------------------------------------------------------------

    def is_late(self) -> bool:
        """Whether the timer finds that no thread borrows any more; it runs while reading is lent."""
        all_away = self.away == len(self.consumers)
        return self.unwatched and self.readable and all_away and self.kept("takes the reading back in time")

    def has_come(self) -> bool:
        return bool(self.socket) and not self.unwatched

    def serve(self) -> Steps:
        turn = 0
        while True:
            yield None
            self.usable, self.readable = True, self.lends[min(turn, len(self.lends) - 1)]
            turn += 1
            if not self.readable and self.kept("watches what it does not lend"):
                self.unwatched = False
            yield None
            self.locked = False
            yield lambda: self.wakes > 0 or self.has_come() or self.is_late()
            late, come, self.wakes = self.is_late(), self.has_come(), 0
            self.usable = self.readable = False
            yield lambda: not self.locked
            self.locked = True
            self.usable = self.readable = False
            if late:
                self.unwatched = False
            if self.left and self.kept("does what was left"):
                self.left = False
                self.sent, self.unsent = self.sent + self.unsent, ""
                yield from self.take_all()
            if come:
                yield None
                self.rest, self.socket = self.rest + self.socket, ""
                yield from self.take_all()

    def take_all(self) -> Steps:
        while self.rest:
            yield None
            self.take()

    def check(self, finished: list[bool]) -> None:
        assert not self.faults, self.faults[0]
        assert finished[0]
        assert not self.socket + self.rest, "something has come, and no thread takes it"
        assert self.taken == self.frames, "the order is another"
        assert not self.unsent, "something is not sent"
        assert not self.sent.replace("12", ""), "what is sent is cut"
