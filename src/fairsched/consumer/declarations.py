"""Declaring queues and the layouts of lanes: in the I/O thread, on a channel of its own, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairsched.amqp.errors import describe, is_missing
from fairsched.amqp.urls import mask_url
from fairsched.errors import ConfigurationError, ConnectionFailed
from fairsched.lanes.layout import disagreement, layout_request

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop
    from pika.channel import Channel

    from fairsched.amqp.transport import Transport
    from fairsched.config.lanes import Lanes
    from fairsched.config.queues import Queue

_log = logging.getLogger(__name__)

#: Told what became of a declaration: the error, or None.
Done = Callable[[BaseException | None], None]


#: The broker's reply for a queue that is exclusive to another connection.
_LOCKED = 405


class QueueLocked(ConnectionFailed):
    """A queue that is to be exclusive to this connection is another connection's."""


@dataclass(frozen=True)
class Declaration:
    """A queue that is wanted.

    Attributes
    ----------
    queue : str
        Its name.
    purpose : str
        The queue or lanes for which it is declared; begins a message of an error.
    arguments : mapping
        Its arguments.
    if_missing : bool
        Whether one that exists will do, whatever its properties are.
    durable : bool
        Whether it outlives the broker.
    exclusive : bool
        Whether it is for this connection alone, and goes with it.
    bindings : sequence of tuple
        Exchange, routing key and arguments of each.
    """

    queue: str
    purpose: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    if_missing: bool = False
    durable: bool = True
    exclusive: bool = False
    bindings: Sequence[tuple[str, str, Mapping[str, Any]]] = ()


def lock(name: str) -> Declaration:
    """Return what declares a queue by which one connection at a time has a right, until it ends."""
    arguments = {"x-queue-type": "classic"}  # others cannot be exclusive, and may be the default
    return Declaration(name, f"queue {name!r} is to be declared", arguments, durable=False, exclusive=True)


@dataclass(frozen=True)
class LayoutDeclaration:
    """The layout of lanes, which other programs may use differently.

    Attributes
    ----------
    lanes : Lanes
        The lanes.
    """

    lanes: Lanes

    @property
    def purpose(self) -> str:
        """The queue or lanes for which it is declared; begins a message of an error."""
        return f"the layout of lanes {self.lanes.name!r} is to be declared"


def wanted_queues(queues: Mapping[str, Queue]) -> list[Declaration]:
    """Return what declares the queues that are to be declared."""
    found = []
    for name, queue in queues.items():
        purpose = f"queue {name!r} is to be declared"
        if queue.dead_letter is not None:
            found.append(Declaration(queue.dead_letter, f"{purpose} with {queue.dead_letter!r}", if_missing=True))
        if queue.is_declared:
            found.append(
                Declaration(
                    name, purpose, queue.all_arguments, durable=queue.durable is not False, bindings=queue.bindings
                )
            )
    return found


class Declarations:
    """Declares what is wanted, one after the other.

    Parameters
    ----------
    loop : pika IOLoop
        Of the I/O thread.

    Notes
    -----
    `declare` is safe from any thread, the rest is for the I/O thread. The channel is opened when something is wanted.
    What is wanted while there is no connection, or when it is lost, fails.
    """

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._channel: Channel | None = None
        self._opening = False
        self._wanted: deque[tuple[Declaration | LayoutDeclaration, Done]] = deque()
        #: What the broker was asked for and has not answered.
        self._asked: tuple[Declaration | LayoutDeclaration, Done] | None = None
        #: Whether the broker said that it does not exist.
        self._missing = False

    def declare(self, declaration: Declaration, done: Done) -> None:
        """Declare a queue; `done` is called in the I/O thread."""
        self._loop.add_callback_threadsafe(lambda: self._want([declaration], done))

    def declare_all(self, declarations: Sequence[Declaration | LayoutDeclaration], done: Done) -> None:
        """Declare queues and layouts; `done` is called once, with the first error or when all are declared.

        For the I/O thread.
        """
        left = len(declarations)

        def count(error: BaseException | None) -> None:
            nonlocal left
            if left > 0:
                left = -1 if error is not None else left - 1
                if left <= 0:
                    done(error)

        self._want(declarations, count)

    def connected(self, transport: Transport) -> None:
        """Take a new connection."""
        self._transport = transport

    def disconnected(self) -> None:
        """Let everything that is wanted fail."""
        self._transport = self._channel = None
        self._opening = self._missing = False
        failed = list(self._wanted) if self._asked is None else [self._asked, *self._wanted]
        self._asked = None
        self._wanted.clear()
        for declaration, done in failed:
            done(ConnectionFailed(f"{declaration.purpose}: the connection was lost"))

    def _want(self, declarations: Sequence[Declaration | LayoutDeclaration], done: Done) -> None:
        if self._transport is None or not self._transport.is_open:
            for one in declarations:
                done(ConnectionFailed(f"{one.purpose}: there is no connection"))
            return
        self._wanted.extend((one, done) for one in declarations)
        self._go_on()

    def _go_on(self) -> None:
        channel, transport = self._channel, self._transport
        if self._asked is not None or not self._wanted or self._opening or transport is None:
            return
        if not transport.is_open:  # `disconnected` is about to be called
            return
        if channel is None:
            self._opening = True
            transport.channel(on_open_callback=self._on_open)
            return
        self._asked = self._wanted.popleft()
        self._missing = False
        self._ask(channel)

    def _ask(self, channel: Channel) -> None:
        assert self._asked is not None
        wanted = self._asked[0]
        if isinstance(wanted, LayoutDeclaration):
            channel.exchange_declare(**layout_request(wanted.lanes), callback=lambda _frame: self._answered(None))
        elif wanted.if_missing and not self._missing:
            channel.queue_declare(wanted.queue, passive=True, callback=lambda _frame: self._answered(None))
        else:
            channel.queue_declare(
                wanted.queue,
                durable=wanted.durable,
                exclusive=wanted.exclusive,
                arguments=dict(wanted.arguments),
                callback=lambda _frame: self._bind(channel, list(wanted.bindings)),
            )

    def _bind(self, channel: Channel, left: list[tuple[str, str, Mapping[str, Any]]]) -> None:
        if self._asked is None or not channel.is_open:
            return
        wanted = self._asked[0]
        if not left or isinstance(wanted, LayoutDeclaration):
            self._answered(None)
            return
        exchange, key, arguments = left.pop(0)
        channel.queue_bind(
            wanted.queue, exchange, key, dict(arguments), callback=lambda _frame: self._bind(channel, left)
        )

    def _answered(self, error: BaseException | None) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked[1](error)
        self._go_on()

    def _on_open(self, channel: Channel) -> None:
        self._channel = channel
        self._opening = False
        channel.add_on_close_callback(self._on_close)
        if self._asked is not None:
            self._ask(channel)
        else:
            self._go_on()

    def _on_close(self, channel: Channel, reason: Any) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        asked, transport = self._asked, self._transport
        if asked is None or transport is None or not transport.is_open:
            return
        wanted, text = asked[0], mask_url(describe(reason))
        if isinstance(wanted, LayoutDeclaration):  # a broker that does not compare says nothing of other programs
            self._answered(disagreement(wanted.lanes, text))
        elif wanted.if_missing and not self._missing and is_missing(reason):
            self._missing = self._opening = True
            transport.channel(on_open_callback=self._on_open)
        else:
            locked = wanted.exclusive and getattr(reason, "reply_code", None) == _LOCKED
            kind = QueueLocked if locked else ConfigurationError
            self._answered(kind(f"{wanted.purpose}, which the broker refused: {text}"))
