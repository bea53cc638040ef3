"""A broker and processes with limits of a group, in virtual time: real members and fair queues, messages by hand.

The broker delivers the messages of a connection in order. A connection can be closed, which both sides see; cut off in
silence, which the broker notices later; and a process can be killed. What is in hand is counted here, and not by the
parts under test.
"""

from __future__ import annotations

import queue
import random
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from fairsched import FairQueue, Limit
from fairsched.consumer.group_limits.group_limits import group_limit
from fairsched.consumer.group_limits.holder import Holder
from fairsched.consumer.group_limits.limit_message import decode, encode
from fairsched.consumer.group_limits.member import BEATS, GOT, NEWS, OLDEST, Member
from fairsched.scheduling._permits import Permits
from fairsched.scheduling.limit import JointName

#: Seconds after which the broker closes a connection that is cut off.
NOTICED = 8.0


@dataclass
class Returned:
    """A message that the broker gives back since its queue is gone."""

    queue: str


@dataclass
class Process:
    """A process: alive until it is killed, connected while `queue` is set."""

    number: int
    fair: FairQueue
    member: Member
    queue: str = ""
    alive: bool = True
    cut: bool = False
    #: The broker has closed the connection, and the process does not know it yet.
    half: bool = False
    #: What the process sends reaches the broker, and nothing comes back.
    deaf: bool = False
    #: The process has left its connection, which the broker still has.
    left_alive: bool = False
    #: When the connection was cut.
    cut_at: float = 0.0
    #: When the process notices that its connection is lost, and when it connects again.
    notices: float = 0.0
    returns: float = 0.0
    #: Until when it does nothing.
    frozen: float = 0.0
    connections: int = 0
    away: float = 0.0
    left: float = 0.0
    hand: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    #: Messages of the keeper's queue that the process has not read yet.
    socket: deque[bytes] = field(default_factory=deque)
    #: Messages on their way to the broker, which a cut holds up.
    sent: deque[tuple[str, str, bytes]] = field(default_factory=deque)


class World:
    """Processes, their broker, and one limit for all slots; perhaps with a limit of slots together, and a total."""

    def __init__(
        self,
        processes: int,
        limit: Limit,
        seed: int = 0,
        lease: float = 60.0,
        *,
        named: Limit | None = None,
        of_name: str = "",
        total: Limit | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.limit, self.lease = limit, lease
        #: The limit of the slots in `of_name` together, and that of all.
        self.named, self.of_name, self.total = named, of_name, total
        self.now = 1000.0
        self.queues: dict[str, deque[bytes | Returned]] = {}
        #: Messages for the keeper, with the time of their arrival.
        self.keepers: deque[tuple[float, bytes]] = deque()
        #: Messages of the keeper's queue that the broker sends at most to a process which does not read them.
        self.socket = 40
        self.consumers: list[int] = []
        self.processes: list[Process] = []
        self.handled: Counter[str] = Counter()
        self.begun: list[tuple[float, str]] = []
        self.most: Counter[str] = Counter()
        for _ in range(processes):
            self.add()

    def add(self) -> Process:
        number = len(self.processes)
        fair = FairQueue(default_quantum=1, clock=lambda: self.now, limit=self.limit, total_limit=self.total)
        for slot in self.of_name:
            fair.set_limit(slot, [self.limit, self.named])

        def limit_of(slot: Hashable) -> object:
            joint = isinstance(slot, JointName)
            return group_limit((self.total if slot.name is None else self.named) if joint else self.limit)

        holder = Holder(f"p{number}", self.lease, Permits(fair), str, limit_of)  # type: ignore[arg-type]
        one = Process(number, fair, None)  # type: ignore[arg-type]
        one.member = Member(
            "test",
            holder,
            fair,
            Permits(fair),
            lambda key, message: one.sent.append(("exchange", key, encode(message))),
            lambda whose, message: one.sent.append(("queue", whose, encode(message))),
        )
        self.processes.append(one)
        one.left = self.now
        self.connect(one)
        return one

    # Connections -------------------------------------------------------------------------------------------------

    def clock(self, one: Process) -> float:
        return self.now - one.away

    def connect(self, one: Process) -> None:
        assert one.alive
        assert not one.queue
        one.connections += 1
        one.queue = f"q{one.number}.{one.connections}"
        one.cut = one.deaf = one.left_alive = False
        one.away += self.now - one.left
        self.queues[one.queue] = deque()
        self.consumers.append(one.number)
        one.member.joined(one.queue, self.clock(one))
        self.settle(one)

    def drop(self, one: Process) -> None:
        """The broker closes a connection; what reached it counts."""
        self.queues.pop(one.queue, None)
        if one.number in self.consumers:
            self.consumers.remove(one.number)
        one.sent.clear()
        one.socket.clear()
        one.queue = ""

    def close(self, one: Process) -> None:
        """Both sides lose the connection at once."""
        self.flush(one)
        self.drop(one)
        one.left = self.now
        one.returns = self.now + self.random.random() * 2
        one.member.lost()

    def half_close(self, one: Process) -> None:
        """The broker closes a connection; the process hears nothing of that."""
        self.shut(one)
        one.notices = float("inf")

    def shut(self, one: Process) -> None:
        """The broker has no connection to a process any more, which does not know it yet."""
        one.half, one.cut = True, False
        self.queues.pop(one.queue, None)
        self.consumers.remove(one.number)
        one.sent.clear()

    def freeze(self, one: Process, seconds: float) -> None:
        """Let a process do nothing for so long; its connection stays."""
        one.frozen = self.now + seconds

    def cut_off(self, one: Process) -> None:
        """Cut a connection off in silence: the broker notices after `NOTICED`, the process some time after that."""
        one.cut = True
        one.cut_at = self.now
        one.notices = self.now + NOTICED * (1 + self.random.random())

    def deafen(self, one: Process) -> None:
        """Lose what the broker sends to a process from now on."""
        one.deaf = True

    def look(self, one: Process) -> None:
        """Let the broker and the process notice what they can notice by now, and the process connect again."""
        if one.cut and self.now - one.cut_at >= NOTICED:
            self.shut(one)
        if one.queue and not one.left_alive and one.member.is_cut_off(self.clock(one)):
            self.leave_alive(one)
        elif one.half and self.now >= one.notices:
            self.notice(one)
        if not one.queue and one.alive and self.now >= one.returns:
            self.connect(one)

    def leave_alive(self, one: Process) -> None:
        """Let a process leave a connection by which nothing comes."""
        one.member.leave_alive()
        one.left = self.now
        if one.cut or (one.half and one.notices < float("inf")):
            one.left_alive = True
        elif one.half:
            self.notice(one)
        else:
            one.returns = self.now + self.random.random() * (10 if one.deaf else 0.5)
            one.deaf = False
            self.flush(one)
            self.drop(one)

    def notice(self, one: Process) -> None:
        """Let a process know that the broker has closed its connection."""
        if not one.left_alive:
            one.left = self.now
        one.half, one.left_alive, one.queue = False, False, ""
        one.sent.clear()
        one.socket.clear()
        one.returns = self.now + self.random.random() * 0.5
        one.member.lost()

    def kill(self, one: Process) -> None:
        if one.queue:
            self.drop(one)
        one.alive = one.cut = one.half = one.deaf = one.left_alive = False
        one.hand.clear()

    def living(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    # Messages ----------------------------------------------------------------------------------------------------

    def flush(self, one: Process) -> None:
        """Route what a process has sent."""
        while one.sent and not one.cut and not one.half:
            kind, to, body = one.sent.popleft()
            if kind == "queue":
                if to in self.queues:
                    self.queues[to].append(body)
                else:  # comes back behind what is on its way to the process
                    self.queues[one.queue].append(Returned(to))
                continue
            if to in (BEATS, NEWS, GOT):
                for queue_ in self.queues.values():
                    queue_.append(body)
            if to not in (NEWS, GOT):
                self.keepers.append((self.now, body))
                self.feed_keeper()

    def deliver(self, one: Process, most: int = 10**9) -> None:
        """Deliver at most so many messages to a process."""
        if not one.queue or one.cut or one.half or one.deaf:
            return
        waiting = self.queues[one.queue]
        while waiting and most:
            if isinstance(waiting[0], Returned):
                while one.socket and most:
                    self.deliver_to_keeper(one)
                    most -= 1
                if not one.socket:
                    one.member.undeliverable(waiting.popleft().queue, self.clock(one))
                continue
            one.member.hear(decode(waiting.popleft()), self.clock(one))
            most -= 1
        self.feed_keeper()
        while one.socket and most:
            self.deliver_to_keeper(one)
            most -= 1

    def deliver_to_keeper(self, one: Process) -> None:
        one.member.hear_as_keeper(decode(one.socket.popleft()), self.clock(one))
        self.feed_keeper()

    def feed_keeper(self) -> None:
        """Send what has not waited for too long to the process that is first to consume the keeper's queue."""
        while self.keepers:
            if self.now - self.keepers[0][0] < OLDEST:
                if not self.consumers:
                    return
                socket = self.processes[self.consumers[0]].socket
                if len(socket) >= self.socket:
                    return
                socket.append(self.keepers[0][1])
            self.keepers.popleft()

    def settle(self, one: Process) -> None:
        if one.alive and one.queue and not one.left_alive:
            one.member.step(True, self.clock(one))
            self.flush(one)

    # Time --------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass; all connected processes hear and do everything."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self.round()

    def round(self) -> None:
        for one in self.processes:
            if one.frozen > self.now:
                continue
            if one.cut or one.half or one.deaf or one.left_alive:
                self.look(one)
            self.deliver(one)
            self.settle(one)
            self.begin(one)

    # Work --------------------------------------------------------------------------------------------------------

    def begin(self, one: Process, most: int = 10**9) -> int:
        """Take messages that may be handled; check that no limit is exceeded."""
        taken = 0
        while one.alive and taken < most:
            try:
                slot, _ = one.fair.get_nowait()
            except queue.Empty:
                return taken
            taken += 1
            self.begun.append((self.now, slot))
            one.hand.append(slot)
            count = sum(each.hand.count(slot) for each in self.processes)
            self.most[slot] = max(self.most[slot], count)
            if self.limit.concurrency is not None:
                assert count <= self.limit.concurrency, f"{count} of {slot} in hand at {self.now - 1000:.2f}"
            self.check_joint(self.named, self.of_name)
            self.check_joint(self.total, None)
        return taken

    def check_joint(self, limit: Limit | None, slots: str | None) -> None:
        """Check a limit of several slots, or of all."""
        if limit is None or limit.concurrency is None:
            return
        count = sum(slots is None or slot in slots for each in self.processes for slot in each.hand)
        assert count <= limit.concurrency, f"{count} of {limit} in hand at {self.now - 1000:.2f}"

    def end(self, one: Process, most: int = 10**9) -> None:
        """End handlers."""
        for _ in range(min(most, len(one.hand))):
            slot = one.hand.pop(0)
            one.fair.release(slot)
            self.handled[slot] += 1
