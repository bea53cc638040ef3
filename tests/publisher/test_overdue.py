"""How long messages have waited for the broker's answer."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock

from fairsched.publisher.overdue import PERIOD, OverdueMessages

LONGEST = 240.0


def test_a_message_is_overdue_when_it_has_waited_too_long() -> None:
    clock = ManualClock()
    watch = OverdueMessages(clock)
    assert not watch.look(0, 0, LONGEST)
    for seconds in range(1, 240):
        clock.now = float(seconds)
        assert not watch.look(1, 0, LONGEST)
    clock.now = 242.0
    assert watch.look(1, 0, LONGEST)
    assert not watch.look(1, 1, LONGEST)


def test_what_was_put_before_this_process_was_stopped_is_overdue() -> None:
    clock = ManualClock()
    watch = OverdueMessages(clock)
    assert not watch.look(5, 5, LONGEST)
    clock.now = 600.0
    assert watch.is_due()
    assert watch.look(6, 5, LONGEST)
    assert not watch.look(6, 6, LONGEST)


def test_an_idle_publisher_has_nothing_overdue() -> None:
    clock = ManualClock()
    watch = OverdueMessages(clock)
    for _ in range(1000):
        clock.now += PERIOD
        assert not watch.look(7, 7, LONGEST)


def test_what_is_forgiven_is_overdue_no_more_and_what_follows_is() -> None:
    clock = ManualClock()
    watch = OverdueMessages(clock)
    watch.look(3, 0, LONGEST)
    clock.now = 300.0
    assert watch.look(3, 0, LONGEST)
    watch.forgive(3)
    assert not watch.look(3, 0, LONGEST)
    watch.look(4, 0, LONGEST)
    clock.now = 600.0
    assert watch.look(4, 0, LONGEST)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.125, 1.0, 5.0, 100.0, 241.0]), st.integers(0, 3), st.integers(0, 3), st.booleans()
        ),
        max_size=60,
    )
)
def test_no_message_waits_unnoticed(steps: list[tuple[float, int, int, bool]]) -> None:
    """Messages are confirmed in their order; what waited longer than the limit is always found, younger ones seldom."""
    clock = ManualClock()
    watch = OverdueMessages(clock)
    waiting: deque[float] = deque()
    published = settled = 0
    noted = 0.0
    for seconds, puts, confirms, looks in steps:
        waiting.extend([clock.now] * puts)
        published += puts
        clock.now += seconds
        for _ in range(min(confirms, len(waiting))):
            waiting.popleft()
            settled += 1
        if looks:
            found = watch.look(published, settled, LONGEST)
            oldest = clock.now - waiting[0] if waiting else 0.0
            assert found or oldest < LONGEST
            assert not found or oldest > 0 or clock.now - noted > LONGEST - PERIOD
            noted = clock.now
