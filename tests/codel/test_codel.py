"""The CoDel law: published schedules, boundaries, guards, and the checks of its face."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
import threading

import numpy as np
import pytest

from fairsched import CoDel

LAWS = ("rfc", "linux", "linux-q16", "queueing-consumer")
PLENTY = 10**6

#: Milliseconds at which a message goes back: one is taken each millisecond and waited 10; target 5, interval 100.
RFC = [
    100, 200, 271, 329, 379, 424, 464, 502, 538, 571, 603, 633, 662, 689, 716, 742, 767, 791, 815, 838, 860, 882, 903,
    924, 944, 964, 984,
]  # fmt: skip
QUEUEING_CONSUMER = [
    200, 300, 370, 427, 477, 521, 561, 598, 633, 666, 697, 727, 755, 782, 808, 833, 858, 882, 905, 927, 949, 970, 991,
]  # fmt: skip


def returns(law: CoDel, sojourn: float, until: int, origin: int = 0, backlog: int = PLENTY) -> list[int]:
    """Milliseconds, of a clock that starts at `origin`, at which a message goes back; all waited `sojourn` ms."""
    now = np.arange(until, dtype=np.int64) * 1_000_000 + origin
    return np.flatnonzero(law.should_return_many(now - round(sojourn * 1e6), now, backlog)).tolist()


@pytest.mark.parametrize(
    ("law", "expected"),
    [("rfc", RFC), ("linux", [moment + 1 for moment in RFC]), ("queueing-consumer", QUEUEING_CONSUMER)],
)
def test_the_published_schedules(law: str, expected: list[int]) -> None:
    assert returns(CoDel(law=law), 10, 1001) == expected
    scalar = CoDel(law=law)
    assert [k for k in range(1001) if scalar.should_return((k - 10) / 1000, k / 1000, PLENTY)] == expected


@pytest.mark.parametrize(
    ("law", "expected"),
    [("rfc", [20, 40, 55, 66, 76, 85, 93, 101, 108, 115]), ("queueing-consumer", [40, 60, 74, 85, 95, 103, 111, 118])],
)
def test_the_schedule_at_the_articles_parameters(law: str, expected: list[int]) -> None:
    assert returns(CoDel(0.1, 0.02, law=law), 100, expected[-1] + 1) == expected


def test_the_schedule_of_the_kernels_roots() -> None:
    assert returns(CoDel(law="linux-q16"), 10, 360) == [101, 201, 251, 308, 357]


def test_the_exact_schedule() -> None:
    law = CoDel()
    due = []
    for now in range(0, 600_000_000, 100_000):
        law.should_return_many([now - 10_000_000], now, PLENTY)
        if law.drop_next is not None and law.drop_next not in due[-1:]:
            due.append(law.drop_next)
    assert due[0] == pytest.approx(0.2, abs=1e-9)  # the first goes back at 0.1, the second an interval later
    steps = [round(1000 * (later - earlier), 3) for earlier, later in itertools.pairwise(due)]
    assert steps[:8] == [70.711, 57.735, 50.0, 44.721, 40.825, 37.796, 35.355, 33.333]


@pytest.mark.parametrize("law", LAWS)
def test_waiting_the_target_is_waiting_too_long(law: str) -> None:
    assert returns(CoDel(law=law), 5, 1001) == returns(CoDel(law=law), 10, 1001)
    assert returns(CoDel(law=law), 4, 5000) == []


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("min_backlog", [0, 1, 7])
def test_the_last_messages_never_go_back(law: str, min_backlog: int) -> None:
    assert returns(CoDel(law=law, min_backlog=min_backlog), 1000, 5000, backlog=min_backlog) == []
    assert returns(CoDel(law=law, min_backlog=min_backlog), 1000, 1001, backlog=0) == []
    assert returns(CoDel(law=law, min_backlog=min_backlog), 10, 1001, backlog=min_backlog + 1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("origin", [0, -(10**8), -(10**18), 10**18, 2**62 - 10**11])
def test_the_origin_of_the_clock_does_not_matter(law: str, origin: int) -> None:
    origin -= origin % 1_024_000_000  # the coarser clocks tick there
    assert returns(CoDel(law=law), 10, 1001, origin) == returns(CoDel(law=law), 10, 1001)


@pytest.mark.parametrize("law", LAWS)
def test_a_clock_that_runs_backwards_returns_nothing(law: str) -> None:
    judge = CoDel(law=law)
    assert returns(judge, 10, 600)
    assert judge.dropping
    before = judge.stats()
    assert not judge.should_return(-20.0, 0.3, PLENTY)
    assert not judge.dropping
    assert judge.stats()._replace(asked=before.asked, sojourn=before.sojourn) == before._replace(clock_steps=1)
    # It observes anew: another whole interval, and the rate of the beginning.
    assert returns(judge, 10, 1001, 300_000_000)[:3] == returns(CoDel(law=law), 10, 1001, 300_000_000)[:3]


@pytest.mark.parametrize("law", LAWS)
def test_a_message_from_the_future_has_not_waited(law: str) -> None:
    assert returns(CoDel(law=law), -10, 5000) == []


@pytest.mark.parametrize("law", LAWS)
def test_one_pull_after_a_long_silence(law: str) -> None:
    # A buffer without end: the law has returns of ten seconds to make up for.
    judge = CoDel(law=law)
    start = returns(judge, 10, 400)
    now = 10_400_000_000
    verdicts = judge.should_return_many([now - 10_000_000_000] * 5000, now, PLENTY)
    assert verdicts[0]
    assert int(np.argmin(verdicts)) > 1000  # in one pull
    bounded = CoDel(law=law, max_returns=8)
    assert returns(bounded, 10, 400) == start
    verdicts = bounded.should_return_many([now - 10_000_000_000] * 5000, now, PLENTY)
    assert np.flatnonzero(verdicts).tolist() == list(range(8))
    assert bounded.stats().capped == 1
    assert bounded.drop_next is not None
    assert now / 1e9 < bounded.drop_next < now / 1e9 + 0.1


@pytest.mark.parametrize("law", ["rfc", "linux"])
def test_the_message_after_the_first_return_is_delivered(law: str) -> None:
    judge = CoDel(law=law)
    assert not judge.should_return(0.0, 5.0, 100)
    assert judge.should_return(0.0, 10.0, 99)
    assert not judge.should_return(0.0, 10.0, 98)
    assert judge.dropping
    assert not judge.should_return(0.0, 10.0, 97)  # the next pull: not due for another interval
    assert judge.should_return(0.0, 10.1001, 96)


def test_the_old_consumer_judges_that_message_too() -> None:
    judge = CoDel(law="queueing-consumer")
    assert not judge.should_return(0.0, 5.0, 100)
    assert judge.should_return(0.0, 10.0, 99)
    assert not judge.should_return(9.999, 10.0, 98)
    assert not judge.dropping  # which it noticed at once


def test_back_within_sixteen_intervals_it_goes_on_where_it_was() -> None:
    for pause, count in ((1.59, 8), (1.61, 1)):
        judge = CoDel()
        assert len(returns(judge, 10, 510)) == 8
        assert (judge.count, judge.lastcount) == (8, 1)
        assert not judge.should_return(0.6, 0.601, PLENTY)
        left = judge.drop_next
        assert left is not None
        assert not judge.dropping
        assert not judge.should_return(0.0, left + pause - 0.1, PLENTY)
        assert judge.should_return(0.0, left + pause, PLENTY)
        assert judge.count == (count - 1 if count > 1 else 1)
        assert judge.lastcount == judge.count


def test_emptying_ends_an_episode_and_keeps_its_rate() -> None:
    judge = CoDel()
    assert len(returns(judge, 10, 510)) == 8
    count, due = judge.count, judge.drop_next
    assert not judge.should_return(0.5, 0.51, 0)
    assert (judge.dropping, judge.first_above, judge.count, judge.drop_next) == (False, None, count, due)


def test_found_nothing_is_what_emptying_is() -> None:
    judge = CoDel()
    assert returns(judge, 10, 101) == [100]
    judge.found_nothing()
    assert (judge.dropping, judge.first_above, judge.count) == (False, None, 1)
    # Not the message after the first return any more: it is observed like any other.
    assert not judge.should_return(0.0, 0.2, PLENTY)
    assert judge.first_above == pytest.approx(0.3)


def test_a_spared_message_keeps_the_schedule() -> None:
    judge, other = CoDel(), CoDel()
    assert returns(judge, 10, 201) == returns(other, 10, 201) == [100, 200]
    judge.spare()
    assert judge.stats()._replace(spared=0, returned=2) == other.stats()
    assert judge.stats().spared == 1
    assert judge.drop_next == pytest.approx(0.270711, abs=1e-6)
    with pytest.raises(RuntimeError, match="no message to spare"):
        judge.spare()
    rest = [k for k in range(201, 400) if judge.should_return((k - 10) / 1000, k / 1000, PLENTY)]
    assert rest == [271, 329, 379]


def test_state_and_figures() -> None:
    judge = CoDel()
    assert (judge.dropping, judge.count, judge.lastcount, judge.drop_next, judge.first_above) == (
        False, 0, 0, None, None,
    )  # fmt: skip
    assert not judge.should_return(1.0, 1.02, 5)
    assert judge.first_above == pytest.approx(1.12)
    assert judge.should_return(1.0, 1.12, 5)
    assert (judge.dropping, judge.count) == (True, 1)
    assert judge.drop_next == pytest.approx(1.22)
    figures = judge.stats()
    assert (figures.asked, figures.returned, figures.episodes) == (2, 1, 1)
    assert figures.sojourn == pytest.approx(0.12)
    judge.reset()
    assert judge.stats().asked == 0
    assert judge.drop_next is None


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (8, 2, "dropping of a law's state must be from 0 to 1, got 2"),
        (8, 1, "count of a law's state must be positive once messages went back, got 0"),
        (4, -1, "count of a law's state must be from 0 to"),
    ],
)
def test_what_is_no_state_is_refused(place: int, number: int, message: str) -> None:
    judge = CoDel()
    state = list(judge.state())
    with pytest.raises(ValueError, match=re.escape(message)):
        judge.resume([*state[:place], number, *state[place + 1 :]])
    with pytest.raises(ValueError, match=f"a law's state has {len(state)} numbers, got 0"):
        judge.resume([])
    assert judge.state() == tuple(state)


def test_state_of_a_law_whose_clock_wraps() -> None:
    judge = CoDel(law="linux")
    assert not judge.should_return(10_000.0, 10_000.02, 5)
    assert judge.first_above == pytest.approx(10_000.12, abs=3e-6)


def test_defaults_and_repr() -> None:
    judge = CoDel()
    assert (judge.target, judge.interval, judge.min_backlog, judge.law, judge.max_returns) == (
        0.005, 0.1, 1, "rfc", None,
    )  # fmt: skip
    assert repr(judge) == "CoDel(target=0.005, interval=0.1, min_backlog=1, law='rfc')"
    assert repr(CoDel(max_returns=3)).endswith("max_returns=3)")
    assert (judge.requeue, judge.budget, judge.when_alone) == (True, 3, False)
    assert repr(CoDel(requeue=False, budget=0, when_alone=True)).endswith(", requeue=False, budget=0, when_alone=True)")


def test_pickles_and_copies_carry_the_parameters() -> None:
    judge = CoDel(
        0.2, 0.5, min_backlog=3, law="linux", max_returns=9, requeue=False, budget=2**62 - 1, when_alone=True,
    )  # fmt: skip
    returns(judge, 400, 1000)
    for other in (pickle.loads(pickle.dumps(judge)), copy.copy(judge), copy.deepcopy(judge)):
        assert repr(other) == repr(judge)
        assert other.stats().asked == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 0}, "target must be positive and at most 86400 seconds under the law 'rfc', got 0"),
        ({"target": -1.0}, "target must be positive"),
        ({"target": math.nan}, "target must be positive"),
        ({"target": math.inf}, "target must be positive"),
        ({"target": "5ms"}, "target must be a number of seconds, got '5ms'"),
        ({"target": True}, "target must be a number of seconds, got True"),
        ({"target": None}, "target must be a number of seconds, got None"),
        ({"interval": 0.0}, "interval must be positive"),
        ({"interval": 1e-12}, "interval must be at least 1 ns"),
        ({"interval": 138, "law": "linux"}, "interval must be positive and at most 137 seconds"),
        ({"interval": 5e-7, "law": "linux"}, "interval must be at least 1024 ns"),
        ({"target": 0.0015, "law": "queueing-consumer"}, "target must be a whole number of milliseconds"),
        ({"interval": 0.0001, "law": "queueing-consumer"}, "interval must be a whole number of milliseconds"),
        ({"min_backlog": -1}, "min_backlog must be an integer of 0 or more, got -1"),
        ({"min_backlog": 1.5}, "min_backlog must be an integer of 0 or more"),
        ({"max_returns": 0}, "max_returns must be a positive integer or None, got 0"),
        ({"max_returns": True}, "max_returns must be a positive integer or None"),
        ({"requeue": 1}, "requeue must be True or False, got 1"),
        ({"when_alone": "no"}, "when_alone must be True or False, got 'no'"),
        ({"budget": -1}, "budget must be an integer of 0 or more, got -1"),
        ({"budget": True}, "budget must be an integer of 0 or more"),
        ({"budget": 2.0}, "budget must be an integer of 0 or more"),
        ({"law": "codel"}, "law must be one of 'rfc', 'linux', 'linux-q16', 'queueing-consumer', got 'codel'"),
        ({"law": None}, "law must be one of"),
    ],
)
def test_refused_parameters(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        CoDel(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e10, "1", b"1", None, True, [1.0]])
def test_refused_times(value: object) -> None:
    with pytest.raises(ValueError, match="enqueued_at must be"):
        CoDel().should_return(value, 1.0, 1)
    with pytest.raises(ValueError, match="now must be"):
        CoDel().should_return(1.0, value, 1)


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "3"])
def test_refused_backlogs(value: object) -> None:
    judge = CoDel()
    with pytest.raises(ValueError, match="backlog must be"):
        judge.should_return(1.0, 1.0, value)
    assert judge.stats().asked == 0


def test_numbers_of_other_kinds_are_times() -> None:
    assert not CoDel().should_return(1, np.float64(1.5), np.int64(3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1]], 2, 3), ValueError, "enqueued_at must be one-dimensional"),
        ((5, 2, 3), ValueError, "enqueued_at must be one-dimensional"),
        (([1.5], 2, 3), ValueError, "enqueued_at must each be an integer"),
        (([1, 2], [1], 3), ValueError, "now must be one value or one for each message: 2 messages, 1 values"),
        (([1, 2], 5, [1, 2, 3]), ValueError, "backlog must be one value or one for each message"),
        (([1], 2.0, 3), ValueError, "now must each be an integer"),
        (([1], 2, -3), OverflowError, "backlog must each be an integer of 0 or more, got -3"),
        (([2**62], 2, 3), OverflowError, "enqueued_at must each be an integer number of nanoseconds"),
    ],
)
def test_refused_arrays(arguments: tuple[object, object, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CoDel().should_return_many(*arguments)


def test_arrays_of_none_and_of_one() -> None:
    judge = CoDel()
    assert judge.should_return_many([], 5, 3).tolist() == []
    assert judge.should_return_many([], [], []).dtype == np.bool_
    assert judge.should_return_many([1], [5], [3]).tolist() == [False]


def test_a_call_during_a_batch_is_refused() -> None:
    judge = CoDel()
    size = 5_000_000
    queued = np.zeros(size, dtype=np.int64)
    refused: list[str] = []
    begun = threading.Barrier(2)

    def disturb() -> None:
        begun.wait()
        while not done.is_set():
            try:
                judge.should_return(1.0, 2.0, 3)
            except RuntimeError as error:
                refused.append(str(error))
                return

    done = threading.Event()
    thread = threading.Thread(target=disturb)
    thread.start()
    begun.wait()
    for _ in range(200):
        try:
            judge.should_return_many(queued, 10**9, 10)
        except RuntimeError:  # the disturber holds the law for the moment of its call on a free-threaded build
            continue
        if refused:
            break
    done.set()
    thread.join()
    assert refused == ["a CoDel belongs to one thread at a time: another call is under way"]
