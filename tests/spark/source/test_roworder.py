"""The order of rows is the engine's, and rows of one slot keep theirs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceDwrr

from fairsched.spark.fairorder import fair_positions
from fairsched.spark.source.roworder import choose

slots = st.lists(st.sampled_from("abc"), max_size=60)
quanta = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9))


@given(slots, quanta)
def test_rows_come_in_the_order_of_the_reference(rows, weights):
    oracle = ReferenceDwrr({slot: weights.get(slot, 1) for slot in dict.fromkeys(rows)})
    for position, slot in enumerate(rows):
        oracle.push(slot, position)
    expected = [token for _slot, token in iter(oracle.pop, None)]
    assert fair_positions(rows, weights).tolist() == expected


@given(slots, quanta, st.integers(0, 30))
def test_the_chosen_are_the_first_in_fair_order_of_each_queue(keys, weights, share):
    queues = ["q" if position % 3 else "r" for position in range(len(keys))]
    chosen = choose(queues, keys, weights, {"q": share, "r": 2})
    assert chosen == sorted(set(chosen))
    counts = Counter(queues[position] for position in chosen)
    assert counts["q"] == min(share, queues.count("q"))
    assert counts["r"] == min(2, queues.count("r"))
    # Rows of a key leave its queue in their order.
    for queue in "qr":
        for key in "abc":
            mine = [position for position in range(len(keys)) if (queues[position], keys[position]) == (queue, key)]
            assert [position for position in chosen if position in mine] == mine[: len(set(mine) & set(chosen))]


def test_one_flooding_key_does_not_hide_the_others():
    keys = ["loud"] * 90 + ["quiet"] * 10
    assert Counter(keys[row] for row in choose(["q"] * 100, keys, {}, {"q": 20})) == {"loud": 10, "quiet": 10}
