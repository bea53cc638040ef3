"""The operations of a session, printed as they are written.

`on` is the channel: 0 and 1 belong to the first connection, 2 and 3 to the second. In every string `~` stands for what
the names of one run of a session begin with, so that each run has its own queues and exchanges: `~a`. `~gen0`, `~gen1`,
… are the names that the server made, in the order of their making.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

Table = dict[str, Any]

#: Milliseconds that messages and queues live that expire within a session; all others live for a minute or more.
BRIEF = 10
EXPIRES = 100


@dataclass(frozen=True, repr=False)
class Operation:
    """Something that a client does on a channel."""

    on: int

    def __repr__(self) -> str:
        given = [str(self.on)]
        for one in fields(self)[1:]:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            value = getattr(self, one.name)
            if value != default or type(value) is not type(default):
                given.append(f"{one.name}={value!r}")
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class DeclareQueue(Operation):
    queue: str = ""
    arguments: Table = field(default_factory=dict)
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    passive: bool = False
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class DeleteQueue(Operation):
    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class Purge(Operation):
    queue: str = ""
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class AwaitExpiry(Operation):
    """Leave a queue unused until it is gone, or surely would be."""

    queue: str = ""


@dataclass(frozen=True, repr=False)
class DeclareExchange(Operation):
    exchange: str = ""
    kind: str = "direct"
    arguments: Table = field(default_factory=dict)
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    passive: bool = False
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class DeleteExchange(Operation):
    exchange: str = ""
    if_unused: bool = False
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class Bind(Operation):
    queue: str = ""
    exchange: str = ""
    key: str = ""
    arguments: Table = field(default_factory=dict)
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class Unbind(Bind):
    pass


@dataclass(frozen=True, repr=False)
class BindExchange(Operation):
    destination: str = ""
    source: str = ""
    key: str = ""
    arguments: Table = field(default_factory=dict)
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class UnbindExchange(BindExchange):
    pass


@dataclass(frozen=True, repr=False)
class Publish(Operation):
    """`count` messages, sent together; their bodies tell which they are, and have `size` octets or more."""

    exchange: str = ""
    key: str = ""
    count: int = 1
    size: int = 0
    mandatory: bool = False
    immediate: bool = False
    properties: Table = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Get(Operation):
    queue: str = ""
    no_ack: bool = False


@dataclass(frozen=True, repr=False)
class Consume(Operation):
    queue: str = ""
    tag: str = ""
    no_ack: bool = False
    exclusive: bool = False
    arguments: Table = field(default_factory=dict)
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class Cancel(Operation):
    tag: str = ""
    nowait: bool = False


@dataclass(frozen=True, repr=False)
class Settlement(Operation):
    """Of the nth message that the channel has to settle, counted around; -1: of the last that it settled; None: tag 0.

    A channel that has none settles tag 1000.
    """

    nth: int | None = 0
    multiple: bool = False


@dataclass(frozen=True, repr=False)
class Ack(Settlement):
    pass


@dataclass(frozen=True, repr=False)
class Nack(Settlement):
    requeue: bool = True


@dataclass(frozen=True, repr=False)
class Reject(Operation):
    nth: int | None = 0
    requeue: bool = True


@dataclass(frozen=True, repr=False)
class Recover(Operation):
    requeue: bool = True
    answered: bool = True


@dataclass(frozen=True, repr=False)
class Qos(Operation):
    count: int = 0
    everywhere: bool = False
    size: int = 0


@dataclass(frozen=True, repr=False)
class SelectConfirms(Operation):
    pass


@dataclass(frozen=True, repr=False)
class SelectTransactions(Operation):
    pass


@dataclass(frozen=True, repr=False)
class Commit(Operation):
    pass


@dataclass(frozen=True, repr=False)
class Rollback(Operation):
    pass


@dataclass(frozen=True, repr=False)
class Flow(Operation):
    active: bool = False


@dataclass(frozen=True, repr=False)
class CloseChannel(Operation):
    """The channel is opened again, under the same number."""


@dataclass(frozen=True, repr=False)
class CloseConnection(Operation):
    """The connection of the channel is closed, without a word if `abruptly`, and made again."""

    abruptly: bool = False


Session = list[Operation]


def printed(session: Session) -> str:
    """Return a session as Python source."""
    return "[\n" + "".join(f"    {operation!r},\n" for operation in session) + "]"
