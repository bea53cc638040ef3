"""Positions in the checkpoint: everything that planning a batch again needs, as JSON of integers and strings.

Spark writes them to its log before a batch runs, compares them as text, and gives the end offset of an unfinished
batch back after a restart. So the end offset holds the plan itself, and options that changed meanwhile do not matter.
Immutable; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1


@dataclass(frozen=True)
class QueueOffset:
    """The end of a batch of queues: its number, and the amount that each reader takes of each queue.

    Parameters
    ----------
    seq : int
        Number of the batch, counted from 1; 0 before the first.
    epoch : str
        Names the checkpoint; made once, with the first batch.
    parts : tuple of dict
        Messages by queue, for each partition.
    carried : dict
        What rounding still owes each queue (see `plan.allocate`).
    sizes : dict
        Mean size of each queue's messages, in bytes with all headers, as far as it was known.
    largest : dict
        Size of the largest recent message of each queue, likewise.
    budget : int
        Most bytes that the batch may read; 0 for no bound.
    """

    seq: int = 0
    epoch: str = ""
    parts: tuple[Mapping[str, int], ...] = ()
    carried: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    budget: int = 0

    @property
    def shares(self) -> dict[str, int]:
        """Messages by queue."""
        found: dict[str, int] = {}
        for part in self.parts:
            for name, share in part.items():
                found[name] = found.get(name, 0) + share
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what Spark logs."""
        if self.seq == 0:
            return {"v": VERSION, "seq": 0}
        return {
            "v": VERSION,
            "seq": self.seq,
            "epoch": self.epoch,
            "plan": dict(sorted(self.shares.items())),
            "parts": [dict(part) for part in self.parts],
            "carried": dict(self.carried),
            "sizes": dict(self.sizes),
            "largest": dict(self.largest),
            "budget": self.budget,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> QueueOffset:
        """Read what `to_json` gave; ValueError if it is something else."""
        _check_version(found, "seq")
        return cls(
            seq=int(found["seq"]),
            epoch=str(found.get("epoch", "")),
            parts=tuple(found.get("parts", ())),
            carried=found.get("carried", {}),
            sizes=found.get("sizes", {}),
            largest=found.get("largest", {}),
            budget=int(found.get("budget", 0)),
        )


@dataclass(frozen=True)
class StreamOffset:
    """The end of a batch of streams.

    Parameters
    ----------
    ends : dict or None
        Offset after the last message of the batch, by stream; None before the first batch.
    starts : dict or None
        Offset of its first message, by stream: where a batch begins does not depend on what "latest" means later.
    carried : dict
        What rounding still owes each stream.
    """

    ends: Mapping[str, int] | None = None
    starts: Mapping[str, int] | None = None
    carried: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark logs."""
        if self.ends is None or self.starts is None:
            return {"v": VERSION, "streams": "initial"}
        return {
            "v": VERSION,
            "streams": dict(self.ends),
            "from": dict(self.starts),
            "carried": dict(self.carried),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffset:
        """Read what `to_json` gave; ValueError if it is something else."""
        _check_version(found, "streams")
        if found["streams"] == "initial":
            return cls()
        return cls(found["streams"], found["from"], found.get("carried", {}))


def _check_version(found: Mapping[str, Any], kind: str) -> None:
    version = found.get("v")
    if not isinstance(version, int) or version > VERSION or kind not in found:
        raise ValueError(
            f"the checkpoint holds an offset of another source or a later version (v={version!r}, "
            f"fields {', '.join(sorted(found))}); this one needs {kind!r} and v <= {VERSION}"
        )
