"""Finds where two runs of a session differ, and by which documented difference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from support.differences.barrier import Barrier
from support.differences.documented import ENDING, EQUATING, Difference
from support.differences.operations import Session, printed
from support.differences.runner import Observation, Runner, is_timed
from support.rabbitmq import Node

#: How often a session in which something expires must differ to be believed: the machine may have stood still for as
#: long as a message lives.
TIMES = 3


@dataclass(frozen=True)
class Found:
    """Two observations that differ: of the last operation of `session`, or of its end. `known`: why, if known."""

    session: Session
    place: int
    rabbitmq: Observation
    embedded: Observation
    known: Difference | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Of equal kinds are differences that probably have one cause."""
        operation = type(self.session[self.place]) if self.place < len(self.session) else None
        keys = sorted(
            str(key) for key in {*self.rabbitmq, *self.embedded} if self.rabbitmq.get(key) != self.embedded.get(key)
        )
        return (operation, self.known and self.known.name, *keys)

    @property
    def test(self) -> str:
        """Python source that shows the difference."""
        return f"pair.agree({printed(self.session)})"

    def __str__(self) -> str:
        at = repr(self.session[self.place]) if self.place < len(self.session) else "the end"
        return "\n".join([f"at {at}:", *different_lines("rabbitmq", self.rabbitmq, "embedded", self.embedded)])


def different_lines(one: str, left: Any, other: str, right: Any, path: str = "") -> list[str]:
    """Show the parts in which two observations differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        lines = []
        for key in sorted({*left, *right}, key=str):
            if left.get(key) != right.get(key):
                lines += different_lines(one, left.get(key), other, right.get(key), f"{path}[{key!r}]")
        return lines
    return [f"  {path}", f"    {one}: {left!r}", f"    {other}: {right!r}"]


def equated(found: Observation) -> Observation:
    """Return an observation without the differences that are of no consequence."""
    for equating in EQUATING:
        found = equating.same(found)
    return found


def compare(session: Session, rabbitmq: list[Observation], embedded: list[Observation]) -> Found | None:
    """Return the first difference, None if there is none."""
    for place, found in enumerate(zip(rabbitmq, embedded, strict=True)):
        left, right = (equated(one) for one in found) if found[0] != found[1] else found
        if left == right:
            continue
        known = next((one for one in ENDING if one.explains(session, place, left, right)), None)
        return Found(session[: place + 1], place, left, right, known)
    return None


class Pair:
    """Both brokers."""

    def __init__(self, rabbitmq: Node, embedded: int) -> None:
        self.rabbitmq, self.embedded = Runner(rabbitmq.port, Barrier(rabbitmq)), Runner(embedded)
        self.runs = 0
        self.other = ThreadPoolExecutor(1)

    def differ(self, session: Session) -> Found | None:
        """Run a session on both brokers; return where they differ."""
        self.runs += 1
        prefix = f"s{self.runs}-"
        rabbitmq = self.other.submit(self.rabbitmq.run, session, prefix)
        embedded = self.embedded.run(session, prefix)
        return compare(session, rabbitmq.result(), embedded)

    def believed(self, session: Session) -> Found | None:
        """Return where a session differs, for a reason that is not documented, every time."""
        for _ in range(TIMES if any(map(is_timed, session)) else 1):
            found = self.differ(session)
            if found is None or found.known:
                return None
        return found

    def agree(self, session: Session) -> None:
        """Fail if a session shows a difference that is not documented."""
        found = self.believed(session)
        assert found is None, f"{found}\n\n{found.test}"

    def close(self) -> None:
        self.rabbitmq.close()
        self.embedded.close()
        self.other.shutdown()
