"""Messages between the members of a group with limits and its keeper, and the bounds of what is believed of them.

Any program that may write to the exchange can publish to it, by mistake as well: a message is refused unless its size,
names and numbers are possible.

| kind | from | to | says |
|---|---|---|---|
| `beat` | a member | all, the keeper's queue | it is here, and how many permits it holds |
| `report` | a member | the keeper's queue | everything that it holds, and what it knows of other members |
| `got` | a member | all | permits that it will use when this has come back to it |
| `ask` | a member | the keeper's queue | what it returns, and what it waits for |
| `bye` | a member | all, the keeper's queue | it leaves, and holds nothing |
| `stay` | a member | all, the keeper's queue | it hears nothing and will connect again; its handlers go on |
| `throttle` | a member | all | slots that take no turns for a while, in `buckets` |
| `keep` | the keeper | all, or one member | its epoch; grants and recalls; members that are absent or forgotten |
| `probe` | a member | one member | nothing: whether the queue of the other is there |

Every kind may name members in `killed`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fairsched.amqp.jsonbody import read_fields
from fairsched.consumer.sharing.share_message import LONGEST_NAME

#: Names in each part of a message, and members, at most.
MOST_NAMES = 50_000
#: Longest message, in bytes.
MOST_BYTES = 16 * 1024 * 1024
KINDS = ("beat", "report", "got", "ask", "bye", "stay", "throttle", "keep", "probe")
_MOST = 2**53


class Epoch(NamedTuple):
    """Which keeper a message is of: the one with the largest number, and of these with the largest identity, counts."""

    number: int
    identity: str


#: Before any keeper.
NO_EPOCH = Epoch(0, "")


class GroupLimit(NamedTuple):
    """A limit of the group: permits, 0 for any number; nanoseconds for each message, 0 without a rate; burst."""

    concurrency: int
    interval: int
    burst: int

    def __str__(self) -> str:
        """Return the limit in words."""
        parts = [f"{self.concurrency} in hand"] if self.concurrency else []
        if self.interval:
            parts.append(f"{1e9 / self.interval:.6g} a second with bursts of {self.burst}")
        return " and ".join(parts)

    @property
    def whole(self) -> float:
        """Seconds in which an empty bucket becomes full."""
        return self.interval * self.burst * 1e-9


class HeldName(NamedTuple):
    """The part of a name's limit that a member has or waits for.

    `full_in` are the seconds in which the bucket is full that the member has, or any number if it waits for the bucket;
    None: it does neither.
    """

    limit: GroupLimit
    permits: int
    full_in: float | None


class KnownMember(NamedTuple):
    """The knowledge of a member about another: where it is, for how long it was silent, its lease, its permits."""

    queue: str
    session: int
    age: float
    lease: float
    held: Mapping[str, int]


class Killed(NamedTuple):
    """A connection of a member that ended when the member had not been silent for long: its number, and seconds since.

    The queue of the connection was found gone; see `holder.SILENT`.
    """

    session: int
    age: float


class Ending(Protocol):
    """A member as its process or the keeper knows it: its connection, and when that was found to be gone."""

    session: int
    killed: float | None


def killed_of(members: Mapping[str, Ending], now: float) -> dict[str, Killed]:
    """Return the members that ended without a silence before. O(members)."""
    return {
        identity: Killed(one.session, now - one.killed) for identity, one in members.items() if one.killed is not None
    }


@dataclass
class Message:
    """A message of the group; what a kind does not need is empty.

    `serial` counts the messages that a member says to the keeper by one connection, so that a loss is noticed. `clock`
    is the sender's: what the sender hears after its own message was sent later than that. A want of no permits and no
    bucket ends earlier wants.
    """

    kind: str
    sender: str
    epoch: Epoch = NO_EPOCH
    session: int = 0
    queue: str = ""
    lease: float = 0.0
    serial: int = 0
    clock: float = 0.0
    #: Permits by name, as a beat has them: `believed` checks them, since most of them are never read.
    counts: dict[str, Any] = field(default_factory=dict)
    held: dict[str, HeldName] = field(default_factory=dict)
    wants: dict[str, HeldName] = field(default_factory=dict)
    known: dict[str, KnownMember] = field(default_factory=dict)
    returns: dict[str, int] = field(default_factory=dict)
    grants: dict[str, int] = field(default_factory=dict)
    recalls: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, float] = field(default_factory=dict)
    bucket_recalls: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    killed: dict[str, Killed] = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """Return the body of a message. O(names in it)."""
    return json.dumps({name: value for name, value in vars(message).items() if value}, separators=(",", ":")).encode()


def decode(body: bytes) -> Message:
    """Return what a body says.

    Raises
    ------
    ValueError
        If it is no such message, or says what cannot be; the text is short whatever the body is.
    """
    said = read_fields(body, MOST_BYTES)
    if said.get("kind") not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {str(said.get('kind'))[:20]!r}")
    number, identity = _list(said.get("epoch", [0, ""]), "epoch", 2)
    return Message(
        kind=said["kind"],
        sender=_text(said.get("sender"), "sender"),
        epoch=Epoch(_whole(number, "epoch"), _text(identity, "epoch", 0)),
        session=_whole(said.get("session", 0), "session"),
        serial=_whole(said.get("serial", 0), "serial"),
        clock=_seconds(said.get("clock", 0), "clock"),
        queue=_text(said.get("queue", ""), "queue", 0),
        lease=_seconds(said.get("lease", 0), "lease"),
        counts=_object(said, "counts"),
        held=_table(said, "held", _held),
        wants=_table(said, "wants", _held),
        known=_table(said, "known", _known),
        returns=_table(said, "returns", _whole),
        grants=_table(said, "grants", _whole),
        recalls=_table(said, "recalls", _whole),
        buckets=_table(said, "buckets", _seconds),
        bucket_recalls=[
            _text(one, "bucket_recalls") for one in _list(said.get("bucket_recalls", []), "bucket_recalls")
        ],
        forgotten=[_text(one, "forgotten") for one in _list(said.get("forgotten", []), "forgotten")],
        killed=_table(said, "killed", _killed),
    )


def believed(counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the entries of `Message.counts` that can be. O(names)."""
    return {
        name: count
        for name, count in counts.items()
        if 0 < len(name) <= 2 * LONGEST_NAME and type(count) is int and 0 <= count <= _MOST
    }


def _object(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = said.get(name, {})
    if not isinstance(value, dict) or len(value) > MOST_NAMES:
        raise ValueError(f"{name} must be an object of at most {MOST_NAMES} names")
    return value


def _table(said: Mapping[str, Any], name: str, read: Any) -> dict[str, Any]:
    return {_text(one, name): read(what, name) for one, what in _object(said, name).items()}


def _list(value: Any, name: str, size: int | None = None) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_NAMES or (size is not None and len(value) != size):
        raise ValueError(f"{name} must be a list of {f'at most {MOST_NAMES}' if size is None else size} values")
    return value


def _held(value: Any, name: str) -> HeldName:
    limit, permits, full_in = _list(value, name, 3)
    parts = [_whole(one, name) for one in _list(limit, name, 3)]
    return HeldName(GroupLimit(*parts), _whole(permits, name), None if full_in is None else _seconds(full_in, name))


def _known(value: Any, name: str) -> KnownMember:
    queue, session, age, lease, held = _list(value, name, 5)
    return KnownMember(
        _text(queue, name), _whole(session, name), _seconds(age, name), _seconds(lease, name),
        _table({"held": held}, "held", _whole),
    )  # fmt: skip


def _killed(value: Any, name: str) -> Killed:
    session, age = _list(value, name, 2)
    return Killed(_whole(session, name), _seconds(age, name))


def _text(value: Any, name: str, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= 2 * LONGEST_NAME:
        raise ValueError(f"{name} must have texts of {least} to {2 * LONGEST_NAME} characters")
    return value


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name} must have whole numbers from 0 to {_MOST}")
    return value


def _seconds(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # NaN is not
        raise ValueError(f"{name} must have numbers of at least 0")
    return float(value)
