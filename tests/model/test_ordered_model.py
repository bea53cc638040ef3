"""Every order of the steps of two workers of an ordered lane, up to a bound on preemptions; each guard is needed."""

from __future__ import annotations

import pytest
from model.explore import Fault, schedules
from model.ordered_model import GUARDS, OrderedModel

TAKES, LEAVES, DIES = (1, "takes"), (0, "leaves"), (0, "dies")

#: What happens to the two workers, of which the first one has the lane at the beginning.
HISTORIES = {
    "hand-over": ((TAKES,), (LEAVES,)),
    "the second one joins and dies": ((TAKES, LEAVES, (1, "dies"), (0, "takes")),),
    "crash": ((TAKES,), (DIES,)),
    "crash while it is left": ((TAKES,), (LEAVES, DIES)),
    "there and back": ((TAKES, (1, "leaves")), (LEAVES, (0, "takes"))),
    "nobody, for a while": ((LEAVES, TAKES, DIES),),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_the_lane_is_handled_in_order_by_one_worker_at_a_time(history: str) -> None:
    assert sum(1 for _ in schedules(lambda: OrderedModel(HISTORIES[history]), preemptions=4)) > 50


@pytest.mark.parametrize("missing", GUARDS)
def test_each_guard_is_needed(missing: str) -> None:
    def explore() -> None:
        for history in HISTORIES.values():
            for _ in schedules(lambda history=history: OrderedModel(history, missing=missing), preemptions=3):
                pass

    with pytest.raises(Fault):
        explore()
