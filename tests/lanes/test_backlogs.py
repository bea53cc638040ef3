"""The relay's mover and settler, step by step, with a broker that refuses messages at random."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.relaying import lasts

from fairsched import Lanes
from fairsched.amqp._publishing import PublishWindow
from fairsched.delivery._delivery import Message
from fairsched.lanes import backlogs
from fairsched.lanes.relay import Relay

TENANTS = 6


class Ingress:
    """Where messages come from: notes what is acknowledged."""

    queue = "orders"
    alive = True

    def __init__(self) -> None:
        self.acked: list[int] = []

    def settle(self, tag: int, verdict: int) -> bool:
        self.acked.append(tag)
        return True

    def failed(self, message: Message, error: Exception) -> None:
        raise AssertionError(error)


def sent_messages(frames: bytes) -> list[tuple[str, int]]:
    """Return lane and number of each message that was sent, in its three frames."""
    found: list[tuple[str, int]] = []
    at, lane = 0, ""
    while at < len(frames):
        kind, _, size = struct.unpack_from(">BHL", frames, at)
        payload = frames[at + 7 : at + 7 + size]
        if kind == 1:  # basic.publish: the name of the default exchange is empty
            lane = payload[8 : 8 + payload[7]].decode()
        elif kind == 3:
            found.append((lane, int(payload)))
        at += size + 8
    return found


class World:
    """A relay, and a broker that takes messages in the order in which they were published."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self.chance = chance
        self.ingress = Ingress()
        self.relay = Relay("amqp://localhost", Lanes("orders", key="property:app_id", buckets=2, ordered=True))
        self.window = self.relay._publisher._client.window = PublishWindow(10_000, 1 << 30, lambda: None)
        self.lanes: dict[str, list[int]] = {name: [] for name in self.relay.lanes.bucket_names}
        self.left = [self.message(number) for number in range(1, count + 1)]
        self.arrived = 0
        self.refuses = True
        self.answers: list[tuple[int, bool]] = []
        self.published: list[tuple[str, int]] = []

    def message(self, number: int) -> Message:
        tenant, body = str(number % TENANTS).encode(), b"%d" % number
        header = struct.pack(">HHQHB", 60, 0, len(body), 1 << 3, len(tenant)) + tenant  # with an app_id
        return Message(body, number, False, b"", header, self.ingress)

    # Steps

    def move(self) -> None:
        size = self.chance.randrange(1, 9)
        messages, self.left = self.left[:size], self.left[size:]
        if messages:
            self.relay._move(messages, 0.0)

    def arrive(self) -> None:
        """The broker takes or refuses some of the messages that were published."""
        self.published += sent_messages(self.window.output(1 << 30))
        for _ in range(self.chance.randrange(1, 9)):
            if self.arrived < len(self.published):
                lane, number = self.published[self.arrived]
                self.arrived += 1
                refused = self.refuses and self.chance.random() < 0.3
                if not refused:
                    self.lanes[lane].append(number)
                self.answers.append((self.arrived, refused))

    def answer(self) -> None:
        """The broker confirms some messages, in any order."""
        self.chance.shuffle(self.answers)
        for _ in range(min(len(self.answers), self.chance.randrange(1, 9))):
            tag, refused = self.answers.pop()
            self.window.confirm(tag, False, refused)

    def settle(self) -> None:
        self.relay._settle_confirmed()
        self.relay._backlogs.go_on()
        taken = {number for numbers in self.lanes.values() for number in numbers}
        assert taken.issuperset(self.ingress.acked), "a message is acknowledged that no lane has"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused messages are published again without a pause, and backlogs end as soon as they may."""
    for name in ("QUIET", "FIRST_DELAY", "LONGEST_DELAY"):
        monkeypatch.setattr(backlogs, name, 0.0)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_and_the_last_copies_are_in_order(one_at_a_time: bool, seed: int) -> None:
    world = World(random.Random(seed), 60)
    world.relay._one_at_a_time = world.relay._backlogs._always = one_at_a_time
    steps = [world.move, world.arrive, world.answer, world.settle]
    for _ in range(150):
        world.chance.choice(steps)()
    world.refuses = False
    for _ in range(400):
        if world.left:
            world.move()
        world.arrive()
        world.answer()
        world.settle()
    assert sorted(world.ingress.acked) == list(range(1, 61))
    assert world.relay.stats()["waiting"] == 0
    for lane, numbers in world.lanes.items():
        expected = [n for n in range(1, 61) if world.relay.lanes.bucket_of(str(n % TENANTS)) == lane]
        assert lasts(numbers) == expected
        if one_at_a_time:
            assert numbers == expected
