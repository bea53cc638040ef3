"""One delivery, in the hands of a handler."""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from pika import spec

from fairsched._amqp import AckLedger
from fairsched.amqp.properties import decode
from fairsched.consumer.handlers import check_result
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from pika.spec import Basic, BasicProperties


#: Looked up once: every message is settled.
_ACK = AckLedger.ACK


class Origin(Protocol):
    """Where a message came from and where its settlement goes: one channel."""

    queue: str
    alive: bool

    def settle(self, tag: int, verdict: int) -> bool:
        """Settle one delivery; False if it was settled before."""

    def failed(self, message: Message, error: Exception) -> None:
        """Settle a message whose handler raised, as the consumer's ``on_error`` says."""


def _text(found: str | bytes | None) -> str:
    """Return a name of the method as text; pika has bytes for one that is no UTF-8."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


class Message:
    """A delivered message, to be settled once: by `ack`, `nack` or `reject`, from any thread.

    Attributes
    ----------
    body : bytes
        The content.
    delivery_tag : int
        The broker's number for this delivery, counted per channel.
    redelivered : bool
        Whether the broker may have delivered it before.
    arrived : float
        When it was received, on the clock of ``time.monotonic``.
    slot : hashable
        Whom it is charged to: its queue, or its tenant when the consumer has a ``key``.
    cost : int
        What it is charged.
    settled : bool
        Whether it was settled, by the handler or for it.
    deferred : bool
        Whether it stays unsettled when the handler returns; see `defer`.

    Notes
    -----
    Settling twice is allowed: the first call decides, later ones do nothing and return False. Settling a message
    whose channel is gone does nothing either, since the broker delivers it again; ``stats()`` counts such calls.

    As a context manager a message is acked when the block ends, unless the block settled it, and settled as the
    consumer's ``on_error`` says when the block raises an `Exception`. Anything else, such as KeyboardInterrupt or a
    task's CancelledError, is no failure of the message, which is requeued. The exception goes on.
    """

    __slots__ = (
        "_decoded",
        "_delivery",
        "_origin",
        "_properties",
        "arrived",
        "body",
        "cost",
        "deferred",
        "delivery_tag",
        "redelivered",
        "settled",
        "slot",
    )

    def __init__(
        self,
        body: bytes,
        delivery_tag: int,
        redelivered: bool,
        delivery: Basic.Deliver | bytes,
        properties: BasicProperties | bytes,
        origin: Origin,
        arrived: float = 0.0,
    ) -> None:
        self.body = body
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self._delivery = delivery
        self._properties = properties
        self._decoded: BasicProperties | None = None
        self._origin = origin
        self.slot: Hashable = origin.queue
        self.cost = 1
        self.arrived = arrived
        self.settled = False
        self.deferred = False

    @property
    def delivery(self) -> Basic.Deliver:
        """The method as pika's ``Basic.Deliver``; decoded on first use."""
        found = self._delivery
        if isinstance(found, bytes):
            # Behind class and method number.
            found = self._delivery = spec.Basic.Deliver().decode(found, 4)
        return found

    @property
    def properties(self) -> BasicProperties:
        """What the publisher said about it, as pika's ``BasicProperties``; decoded on first use.

        To read ``properties.headers`` raises `DecodingError` if these alone cannot be decoded, and so does this if
        nothing can.
        """
        found = self._decoded
        if found is None:
            raw = self._properties
            found = self._decoded = decode(raw) if isinstance(raw, bytes) else raw
        return found

    @property
    def raw_properties(self) -> bytes:
        """The properties as they were sent: equal for deliveries of one message."""
        found = self._properties
        return found if isinstance(found, bytes) else b"".join(found.encode())

    @property
    def queue(self) -> str:
        """The queue it was consumed from."""
        return self._origin.queue

    @property
    def headers(self) -> dict[str, Any]:
        """The publisher's headers; empty when there are none. Raises `DecodingError` if they cannot be decoded."""
        return self.properties.headers or {}

    @property
    def exchange(self) -> str:
        """The exchange it was published to; empty for the default exchange. What is no UTF-8 in it is replaced."""
        return _text(self.delivery.exchange)

    @property
    def routing_key(self) -> str:
        """The routing key it was published with. What is no UTF-8 in it is replaced."""
        return _text(self.delivery.routing_key)

    @property
    def alive(self) -> bool:
        """Whether the channel it came on still stands, so that settling it has an effect."""
        return self._origin.alive

    def ack(self) -> bool:
        """Say that the message was processed; the broker forgets it.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        O(1) amortised, never waits for the network. Safe from any thread.
        """
        return self._settle(AckLedger.ACK)

    def nack(self, requeue: bool = True) -> bool:
        """Give the message back.

        Parameters
        ----------
        requeue : bool
            True puts it back into its queue; False drops it, or dead-letters it where the queue says so.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        As `ack`. It is sent as ``basic.nack``: RabbitMQ counts ``basic.reject`` towards the delivery limit of a
        quorum queue.
        """
        return self._settle(AckLedger.REQUEUE if requeue else AckLedger.REJECT)

    def reject(self, requeue: bool = False) -> bool:
        """Refuse the message: drop it, or dead-letter it where the queue says so.

        Parameters
        ----------
        requeue : bool
            True puts it back into its queue instead.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        As `nack`, with the other default.
        """
        return self.nack(requeue)

    def defer(self) -> None:
        """Keep the message unsettled when the handler returns: somebody settles it later, from whatever thread.

        Notes
        -----
        O(1). Until it is settled it takes one place of its queue's window.
        """
        self.deferred = True

    def finish(self, result: object = None) -> None:
        """Ack the message unless it was settled or deferred; what returning from a handler means.

        Parameters
        ----------
        result : object
            What the handler returned.

        Raises
        ------
        ConfigurationError
            If that is a coroutine or a generator, of which nothing ran. The message is requeued.
        """
        if result is not None:
            try:
                check_result(result, "handler")
            except ConfigurationError:
                self.nack()
                raise
        if not (self.settled or self.deferred):
            self.settled = True
            self._origin.settle(self.delivery_tag, _ACK)

    def fail(self, error: BaseException) -> None:
        """Settle the message as the consumer's ``on_error`` says; what an exception of the handler means.

        Ctrl-C, a cancelled task, a closed generator: none of them says anything about the message, which is requeued.
        """
        if isinstance(error, Exception):
            self._origin.failed(self, error)
        else:
            self.nack()

    def _settle(self, verdict: int) -> bool:
        if self.settled:
            return False
        self.settled = True
        return self._origin.settle(self.delivery_tag, verdict)

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.fail(error)

    def __repr__(self) -> str:
        # Bodies may be large or secret: never shown.
        state = "settled" if self.settled else "unsettled"
        return f"<Message {self.delivery_tag} of queue {self.queue!r}, {len(self.body)} bytes, {state}>"
