"""Every interleaving of waiters, wakers and time-outs, by the protocol of core/parking.pxd.

The steps below are those of _waitingroom.pyx and _fairqueue.pyx: what they do with the exclusion held is one step, and
what they do without it is one step each. Each guard is then removed, and the model must find the fault.
"""

from __future__ import annotations

import pytest
from explore import Fault, Step, schedules


class ParkingModel:
    """Getters, some of which may time out, and putters of one item each."""

    def __init__(
        self, getters: int, putters: int, timeouts: int, *, collects: bool = True, registers_with_the_look: bool = True
    ) -> None:
        self.getters, self.putters, self.timeouts = getters, putters, timeouts
        self.collects = collects
        self.registers_with_the_look = registers_with_the_look
        self.queued = self.registered = self.permits = self.got = 0
        self.expired = [False] * getters

    def threads(self) -> list[Step]:
        timers = [self.timer(me) for me in range(self.timeouts)]
        return [self.getter(me) for me in range(self.getters)] + [self.putter() for _ in range(self.putters)] + timers

    def timer(self, me: int) -> Step:
        yield None
        self.expired[me] = True

    def putter(self) -> Step:
        yield None
        self.queued += 1
        woken = min(1, self.registered)
        self.registered -= woken
        if woken:
            yield None  # the exclusion is given up; then unpark
            self.permits += woken

    def getter(self, me: int) -> Step:
        yield None
        while not self.queued:
            if not self.registers_with_the_look:
                yield None
            self.registered += 1
            yield lambda: self.permits > 0 or self.expired[me]  # park
            if self.permits:
                self.permits -= 1
                yield None  # the exclusion is taken again
                continue
            yield None  # timed out; withdraw with the exclusion held
            if self.registered > 0:
                self.registered -= 1
                if not self.queued:
                    return
            elif self.collects:
                yield lambda: self.permits > 0  # a wake-up is under way: park(-1)
                self.permits -= 1
                yield None
                if not self.queued:
                    return
        self.queued -= 1
        self.got += 1

    def check(self, finished: list[bool]) -> None:
        asleep = finished[: self.getters].count(False)
        assert not (self.queued and asleep), "an item is queued and a getter sleeps"
        assert self.registered == asleep, "registrations and sleepers differ"
        assert self.permits == 0, "a permit is left over"
        assert self.got + self.queued == self.putters, "an item is lost"


@pytest.mark.parametrize(("getters", "putters", "timeouts"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 0), (2, 2, 1)])
def test_no_wake_up_is_lost_or_left_over(getters: int, putters: int, timeouts: int) -> None:
    explored = sum(1 for _ in schedules(lambda: ParkingModel(getters, putters, timeouts), preemptions=3))
    assert explored > 10


def test_without_collecting_the_wake_up_under_way_a_permit_is_left_over() -> None:
    with pytest.raises(Fault, match=r"left over|sleeps|differ"):
        list(schedules(lambda: ParkingModel(2, 2, 1, collects=False), preemptions=3))


def test_registering_after_the_look_loses_a_wake_up() -> None:
    with pytest.raises(Fault, match="an item is queued and a getter sleeps"):
        list(schedules(lambda: ParkingModel(1, 1, 0, registers_with_the_look=False), preemptions=2))
