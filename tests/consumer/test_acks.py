"""The moment at which acknowledgements leave: counted in frames and writes, without a broker and without time."""

from __future__ import annotations

import itertools

import pytest

from fairsched.consumer.channel import ChannelCallbacks, ConsumerChannel
from fairsched.consumer.cost import cost_model
from fairsched.consumer.prefetch.arithmetic import default_windows
from fairsched.consumer.prefetch.measure import Measurements
from fairsched.delivery._ackpolicy import PERIOD, SLOWEST_PERIOD, AckPolicy
from fairsched.delivery._counters import Counters
from fairsched.delivery._delivery import Intake, LentConnection, Message, Settlements


class Wire:
    """Queues that are always backlogged at a broker which answers at once, and a worker that takes them in turn."""

    is_open = shortcut = True
    channel_number = 1

    def __init__(self, windows: list[int]) -> None:
        self.frames = self.writes = 0
        self.acks = AckPolicy(sum(windows))
        self.intake = Intake(self, Counters(), self.acks, key=None, cost=cost_model(None), defer=lambda: None)
        lent = LentConnection(self.intake, None, lambda: None)
        self.settlements = Settlements(Counters(), self.acks, lent, self.request_flush)
        self.sinks: dict[int, object] = {}
        self.connection = self
        self.queues = [self.channel(f"q-{number}", window) for number, window in enumerate(windows)]
        self.settled = [0] * len(windows)
        for found in self.queues:
            found._channel = self
            self.deliver(found)

    def channel(self, queue: str, window: int) -> ConsumerChannel:
        callbacks = ChannelCallbacks(
            filled=lambda _: None, changed=lambda *_: None, failed=lambda *_: None, leave=lambda _: None
        )
        return ConsumerChannel(queue, window, self.settlements, callbacks, Measurements())

    def put_many(self, slots: list[str], messages: list[Message], costs: None) -> list[Message]:
        return []

    def deliver(self, found: ConsumerChannel) -> None:
        count = found.window - found.unsettled
        for _ in range(count):
            found.deliver(found.ledger.delivered + 1, False, b"", b"", b"")
        self.intake.drain()

    def send_settlements(self, frames: bytes) -> None:
        self.frames += len(frames) // 21

    def request_flush(self) -> None:
        self.writes += 1
        self.acks.sending()
        for found in self.settlements.take_unsent():
            found.flush()
            self.deliver(found)

    def handle(self, number: int) -> None:
        """Handle a message of one queue; the worker waits for it if there is none, as the engine would have it do."""
        found = self.queues[number]
        if found.ledger.outstanding == 0:
            self.request_flush()
        self.settled[number] += 1
        found.settle(self.settled[number], found.ledger.ACK)

    def run(self, count: int, *numbers: int) -> None:
        for number in itertools.islice(itertools.cycle(numbers or range(len(self.queues))), count):
            self.handle(number)


def test_many_queues_need_hardly_more_frames_than_few() -> None:
    """A hundred equal queues, and five, at the default windows: writes are those of the whole window."""
    few, many = (Wire(list(default_windows({f"q-{n}": 1.0 for n in range(count)}).values())) for count in (5, 100))
    for wire in (few, many):
        wire.run(20_000)
    assert many.writes <= few.writes <= 20_000 / 100
    # Each write acknowledges all queues, by one frame each.
    assert many.frames <= 100 * many.writes
    assert many.frames <= 20_000 / 4


@pytest.mark.parametrize(("windows", "most"), [([5] * 100, 200), ([1] * 100, 3400), ([500], 200), ([50] * 10, 200)])
def test_writes_follow_from_what_is_here_of_all_queues(windows: list[int], most: int) -> None:
    wire = Wire(windows)
    wire.run(20_000)
    assert wire.writes <= most


@pytest.mark.parametrize("active", [1, 5])
def test_queues_that_are_alone_with_work_are_told_before_they_are_dry(active: int) -> None:
    """The other queues are empty, so the whole window is never here: half of one's own is enough."""
    wire = Wire([5] * active)
    wire.acks.count(5 * active, 500)
    wire.queues += [wire.channel(f"idle-{number}", 5) for number in range(95)]
    for _ in range(1000):
        wire.run(1, *range(active))
        assert sum(found.ledger.outstanding for found in wire.queues) >= 2 * active


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_small_window_alone_is_told_at_once(window: int) -> None:
    wire = Wire([window])
    wire.run(100)
    assert wire.writes == 100


def test_a_queue_that_is_out_does_not_wait_for_the_others() -> None:
    """Window 8 beside 1 000: told when half of it is settled and a sixteenth of all, not at a quarter of all."""
    wire = Wire([8, 1000])
    wire.run(62, 1)
    wire.run(3, 0)
    assert wire.writes == 0
    wire.run(1, 0)
    assert wire.writes == 1


def test_what_stays_here_unsettled_delays_no_others() -> None:
    """Deferred messages make what is here look large; half of a window is enough then."""
    wire = Wire([100])
    wire.settled[0] = 60  # the first 60 are kept
    wire.run(25)
    assert wire.writes == 1


def test_after_a_pause_a_settlement_leaves_at_once() -> None:
    """While handlers take long the timer is slow; what is settled then need not wait for it."""
    wire = Wire([500])
    for _ in range(10):
        wire.acks.looked(False)
    assert wire.acks.period == SLOWEST_PERIOD
    wire.run(1)
    assert wire.writes == 1
    wire.acks.wake()
    assert wire.acks.period == PERIOD
    wire.run(1)
    assert wire.writes == 1


def test_what_is_here_and_the_windows_are_counted_without_a_look_at_idle_queues() -> None:
    wire = Wire([10, 20, 30])
    wire.acks.count(1 << 30, 1 << 30)  # so that nothing leaves before it is told to
    assert (wire.settlements.count_here(), wire.settlements.window) == (60, 60)
    for tag in range(1, 11):
        wire.queues[0].settle(tag, wire.queues[0].ledger.ACK)
    assert wire.settlements.count_here() == 60  # the broker has not heard of them
    for found in wire.settlements.take_unsent():
        found.flush()
    assert wire.settlements.count_here() == 50
    wire.queues[1].abandon()
    wire.queues[1].abandon()
    wire.queues[2].set_window(5, 4)
    assert (wire.settlements.count_here(), wire.settlements.window) == (30, 15)
    wire.deliver(wire.queues[0])  # once more, after it had nothing
    assert wire.settlements.count_here() == 40
