"""One permit, two members and two keepers, step by step: the order of grants, returns, reports and epochs.

The second keeper takes over while the first one does not know it and goes on granting. Messages from a keeper to a
member arrive in their order, at any time; so do those of a member. A member may lose its connection once: then it loses
what was on its way to it, and says anew what it holds. Or the first keeper ends, and a member is cut off in silence:
its handlers go on, and the second keeper counts at it what it told the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

Steps = Iterator[Callable[[], bool] | None]
LIMIT = 1
#: What keeps two messages from being in hand, each of which the model can leave out.
GUARDS = (
    "a member ignores older keepers",
    "a keeper waits for reports",
    "a report has what is in hand",
    "a permit in hand is not returned",
    "a grant to a lost connection is not used",
    "a keeper counts a grant when it is sent",
    "a grant is used when the others know of it",
)


@dataclass
class Member:
    """A process: what it holds, and the messages on their way to it, as (epoch, what, connection)."""

    permits: int = 0
    hand: int = 0
    epoch: int = 1
    connection: int = 0
    queue: list[tuple[int, str, int]] = field(default_factory=list)
    #: Permits that are not used yet, since the others do not know of them.
    unsaid: int = 0
    #: What the others know of, what the member tells them next, and whether it is cut off.
    told: int = 0
    telling: list[int] = field(default_factory=list)
    cut: bool = False

    def state(self) -> Hashable:
        found = self.permits, self.hand, self.epoch, self.connection, tuple(self.queue)
        return *found, self.unsaid, self.told, tuple(self.telling), self.cut


@dataclass
class Keeper:
    """A keeper: what it counts at each member (None: no report yet), and the messages on their way to it."""

    number: int
    counted: list[int | None]
    alive: bool = True
    queue: list[tuple[int, str, int, int]] = field(default_factory=list)  # member, what, permits, connection
    connections: list[int] = field(default_factory=lambda: [0, 0])

    def state(self) -> Hashable:
        return tuple(self.counted), self.alive, tuple(self.queue), tuple(self.connections)


@dataclass
class PermitsModel:
    """The steps of members and keepers.

    `takeover`: a second keeper begins; `reconnects`: members that lose their connection once; `lost`: the first keeper
    ends, and the first member is cut off in the same moment; `heard`: the second keeper has heard of that member.
    """

    takeover: bool = True
    reconnects: tuple[int, ...] = ()
    missing: str = ""
    messages: int = 2
    lost: bool = False
    heard: bool = True
    members: list[Member] = field(default_factory=list)
    keepers: list[Keeper] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)

    def kept(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self.missing

    def threads(self) -> list[Steps]:
        self.members = [Member(), Member()]
        self.keepers = [Keeper(1, [0, 0])]
        self.handled = [0, 0]
        found = [step(number) for number in (0, 1) for step in (self.work, self.give_back, self.hear)]
        found += [self.keep(0), self.take(0)]
        if self.takeover:
            self.keepers.append(Keeper(2, [None, None], alive=False))
            found += [self.keep(1), self.take(1), self.lose() if self.lost else self.begin()]
        if self.lost:
            found += [self.tell(0), self.tell(1)]
        return found + [self.reconnect(number) for number in self.reconnects]

    def whole_state(self) -> Hashable:
        members = tuple(one.state() for one in self.members)
        return members, tuple(one.state() for one in self.keepers), tuple(self.handled)

    def check(self, _finished: list[bool]) -> None:
        assert sum(one.hand for one in self.members) <= LIMIT

    # A member -----------------------------------------------------------------------------------------------------

    def work(self, number: int) -> Steps:
        one = self.members[number]
        while self.handled[number] < self.messages:
            yield lambda: one.permits - one.unsaid > one.hand
            one.hand += 1
            together = sum(each.hand for each in self.members)
            assert together <= LIMIT, f"{together} messages are in hand"
            yield None
            one.hand -= 1
            self.handled[number] += 1

    def give_back(self, number: int) -> Steps:
        """Return a permit that nothing in hand needs; the keeper has recalled it."""
        one = self.members[number]
        while True:
            yield lambda: one.permits > (one.hand if self.kept("a permit in hand is not returned") else 0)
            one.permits -= 1
            one.unsaid = min(one.unsaid, one.permits)
            self.say(number, "return", 1)

    def hear(self, number: int) -> Steps:
        one = self.members[number]
        while True:
            yield lambda: bool(one.queue) and not one.cut
            epoch, what, connection = one.queue.pop(0)
            if connection != one.connection and self.kept("a grant to a lost connection is not used"):
                continue
            if epoch > one.epoch:
                one.epoch = epoch
                self.report(number)
            elif what == "grant" and (epoch == one.epoch or not self.kept("a member ignores older keepers")):
                one.permits += 1
                if self.lost and self.kept("a grant is used when the others know of it"):
                    one.unsaid += 1
                    one.telling.append(one.permits)

    def tell(self, number: int) -> Steps:
        """Pass on what a member tells the others, which comes back to it."""
        one = self.members[number]
        while True:
            yield lambda: bool(one.telling) and not one.cut
            one.told = one.telling.pop(0)
            yield None
            if not one.telling and not one.cut:
                one.unsaid = 0

    def report(self, number: int) -> None:
        one = self.members[number]
        holds = one.permits if self.kept("a report has what is in hand") else one.permits - one.hand
        self.say(number, "report", holds)

    def say(self, number: int, what: str, permits: int) -> None:
        one = self.members[number]
        if one.cut:
            return
        self.keepers[one.epoch - 1].queue.append((number, what, permits, one.connection))

    # A keeper -----------------------------------------------------------------------------------------------------

    def keep(self, index: int) -> Steps:
        """Grant a free permit to either member."""
        keeper = self.keepers[index]

        def free() -> bool:
            if not keeper.alive or sum(len(one.queue) for one in self.members) >= 3:
                return False
            if None in keeper.counted and self.kept("a keeper waits for reports"):
                return False
            return sum(count or 0 for count in keeper.counted) < LIMIT

        for number in (0, 1, 0, 1):
            yield free
            if self.members[number].cut:
                continue  # it is not heard
            self.members[number].queue.append((keeper.number, "grant", keeper.connections[number]))
            if self.kept("a keeper counts a grant when it is sent"):
                keeper.counted[number] = (keeper.counted[number] or 0) + 1

    def take(self, index: int) -> Steps:
        """Take what members say."""
        keeper = self.keepers[index]
        while True:
            yield lambda: keeper.alive and bool(keeper.queue)
            number, what, permits, connection = keeper.queue.pop(0)
            if connection < keeper.connections[number]:
                continue
            keeper.connections[number] = connection
            if what == "report":
                keeper.counted[number] = permits
            elif keeper.counted[number]:
                keeper.counted[number] = (keeper.counted[number] or 0) - permits

    # What happens -------------------------------------------------------------------------------------------------

    def begin(self) -> Steps:
        yield None
        newer = self.keepers[1]
        newer.alive = True
        for number, one in enumerate(self.members):
            newer.connections[number] = one.connection
            one.queue.append((2, "epoch", one.connection))

    def lose(self) -> Steps:
        """End the first keeper, and cut the first member off; the second keeper counts what it has heard of it."""
        yield None
        first, newer = self.keepers
        cut = self.members[0]
        first.alive, newer.alive, cut.cut = False, True, True
        first.queue.clear()
        newer.counted[0] = cut.told if self.heard else 0
        self.members[1].queue.append((2, "epoch", self.members[1].connection))

    def reconnect(self, number: int) -> Steps:
        """Lose the connection; what was on its way stays on its way. The permits of what is in hand are kept."""
        one = self.members[number]
        yield None
        one.connection += 1
        one.permits = one.hand
        self.report(number)


#: What keeps the permits of a killed process from staying taken.
FINDINGS = ("members look whether others are gone", "members tell the keeper what they found")


@dataclass
class KilledModel:
    """A member is killed that has the only permit; then one keeper after the other is, and the next one takes over.

    A queue that is found gone soon says that its process was killed. Once time has passed, it may have been cut off, so
    the permit stays taken. Time passes when all living processes have looked that do. The last keeper hears of the
    killed member from others only, and looks late. In the end the permit has to be free.
    """

    keepers: int = 4
    missing: str = ""
    #: When each process found the queue gone; None: it has not looked.
    found: list[str | None] = field(default_factory=list)
    alive: list[bool] = field(default_factory=list)
    keeper: int = 0
    killed: bool = False
    late: bool = False
    free: bool = False

    def threads(self) -> list[Steps]:
        self.found, self.alive = [None] * self.keepers, [True] * self.keepers
        members = range(self.keepers)
        steps = (self.look, self.keep)
        return [self.kill(), self.pass_time(), *(step(number) for number in members for step in steps)]

    def whole_state(self) -> Hashable:
        return tuple(self.found), tuple(self.alive), self.keeper, self.killed, self.late, self.free

    def check(self, _finished: list[bool]) -> None:
        assert self.free, "the permit stays taken"

    def looks(self, number: int) -> bool:
        """Return whether a process looks soon: the keeper does, and the others do while the keeper is not heard."""
        if number == self.keepers - 1 or not self.alive[number]:
            return False
        return number == self.keeper or self.missing != FINDINGS[0]

    def kill(self) -> Steps:
        """Kill the member, and all keepers but two: the last one, and one that tells it what it found."""
        yield None
        self.killed = True
        for number in range(self.keepers - 2):
            yield None
            self.alive[number] = False
            self.keeper = number + 1 if number < self.keepers - 3 else self.keepers - 1

    def pass_time(self) -> Steps:
        yield lambda: self.killed and all(self.found[one] for one in range(self.keepers) if self.looks(one))
        self.late = True

    def look(self, number: int) -> Steps:
        yield lambda: self.killed and self.alive[number] and (self.late or self.looks(number))
        self.found[number] = "late" if self.late else "soon"

    def keep(self, number: int) -> Steps:
        """Free the permit if the keeper knows that the queue was found gone soon."""
        yield lambda: self.keeper == number and "soon" in self.told(number)
        self.free = True

    def told(self, number: int) -> list[str | None]:
        """Return what the keeper knows: what it found, and what living members tell it."""
        if self.missing == FINDINGS[1]:
            return [self.found[number]]
        return [what for what, alive in zip(self.found, self.alive, strict=True) if alive]
