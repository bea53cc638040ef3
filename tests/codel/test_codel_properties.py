"""CoDel against the oracle, which keeps the loops of the published dequeue, on whatever Hypothesis thinks of."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from oracles.codel import UNITS, ReferenceCoDel

from fairsched import CoDel

MS = 1_000_000
laws = st.sampled_from(sorted(UNITS))
gaps = st.one_of(st.integers(0, 3 * MS), st.integers(0, 400 * MS), st.just(0), st.integers(0, 3 * 10**12))
#: What happens: so many messages come, then this long passes, then a message is pulled.
events = st.lists(st.tuples(st.integers(0, 9), gaps), max_size=120)
origins = st.one_of(st.just(0), st.integers(-(10**18), 10**18))
targets = st.sampled_from([2 * MS, 5 * MS, 100 * MS])
intervals = st.sampled_from([1 * MS, 20 * MS, 100 * MS])


def pull(law: CoDel, buffer: deque[int], now: int) -> tuple[list[int], int | None]:
    """Take messages as a host does: until one is to be delivered."""
    back: list[int] = []
    while buffer:
        queued = buffer.popleft()
        if not law.should_return_many([queued], now, len(buffer))[0]:
            return back, queued
        back.append(queued)
    law.found_nothing()
    return back, None


@given(laws, targets, intervals, st.integers(0, 3), st.integers(0, 5), origins, events)
def test_the_unrolled_law_is_the_published_one(law, target, interval, min_backlog, max_returns, origin, events):
    judge = CoDel(target / 1e9, interval / 1e9, min_backlog=min_backlog, law=law, max_returns=max_returns or None)
    oracle = ReferenceCoDel(law, target, interval, min_backlog, max_returns)
    buffer: deque[int] = deque()
    now = origin
    for arrivals, gap in events:
        buffer.extend([now] * arrivals)
        oracle.buffer.extend([now] * arrivals)
        now += gap
        empty = not buffer
        assert pull(judge, buffer, now) == oracle.pull(now)
        if empty:
            continue  # the oracle was asked, the law was not: its count of figures may differ, its state may not
        assert (judge.dropping, judge.count, judge.lastcount) == (oracle.dropping, oracle.count, oracle.lastcount)


@given(laws, st.integers(0, 3), st.integers(0, 4), st.lists(st.tuples(gaps, gaps, st.integers(0, 5)), max_size=60))
def test_many_are_one_after_the_other(law, min_backlog, max_returns, messages):
    one, many = (CoDel(law=law, min_backlog=min_backlog, max_returns=max_returns or None) for _ in range(2))
    now = np.cumsum([gap for gap, _, _ in messages], dtype=np.int64)
    queued = now - np.array([sojourn for _, sojourn, _ in messages], dtype=np.int64)
    backlog = np.array([left for _, _, left in messages], dtype=np.int64)
    expected = [
        bool(one.should_return_many([a], int(b), int(c))[0]) for a, b, c in zip(queued, now, backlog, strict=True)
    ]
    assert many.should_return_many(queued, now, backlog).tolist() == expected
    assert many.stats() == one.stats()
    assert (many.drop_next, many.first_above) == (one.drop_next, one.first_above)


@given(laws, st.lists(st.tuples(st.integers(-(10**10), 10**10), st.integers(0, 10**10), st.integers(0, 40))))
def test_whatever_the_clock_does_no_young_and_no_last_message_goes_back(law, messages):
    judge = CoDel(law=law)
    last = None
    for now, sojourn, backlog in messages:
        if judge.should_return(now / 1e9 - sojourn / 1e9, now / 1e9, backlog):
            assert sojourn >= 4_990_000
            assert backlog > 1
            assert last is not None
            assert now >= last
        last = now


@given(laws, st.integers(1, 8), st.lists(gaps, min_size=1, max_size=40))
def test_no_pull_returns_more_than_the_bound(law, bound, pauses):
    judge = CoDel(law=law, max_returns=bound)
    now = 0
    for pause in pauses:
        now += pause
        verdicts = judge.should_return_many([now - 10 * MS] * 12, now, 100).tolist()
        longest = max(len(run) for run in "".join("x" if verdict else " " for verdict in verdicts).split(" "))
        assert longest <= bound


@given(laws, st.integers(0, 4), st.lists(st.tuples(gaps, gaps), max_size=60), st.integers(0, 60))
def test_a_law_resumed_goes_on_as_if_it_had_never_stopped(law, max_returns, messages, cut):
    whole, before, after = (CoDel(law=law, max_returns=max_returns or None) for _ in range(3))
    now = np.cumsum([gap for gap, _ in messages], dtype=np.int64)
    queued = now - np.array([sojourn for _, sojourn in messages], dtype=np.int64)
    expected = whole.should_return_many(queued, now, 100).tolist()
    found = before.should_return_many(queued[:cut], now[:cut], 100).tolist()
    after.resume(json.loads(json.dumps(before.state())))
    assert found + after.should_return_many(queued[cut:], now[cut:], 100).tolist() == expected
    assert after.state() == whole.state()


@given(st.lists(st.one_of(st.integers(), st.none(), st.just(0)), min_size=9, max_size=13))
def test_no_state_is_believed_unseen(numbers):
    judge = CoDel()
    judge.should_return(0, 1, 9)
    before = judge.state()
    try:
        judge.resume(numbers)
    except (ValueError, OverflowError):
        assert judge.state() == before
    else:
        assert judge.state() == tuple(numbers)
        judge.should_return_many([0] * 50, np.arange(50) * 10**9, 100)
