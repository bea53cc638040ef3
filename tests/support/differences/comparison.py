"""Finds where two runs of a session differ, and by which documented difference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from support.differences.barrier import Barrier
from support.differences.documented import ENDING, EQUATING, Difference
from support.differences.operations import Session, printed
from support.differences.runner import Observation, Runner, is_brief
from support.rabbitmq import Node

#: How often a session in which something expires must differ to be believed: the machine may have stood still for as long as a
#: message lives.
TIMES = 3


@dataclass(frozen=True)
class Found:
    """Two observations that differ; `session` ends with the operation that they are of, `known` says by what if it is known."""

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
            str(key)
            for key in {*self.rabbitmq, *self.embedded}
            if self.rabbitmq.get(key) != self.embedded.get(key)
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


def compare(session: Session, rabbitmq: list[Observation], embedded: list[Observation]) -> Found | None:
    """Return the first difference, None if there is none."""
    for place, (left, right) in enumerate(zip(rabbitmq, embedded, strict=True)):
        if left == right:
            continue
        for equating in EQUATING:
            left, right = equating.same(left), equating.same(right)
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
        for _ in range(TIMES if any(map(is_brief, session)) else 1):
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
