"""AckLedger: exact coalescing of settlements, held against a channel that behaves as a broker's does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.dwrr import ReferenceLedger
from pika import spec
from pika.frame import decode_frame
from support.collecting import collecting

from fairsched.amqp._ackledger import AckLedger

ACK, REQUEUE, REJECT, FAIL = AckLedger.ACK, AckLedger.REQUEUE, AckLedger.REJECT, AckLedger.FAIL


def ledger_with(tags: int) -> AckLedger:
    """A ledger with so many deliveries outstanding."""
    ledger = AckLedger()
    for tag in range(1, tags + 1):
        ledger.deliver(tag)
    return ledger


def test_a_contiguous_prefix_is_one_frame() -> None:
    ledger = ledger_with(5)
    for tag in (3, 1, 2):
        assert ledger.settle(tag, ACK)
    assert (ledger.outstanding, ledger.pending) == (2, 3)
    assert ledger.flush() == [(ACK, 3, True)]
    assert (ledger.outstanding, ledger.pending) == (2, 0)


@pytest.mark.parametrize("verdict", [ACK, REQUEUE, REJECT, FAIL])
def test_what_a_finalizer_settles_while_others_are_flushed_is_not_lost(verdict: int) -> None:
    ledger = ledger_with(200)
    settled = [2, 4, 6]
    for tag in settled:
        ledger.settle(tag, verdict)
    later = iter(range(7, 201, 2))

    def settle() -> None:
        settled.append(next(later))
        ledger.settle(settled[-1], verdict)

    with collecting(settle):
        frames = ledger.flush()
    frames += ledger.flush()
    assert sorted(tag for _, tag, _ in frames) == sorted(settled)
    assert {found for found, _, _ in frames} == {verdict}


def test_a_prefix_of_one_is_not_multiple() -> None:
    ledger = ledger_with(2)
    ledger.settle(1, ACK)
    assert ledger.flush() == [(ACK, 1, False)]


def test_stragglers_are_acknowledged_singly_and_only_once() -> None:
    ledger = ledger_with(5)
    for tag in (5, 3):
        ledger.settle(tag, ACK)
    assert ledger.flush() == [(ACK, 5, False), (ACK, 3, False)]
    for tag in (1, 2):
        ledger.settle(tag, ACK)
    assert ledger.flush() == [(ACK, 2, True)]
    ledger.settle(4, ACK)
    assert ledger.flush() == [(ACK, 4, False)]
    assert ledger.flush() == []


def test_a_refusal_leaves_before_the_acknowledgement_that_spans_it() -> None:
    ledger = ledger_with(3)
    ledger.settle(3, ACK)
    ledger.settle(2, REQUEUE)
    ledger.settle(1, ACK)
    assert ledger.flush() == [(REQUEUE, 2, False), (ACK, 3, True)]


def test_a_failure_is_rejected_and_everything_else_refused_is_nacked() -> None:
    """And what a quorum queue counts as a failure is one frame for each, whatever is acknowledged round it."""
    ledger = ledger_with(4)
    for tag, verdict in ((1, ACK), (2, FAIL), (3, REQUEUE), (4, REJECT)):
        ledger.settle(tag, verdict)
    octets, found = ledger.frames(7), []
    while octets:
        size, frame = decode_frame(octets)
        octets = octets[size:]
        assert frame.channel_number == 7
        found.append(frame.method)
    assert [type(method) for method in found] == [spec.Basic.Ack, spec.Basic.Reject, spec.Basic.Nack, spec.Basic.Nack]
    assert [method.delivery_tag for method in found] == [1, 2, 3, 4]
    assert [method.requeue for method in found[1:]] == [True, True, False]


def test_settling_is_idempotent() -> None:
    ledger = ledger_with(2)
    assert ledger.settle(1, ACK)
    assert not ledger.settle(1, REQUEUE)
    ledger.flush()
    assert not ledger.settle(1, ACK)
    assert not ledger.settle(7, ACK)
    assert not ledger.settle(0, ACK)


@pytest.mark.parametrize("tag", [0, 2, -1])
def test_deliveries_come_in_order(tag: int) -> None:
    with pytest.raises(ValueError, match="must be 1"):
        AckLedger().deliver(tag)


def test_settled_but_not_sent_still_takes_up_room() -> None:
    ledger = ledger_with(4)
    ledger.settle(1, ACK)
    ledger.settle(3, ACK)
    assert [ledger.unsettled(last) for last in (0, 1, 3, 9)] == [0, 1, 3, 4]
    ledger.flush()
    assert [ledger.unsettled(last) for last in (0, 1, 3, 9)] == [0, 0, 1, 2]


def test_unknown_verdict() -> None:
    with pytest.raises(ValueError, match="verdict must be"):
        ledger_with(1).settle(1, 4)


def test_an_acknowledgement_never_spans_what_is_left_to_the_broker() -> None:
    ledger = ledger_with(4)
    assert ledger.leave(2)
    assert not ledger.leave(2)
    assert not ledger.settle(2, ACK)
    for tag in (4, 1, 3):
        ledger.settle(tag, ACK)
    assert ledger.flush() == [(ACK, 1, False), (ACK, 4, False), (ACK, 3, False)]
    assert (ledger.outstanding, ledger.pending, ledger.unsettled(4)) == (0, 0, 1)


#: Stands for a verdict: the tag is left to the broker.
LEAVE = 4


@given(st.lists(st.one_of(st.just("deliver"), st.just("flush"), st.tuples(st.integers(0, 200), st.integers(0, LEAVE)))))
def test_the_broker_sees_exactly_what_the_handlers_said(steps: list[object]) -> None:
    """Every frame settles something outstanding, and each tag ends with its own verdict: nothing else is touched."""
    ledger, broker = AckLedger(), ReferenceLedger()
    verdicts: dict[int, int] = {}
    for step in [*steps, "flush"]:
        if step == "deliver":
            newest = broker.deliver()
            ledger.deliver(newest, 10 * newest)
        elif step == "flush":
            for verdict, tag, multiple in ledger.flush():
                broker.receive(verdict, tag, multiple)
            assert broker.outcome == {tag: verdict for tag, verdict in verdicts.items() if verdict != LEAVE}
            assert ledger.pending == 0
            for last in range(broker.newest + 2):
                assert ledger.unsettled(last) == sum(tag <= last for tag in broker.outstanding)
        else:
            tag, verdict = step  # type: ignore[misc]
            done = ledger.leave(tag) if verdict == LEAVE else ledger.settle(tag, verdict)
            assert done == (1 <= tag <= broker.newest and tag not in verdicts)
            if 1 <= tag <= broker.newest:
                verdicts.setdefault(tag, verdict)
        assert ledger.outstanding == broker.newest - len(verdicts)
        assert ledger.delivered == broker.newest
        assert ledger.size == sum(10 * tag for tag in range(1, broker.newest + 1) if tag not in verdicts)


def test_a_wide_window() -> None:
    """The ring of states grows while tags of both ends are in doubt."""
    ledger = ledger_with(10_000)
    for tag in range(10_000, 1, -2):
        ledger.settle(tag, ACK)
    assert len(ledger.flush()) == 5_000
    for tag in range(1, 10_000, 2):
        ledger.settle(tag, ACK)
    assert ledger.flush() == [(ACK, 9_999, True)]
    assert ledger.outstanding == 0
