"""What the keeper of a group's limits grants and recalls."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.consumer.group_limits.holder import SILENT
from fairsched.consumer.group_limits.keeper import LOOK, OVERDUE, RETURN, TAKEOVER, UNHEARD, Keeper, strictest
from fairsched.consumer.group_limits.limit_message import Epoch, GroupLimit, HeldName, Killed, KnownMember, Message

EPOCH = Epoch(1, "keeper")
FOUR, ONE, RATE = GroupLimit(4, 0, 1), GroupLimit(1, 0, 1), GroupLimit(0, 10**9, 5)


class Group:
    """A keeper that grants, and members of which it has heard."""

    def __init__(self, *members: str) -> None:
        self.keeper = Keeper(EPOCH, {}, 0.0)
        self.now = TAKEOVER + 1
        self.serials = dict.fromkeys(members, 0)
        for one in members:
            self.say(one, "report")
        self.answers()

    def say(self, member: str, kind: str = "ask", *, lost: int = 0, **parts: Any) -> None:
        self.serials[member] += 1 + lost
        message = Message(kind, member, EPOCH, 1, f"queue of {member}", 60.0, self.serials[member], **parts)
        self.keeper.hear(message, self.now, self.now)

    def want(self, member: str, permits: int, limit: GroupLimit = FOUR) -> None:
        self.say(member, wants={"acme": HeldName(limit, permits, 0.0 if limit.interval else None)})

    def answers(self) -> dict[str, Message]:
        self.keeper.tick(self.now)
        found: dict[str, Message] = {}
        self.keeper.flush(lambda queue, message: found.update({queue.removeprefix("queue of "): message}))
        return found


def test_what_is_above_a_part_is_recalled_and_nothing_else() -> None:
    group = Group("a", "b", "c")
    group.want("b", 1)
    group.want("a", 3)
    assert {who: one.grants for who, one in group.answers().items()} == {"a": {"acme": 3}, "b": {"acme": 1}}
    group.want("c", 2)
    assert {who: one.recalls for who, one in group.answers().items()} == {"a": {"acme": 1}}
    assert group.answers() == {}, "the same is recalled once"


def test_members_take_turns_if_there_are_more_than_permits() -> None:
    group = Group("a", "b")
    group.want("a", 1, ONE)
    assert group.answers()["a"].grants == {"acme": 1}
    group.want("b", 1, ONE)
    assert group.answers()["a"].recalls == {"acme": 1}
    group.say("a", returns={"acme": 1})
    assert group.answers()["b"].grants == {"acme": 1}


def group_with_one_unheard() -> Group:
    """Return a group in which b waits for the permits that a returned, and gets none since it was not heard."""
    group = Group("a", "b")
    group.want("a", 4)
    group.answers()
    group.want("b", 4)
    group.answers()
    group.now += UNHEARD
    group.say("a", returns={"acme": 4})
    assert "b" not in group.answers()
    return group


def test_a_member_that_was_not_heard_is_granted_nothing() -> None:
    group = group_with_one_unheard()
    group.want("b", 4)
    assert group.answers()["b"].grants == {"acme": 4}


def test_a_member_that_is_heard_again_is_granted_what_it_waits_for() -> None:
    """It asked once; that nothing else happens to the name must not leave the permits free for good."""
    group = group_with_one_unheard()
    group.say("b", "beat")
    group.now += LOOK
    assert group.answers()["b"].grants == {"acme": 4}


def test_a_want_can_be_withdrawn() -> None:
    group = Group("a", "b")
    group.want("a", 4)
    group.answers()
    group.want("b", 4)
    group.say("b", wants={"acme": HeldName(FOUR, 0, None)})
    group.answers()
    group.say("a", returns={"acme": 4})
    assert group.answers() == {}
    assert group.keeper.figures()["names"] == 0


def test_a_gap_in_the_numbers_makes_it_begin_anew() -> None:
    group = Group("a")
    group.want("a", 1)
    assert not group.keeper.begin_after
    group.say("a", "beat", lost=1)
    assert group.keeper.begin_after == EPOCH.number


def test_a_report_that_was_lost_makes_it_begin_anew() -> None:
    """The member said all that it holds to this keeper, as it believes, and would never be granted anything."""
    group = Group("a")
    group.serials["b"] = 1  # its report
    group.want("b", 1)
    assert not group.keeper.begin_after
    group.now += OVERDUE
    group.want("b", 1)
    assert group.keeper.begin_after == EPOCH.number


def test_a_member_that_another_one_knows_to_be_back_is_not_gone() -> None:
    known = KnownMember("old queue", 1, 0.0, 60.0, {"acme": 4})
    keeper = Keeper(EPOCH, {"b": known}, 0.0)
    keeper.undeliverable("old queue", 0.1)
    told = Message("report", "a", EPOCH, 1, "queue of a", 60.0, 1, known={"b": known._replace(queue="new", session=2)})
    keeper.hear(told, 0.2, 0.2)
    keeper.tick(TAKEOVER + RETURN + 1)
    assert keeper.figures() == {"members": 2, "names": 0, "absent": 0}


def test_what_a_member_found_of_another_that_is_gone_counts() -> None:
    """This keeper has not heard it for long, and would keep its permits for the lease."""
    held = KnownMember("queue of b", 1, SILENT, 60.0, {"acme": 4})
    keeper = Keeper(EPOCH, {"b": held}, 0.0)
    keeper.undeliverable("queue of b", 0.1)
    keeper.tick(2 * RETURN)
    assert keeper.figures()["absent"] == 1
    told = Message("beat", "a", EPOCH, 1, "queue of a", 60.0, 1)
    for session, left in ((2, 1), (1, 0)):  # of another connection, it says nothing
        told.killed = {"b": Killed(session, RETURN)}
        keeper.hear(told, 2 * RETURN, 2 * RETURN)
        keeper.tick(2 * RETURN)
        assert keeper.figures()["absent"] == left


def test_the_smaller_of_different_definitions_counts_while_both_are_used() -> None:
    group = Group("a", "b")
    group.want("b", 1, ONE)
    group.want("a", 4)
    assert group.answers()["b"].grants == {"acme": 1}
    assert group.keeper.differing() == ("acme", [ONE, FOUR], 1)
    group.say("b", returns={"acme": 1})
    assert group.answers()["a"].grants == {"acme": 4}
    assert group.keeper.differing() is None


def test_permits_above_the_smaller_definition_are_not_granted_again() -> None:
    group = Group("a", "b")
    group.want("a", 4)
    group.answers()
    group.want("b", 1, ONE)
    group.answers()
    for _ in range(3):
        group.say("a", returns={"acme": 1})
        assert "b" not in group.answers()
    group.say("a", returns={"acme": 1})
    assert group.answers()["b"].grants == {"acme": 1}


def test_the_definitions_of_a_member_that_left_do_not_count() -> None:
    group = Group("a", "b")
    group.want("b", 1, ONE)
    group.want("a", 4)
    group.answers()
    group.say("b", "bye")
    assert group.answers()["a"].grants == {"acme": 4}
    assert group.keeper.differing() is None


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ([FOUR], FOUR),
        ([FOUR, ONE], ONE),
        ([RATE, FOUR], GroupLimit(4, 10**9, 5)),
        ([RATE, GroupLimit(0, 10**8, 1)], RATE),
        ([RATE, GroupLimit(0, 10**9, 1)], GroupLimit(0, 10**9, 1)),
    ],
)
def test_the_strictest_limit(limits: list[GroupLimit], found: GroupLimit) -> None:
    assert strictest(limits) == found


def test_the_bucket_is_empty_at_first_and_a_name_is_forgotten_when_it_is_full() -> None:
    group = Group("a")
    begun = group.now
    group.want("a", 0, RATE)
    assert group.answers()["a"].buckets == {"acme": pytest.approx(RATE.whole)}
    group.say("a", buckets={"acme": 5.0})
    group.answers()
    assert group.keeper.figures()["names"] == 1
    group.now = begun + 5.1
    group.answers()
    assert group.keeper.figures()["names"] == 0
    group.want("a", 0, RATE)
    assert group.answers()["a"].buckets == {"acme": 0.0}


def test_a_second_bucket_is_asked_back() -> None:
    group = Group("a", "b")
    group.want("a", 0, RATE)
    group.answers()
    group.say("b", "report", held={"acme": HeldName(RATE, 0, 0.0)})  # it was not known in time
    assert group.answers()["b"].bucket_recalls == ["acme"]
    group.say("b", buckets={"acme": 0.0})
    group.want("b", 0, RATE)
    assert group.answers()["a"].bucket_recalls == ["acme"]
