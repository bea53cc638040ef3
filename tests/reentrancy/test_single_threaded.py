"""CoDel, AckLedger, Estimator, Contents and Deliveries while calls come in where they can run Python."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.history import History
from support.intruders import BRIEF, Number, Script, Step, Visit, intruder, play, scripts
from support.threads import result_of, start

from fairsched import CoDel
from fairsched.amqp._ackledger import AckLedger
from fairsched.delivery._delivery import give_deliveries
from fairsched.scheduling._codel import Estimator


class Claiming(float):
    """A number that is within every range, if it is asked."""

    __slots__ = ()

    def __ge__(self, other: float) -> bool:
        intruder.point("comparison")
        return True

    __le__ = __gt__ = __lt__ = __ge__


class LedgerWorld:
    """A ledger, and the broker that gets its frames."""

    def __init__(self) -> None:
        self.history = History()
        self.ledger = AckLedger()
        self.settled: dict[int, int] = {}
        self.sent: Counter[int] = Counter()
        self.outcome: dict[int, int] = {}
        self.high = 0

    def __repr__(self) -> str:
        return "LedgerWorld()"

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def deliver(self) -> None:
        """Deliveries come one after the other: a call that finds that its own is not the next has been overtaken."""
        tag = self.high + 1
        done, _ = self.history.attempt(lambda: self.ledger.deliver(Number(tag), 10), ValueError)
        if done:
            if self.high >= tag:
                self.history.fault(f"tag {tag} was booked twice")
            self.high = tag

    def settle(self, back: int, verdict: int) -> None:
        tag = self.high - back
        if tag <= 0:
            return
        done, result = self.history.attempt(lambda: self.ledger.settle(Number(tag), Number(verdict)))
        if done and result:
            if tag in self.settled:
                self.history.fault(f"tag {tag} was settled twice")
            self.settled[tag] = verdict

    def flush(self) -> None:
        done, frames = self.history.attempt(self.ledger.flush)
        with intruder.quiet():
            for verdict, tag, multiple in frames if done else ():
                self.sent[tag] += 1
                if self.sent[tag] > 1:
                    self.history.fault(f"tag {tag} was sent twice")
                for covered in range(1, tag + 1) if multiple else (tag,):
                    self.outcome.setdefault(covered, verdict)

    def check_rest(self) -> None:
        assert not self.history.wrong, "; ".join(self.history.wrong)
        assert self.ledger.delivered == self.high
        assert self.ledger.outstanding == self.high - len(self.settled)
        assert self.ledger.size == 10 * self.ledger.outstanding

    def finish(self) -> None:
        """Each delivery has exactly the outcome that it was settled with; frames of one flush stay in their order."""
        self.flush()
        assert self.ledger.pending == 0
        assert not self.history.wrong, "; ".join(self.history.wrong)
        assert self.outcome == self.settled

    def check_let_go(self) -> None:
        """Nothing is kept."""


steps: st.SearchStrategy[Step] = st.one_of(
    st.just(("deliver",)),
    st.just(("deliver",)),
    st.tuples(st.just("settle"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("settle"), st.integers(0, 4), st.integers(0, 2)),
    st.just(("flush",)),
)


@BRIEF
@given(script=scripts(steps, steps, ["", "collector", "finalizer"], st.booleans()))
def test_the_ledger_is_exact_whichever_call_comes_in(script: Script) -> None:
    play(LedgerWorld(), script)


def test_a_ledger_whose_flush_is_entered_again() -> None:
    """Settlements are flushed once, also when making the list of frames runs a finalizer that flushes, or settles."""
    ledger = AckLedger()
    count = 3000  # more than the interpreter keeps spare tuples for
    for tag in range(1, count + 1):
        ledger.deliver(tag)
    for tag in range(1, count, 2):
        ledger.settle(tag, AckLedger.REQUEUE)
    nested: list[Any] = []
    intruder.reset()

    def visit() -> None:
        ledger.settle(count, AckLedger.REJECT)
        nested.extend(ledger.flush())

    with intruder.watching([Visit("collector", 0, False, visit)], True):
        frames = intruder.observe(ledger.flush)
    intruder.raise_faults()
    frames += nested + ledger.flush()
    assert sorted(tag for _, tag, _ in frames) == sorted([*range(1, count, 2), count])


def test_a_delivery_tag_that_books_another() -> None:
    """The tag is compared by its own code, which may book the same delivery."""
    ledger = AckLedger()

    class Tag(int):
        def __ne__(self, other: object) -> bool:
            if ledger.delivered == 0:
                ledger.deliver(1)
            return int.__ne__(self, other)  # type: ignore[operator]

        def __eq__(self, other: object) -> bool:
            return not self != other

        __hash__ = int.__hash__

    with pytest.raises(ValueError, match="the one after the last"):
        ledger.deliver(1 if ledger.deliver(Tag(1)) is None else 0)
    assert ledger.delivered == 1


def test_a_law_that_goes_on_while_another_state_is_read() -> None:
    """Figures of what was asked meanwhile are not lost, and a state is taken as a whole or not at all."""
    law = CoDel()
    state = [number if position else Odd(law) for position, number in enumerate(CoDel().state())]
    law.resume(state)
    assert law.stats().asked == 1
    assert law.state()[1:] == CoDel().state()[1:]


class Odd:
    """A 0 that asks the law first."""

    def __init__(self, law: CoDel) -> None:
        self.law = law

    def __index__(self) -> int:
        self.law.should_return(0.0, 1.0, 5)
        return 0


def test_a_law_is_not_replaced_while_it_judges_without_the_gil() -> None:
    """`resume`, whose state is read by Python code, comes to its end while another thread is judging."""
    law = CoDel()
    size = 400_000

    class Starting:
        def __index__(self) -> int:
            threads.append(start(lambda: law.should_return_many(list(range(size)), list(range(size)), 5).size))
            return 0

    threads: list[Any] = []
    state = [Starting(), *CoDel().state()[1:]]
    with contextlib.suppress(RuntimeError):  # it belongs to the other thread just now
        law.resume(state)
    judged = result_of(threads[0])
    assert isinstance(judged, RuntimeError) or law.stats().asked == judged


@pytest.mark.parametrize(("value", "bound"), [(-(2**63), 1 - 2**62), (2**63 - 1, 2**62 - 1)])
def test_moments_that_change_after_they_were_checked(value: int, bound: int) -> None:
    """The caller's arrays are not copied: a number that is out of range when it is judged counts as its bound."""
    now = np.arange(100, dtype=np.int64) * 10_000_000
    queued = now.copy()

    class Changing:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            queued[:] = value
            return now

    judged = CoDel().should_return_many(queued, Changing(), 5)
    assert judged.tolist() == CoDel().should_return_many(np.full(100, bound), now, 5).tolist()


@pytest.mark.parametrize("value", [float("nan"), -5.0, 1e300, float("inf")])
def test_numbers_that_claim_to_be_in_range(value: float) -> None:
    """A range is checked on the number that is used, not on what its class says."""
    claimed = Claiming(value)
    with pytest.raises(ValueError):
        Estimator(claimed)
    estimator = Estimator(10.0)
    for call in (
        lambda: estimator.add(claimed, 1.0),
        lambda: estimator.add(1.0, claimed),
        lambda: estimator.count(claimed),
        lambda: estimator.minimum(claimed),
        lambda: estimator.mean(claimed),
        lambda: estimator.quantile(claimed, 1.0),
        lambda: estimator.quantile(0.5, claimed),
        lambda: CoDel(target=claimed),
        lambda: CoDel(interval=claimed),
    ):
        with pytest.raises(ValueError):
            call()
    if not -(10**9) < value < 10**9:  # a moment may be before the clock's beginning
        with pytest.raises(ValueError):
            CoDel().should_return(claimed, 1.0, 1)
        with pytest.raises(ValueError):
            CoDel().should_return(1.0, claimed, 1)
    assert estimator.count(2.0) == 0


def methods(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") or name in ("__len__", "__repr__", "__reduce__")]


def test_sinks_that_change_while_deliveries_are_given() -> None:
    """A sink may take itself out of the dictionary, and cut the deliveries out of the same buffer."""
    seen: list[int] = []
    buffer = deliveries(3)

    def sink(tag: int, *_: object) -> None:
        seen.append(tag)
        if tag == 2:
            del sinks[1]
            give_deliveries(buffer, 0, 100, {1: lambda tag, *_: seen.append(10 * tag)}, {})

    sinks: dict[int, Callable[..., object]] = {1: sink}
    position, other, frames = give_deliveries(buffer, 0, 100, sinks, {})
    assert seen == [1, 2, 10, 20, 30]
    assert (position, other, frames) == (2 * len(buffer) // 3, True, 6)


def deliveries(count: int) -> bytes:
    """Deliveries of a small body each, on channel 1."""

    def frame(kind: int, payload: bytes) -> bytes:
        return bytes([kind]) + (1).to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"

    parts = []
    for tag in range(1, count + 1):
        method = b"\x00\x3c\x00\x3c" + b"\x02ct" + tag.to_bytes(8, "big") + b"\x00" + b"\x00" + b"\x01k"
        header = b"\x00\x3c\x00\x00" + (2).to_bytes(8, "big") + b"\x00\x00"
        parts.append(frame(1, method) + frame(2, header) + frame(3, b"ab"))
    return b"".join(parts)
