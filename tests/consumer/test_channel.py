"""In which order settlements leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from fairsched.amqp._ackledger import AckLedger

ACK, REQUEUE, REJECT = AckLedger.ACK, AckLedger.REQUEUE, AckLedger.REJECT


def flushed(verdicts: dict[int, int], count: int) -> list[tuple[int, int, bool]]:
    """Return the frames that pika reads in the frames that settle these of `count` deliveries."""
    ledger = AckLedger()
    for tag in range(1, count + 1):
        ledger.deliver(tag)
    for tag, verdict in verdicts.items():
        ledger.settle(tag, verdict)
    sent, found = ledger.frames(9), []
    while sent:
        size, one = frame.decode_frame(sent)
        assert one.channel_number == 9
        sent = sent[size:]
        if isinstance(one.method, spec.Basic.Ack):
            found.append((ACK, one.method.delivery_tag, one.method.multiple))
        else:
            assert isinstance(one.method, spec.Basic.Nack)
            found.append((REQUEUE if one.method.requeue else REJECT, one.method.delivery_tag, one.method.multiple))
    return found


def test_what_was_handled_is_told_before_what_is_given_back() -> None:
    # The third is still in its handler, so what is behind it goes back one by one.
    frames = flushed({1: ACK, 2: ACK, 4: REQUEUE, 5: REQUEUE}, 5)
    assert frames == [(ACK, 2, True), (REQUEUE, 4, False), (REQUEUE, 5, False)]


def test_what_an_acknowledgement_would_cover_is_refused_before_it() -> None:
    frames = flushed({1: ACK, 2: REJECT, 3: ACK, 5: REQUEUE, 6: ACK}, 6)
    assert frames == [(REJECT, 2, False), (ACK, 3, True), (ACK, 6, False), (REQUEUE, 5, False)]


@given(st.dictionaries(st.integers(1, 30), st.sampled_from([ACK, REQUEUE, REJECT])))
def test_the_broker_understands_the_same(verdicts: dict[int, int]) -> None:
    understood: dict[int, int] = {}
    for verdict, tag, multiple in flushed(verdicts, 30):
        for one in range(1 if multiple else tag, tag + 1):
            understood.setdefault(one, verdict)
    assert understood == verdicts
