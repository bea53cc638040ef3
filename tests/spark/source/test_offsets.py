"""Offsets survive JSON, and name what they do not understand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.spark.source.offsets import QueueOffset, StreamOffset

shares = st.dictionaries(st.text(min_size=1), st.integers(1, 2**40))
queue_offsets = st.builds(
    QueueOffset,
    seq=st.integers(1, 2**40),
    epoch=st.text(min_size=1),
    parts=st.lists(shares).map(tuple),
    carried=st.dictionaries(st.text(), st.integers()),
    sizes=shares,
    budget=st.integers(0, 2**40),
)


@given(queue_offsets)
def test_a_queue_offset_survives_json(offset):
    assert QueueOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_first_queue_offset_is_always_the_same():
    assert QueueOffset().to_json() == QueueOffset().to_json() == {"v": 1, "seq": 0}
    assert QueueOffset.from_json({"v": 1, "seq": 0}) == QueueOffset()


def test_shares_of_all_parts_are_added():
    offset = QueueOffset(1, "e", ({"a": 3, "b": 1}, {"a": 2}))
    assert offset.to_json()["plan"] == {"a": 5, "b": 1}


@given(shares, shares)
def test_a_stream_offset_survives_json(ends, starts):
    offset = StreamOffset(ends, starts, {"a": -3})
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert StreamOffset.from_json(StreamOffset().to_json()) == StreamOffset()


@pytest.mark.parametrize("found", [{"v": 2, "seq": 1}, {"seq": 1}, {"v": 1, "streams": {}}, {"logOffset": 4}])
def test_another_offset_is_refused(found):
    with pytest.raises(ValueError, match="'seq'"):
        QueueOffset.from_json(found)
