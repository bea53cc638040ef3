"""Test handlers without a broker: messages in, settlements out, with the settlement code of the real consumer."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pika.spec import Basic, BasicProperties

from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.batching.arrow import ArrowBatch, ArrowColumns
from fairsched.consumer.batching.batch_methods import BatchMethods, MakeBatches
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.handling.around import around_coroutine, around_plain, around_thread
from fairsched.consumer.handling.delayed_retries import DelayedRetries
from fairsched.consumer.handling.failures import FailurePolicy, call_async
from fairsched.consumer.handling.handler_thread import HandlerThread
from fairsched.consumer.handling.retries import Retries, copy_properties
from fairsched.consumer.handling.time_limit import TimeLimits
from fairsched.consumer.settings import ConsumerSettings, OnError
from fairsched.delivery._counters import Counters
from fairsched.delivery._delivery import Message
from fairsched.delivery._messagesource import call
from fairsched.delivery._settling import ask_about, settle_failed
from fairsched.delivery.handlers import check_plain, is_coroutine_handler

if TYPE_CHECKING:
    from fairsched.config.retry import Retry
    from fairsched.consumer.declarations import Declaration

__all__ = ["FakeChannel", "FakeConsumer"]


class FakeChannel:
    """A stand-in for the channel of one queue's messages; it records their settlements.

    Parameters
    ----------
    queue : str
        The queue's name.
    failed : callable, optional
        ``failed(message, error)`` settles a message whose handler raised; by default it is requeued.
    decode : callable, optional
        ``decode(message)`` returns ``message.data``.

    Attributes
    ----------
    alive : bool
        Set it to False to simulate a lost connection: then settling has no effect.
    settled : list of (int, int)
        Delivery tags and verdicts (`AckLedger.ACK`, `REQUEUE` or `REJECT`), in the order of settlement.
    """

    def __init__(
        self,
        queue: str = "test",
        failed: Callable[[Message, Exception], None] | None = None,
        decode: Callable[[Message], Any] | None = None,
    ) -> None:
        self.queue = queue
        self.decode = decode
        self.alive = True
        self.settled: list[tuple[int, int]] = []
        self._failed = failed

    def settle(self, tag: int, verdict: int) -> bool:
        """Record a settlement; False if the channel is closed."""
        if self.alive:
            self.settled.append((tag, verdict))
        return self.alive

    def failed(self, message: Message, error: Exception) -> None:
        """Settle a message whose handler raised; `failed` may use the methods of the message, as ``on_error`` may."""
        if self._failed is None:
            settle_failed(message, AckLedger.REQUEUE)
            return
        ask_about(message)
        self._failed(message, error)


class _KeptCopies(Retries):
    """Retries whose copies are kept instead of published."""

    def __init__(self, rules: Mapping[str, Retry], keep: Callable[[Message, Declaration, bytes], None]) -> None:
        super().__init__(rules, (), DelayedRetries(), _requeue)
        self._keep = keep

    def send(self, message: Message, declaration: Declaration, attempt: int, error: Exception, what: str) -> None:
        """Ack a message and keep its copy; neither if the connection is lost, since the broker then redelivers it."""
        if settle_failed(message, AckLedger.ACK):
            self._keep(message, declaration, copy_properties(message, attempt, error))


def _requeue(message: Message) -> None:
    settle_failed(message, AckLedger.REQUEUE)


class FakeConsumer(BatchMethods[Iterator[MessageBatch], Iterator[ArrowBatch]]):
    """A consumer without a broker: it gives handlers the messages that a test puts in, one at a time.

    Parameters
    ----------
    on_error, retry, decode, middleware, time_limit
        As for `fairsched.Consumer`; the same for all queues.

    Attributes
    ----------
    channels : dict of str to FakeChannel
        The channel of each queue.
    errors : list of (Message, Exception)
        Messages whose handlers raised, with the exceptions.
    waiting : list of (Message, float)
        Messages whose copies wait for another attempt, with the delay in seconds.
    dead_letters : list of Message
        Copies in a dead-letter queue: ``queue`` is its name, and ``headers["x-exception"]`` the reason.

    Raises
    ------
    ConfigurationError
        If an option is invalid.

    Notes
    -----
    A requeued message is not redelivered: `put` another message with ``redelivered=True``. Retry delays do not pass by
    themselves: `return_waiting` ends all of them. A batch does not wait to be full, as if `max_wait` had passed; the
    column "queue" of an Arrow batch has the queues of all messages put in so far.

    Use it from one thread; messages may be settled in other threads.

    Examples
    --------
    >>> consumer = FakeConsumer(on_error="reject")
    >>> good, bad = consumer.put(b"1"), consumer.put(b"x")
    >>> consumer.run(lambda message: int(message.body))
    >>> consumer.acked == [good], consumer.rejected == [bad]
    (True, True)
    """

    def __init__(
        self,
        *,
        on_error: OnError = "requeue",
        retry: Retry | None = None,
        decode: str | Callable[[bytes], Any] | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        time_limit: float | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            "amqp://localhost", ["test"], on_error=on_error, retry=retry, decode=decode, middleware=middleware,
            time_limit=time_limit,
        )  # fmt: skip
        self.channels: dict[str, FakeChannel] = {}
        self.errors: list[tuple[Message, Exception]] = []
        self.waiting: list[tuple[Message, float]] = []
        self.dead_letters: list[Message] = []
        self._returning: list[tuple[Message, bytes]] = []
        self._counters = Counters()
        self._rules: dict[str, Retry] = {}
        self._failures = FailurePolicy(
            self._settings.options.on_error, self._counters, _KeptCopies(self._rules, self._on_copy)
        )
        self._messages: dict[int, Message] = {}
        self._waiting: deque[Message] = deque()

    def put(
        self,
        body: bytes = b"",
        *,
        queue: str = "test",
        headers: dict[str, Any] | None = None,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str | None = None,
        **properties: Any,
    ) -> Message:
        """Add a message, to be handled by the next `run`.

        Parameters
        ----------
        body : bytes
            The content.
        queue : str
            The queue that the message comes from.
        headers : dict, optional
            The publisher's headers.
        redelivered : bool
            Whether the message was delivered before.
        exchange, routing_key : str
            Where the message was published to; by default, directly to the queue.
        **properties
            Other properties of pika's ``BasicProperties``, such as ``message_id``.

        Returns
        -------
        Message
            The message that handlers get.

        Raises
        ------
        TypeError
            If the body is not bytes, as it always is in messages from a broker.
        """
        if not isinstance(body, bytes):
            raise TypeError(f"body must be bytes, got {body!r}")
        key = queue if routing_key is None else routing_key
        made = self._make(body, queue, BasicProperties(headers=headers, **properties), redelivered, exchange, key)
        self._waiting.append(made)
        return made

    def return_waiting(self) -> list[Message]:
        """End the delay of all waiting copies: they are added, to be handled by the next `run`.

        Returns
        -------
        list of Message
            The copies, as handlers get them, with the headers that count attempts.
        """
        copies = [
            self._make(message.body, message.queue, properties, False, "", message.queue)
            for message, properties in self._returning
        ]
        self._returning.clear()
        self.waiting.clear()
        self._waiting += copies
        return copies

    def _make(
        self, body: bytes, queue: str, properties: BasicProperties | bytes, redelivered: bool, exchange: str, key: str
    ) -> Message:
        channel = self.channels.get(queue)
        if channel is None:
            channel = self.channels[queue] = FakeChannel(queue, self._on_failure, self._settings.decode)
            options = self._settings.options
            if options.retry is not None:
                self._rules[queue] = options.retry
            if options.time_limit is not None:
                self._settings.time_limits[queue] = options.time_limit
        tag = len(self._messages) + 1
        method = Basic.Deliver("fake", tag, redelivered, exchange, key)
        message = self._messages[tag] = Message(body, tag, redelivered, method, properties, channel)
        return message

    def _on_copy(self, message: Message, declaration: Declaration, properties: bytes) -> None:
        """Keep the copy of a message that failed, in place of a broker."""
        encoded = struct.pack(">HHQ", 60, 0, len(message.body)) + properties  # class, weight, size
        if declaration.if_missing:
            name = declaration.queue
            self.dead_letters.append(self._make(message.body, name, encoded, False, "", name))
        else:
            self.waiting.append((message, declaration.arguments["x-message-ttl"] / 1000))
            self._returning.append((message, encoded))

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call a plain handler for all messages that were put in, as `Consumer.run` does, and return."""
        check_plain(handler, "handler")
        limits = self._limits()
        handler = around_plain(self._settings, handler, limits)
        with limits or nullcontext():
            for message in self:
                call(handler, message)

    async def run_async(self, handler: Callable[[Message], object]) -> None:
        """Call a handler for all messages that were put in, one at a time, as `aio.Consumer.run` does, and return."""
        awaited = is_coroutine_handler(handler)
        limits = None if awaited else self._limits()
        thread = None
        calls: Any = handler
        if not awaited:
            calls = thread = HandlerThread(around_thread(self._settings, handler, limits), "fairsched-worker-0")
        try:
            calls = around_coroutine(self._settings, calls, self._counters, threaded=not awaited)
            with limits or nullcontext():
                for message in self:
                    await call_async(calls, message)
        finally:
            if thread is not None:
                thread.leave()

    def _limits(self) -> TimeLimits | None:
        limits = self._settings.time_limits
        return TimeLimits(limits, self._counters) if limits else None

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages that were put in; the caller settles each, or uses it in a ``with``."""
        while self._waiting:
            yield self._waiting.popleft()

    def _arrow_columns(self, headers: Sequence[str], properties: Sequence[str]) -> MakeBatches:
        ArrowColumns([], headers, properties)  # which checks them, before anything is taken

        def make(*args: Any) -> Generator[ArrowBatch]:
            return ArrowColumns(list(self.channels), headers, properties).batches(*args)

        return make

    def _each_batch(self, make: MakeBatches, size: int, wait: float) -> Iterator[Any]:
        while self._waiting:
            messages = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            yield from make(messages, self._on_failures, lambda _messages, _elapsed: None)

    def _on_failures(self, messages: list[Message], error: Exception) -> None:
        self.errors += ((message, error) for message in messages)
        self._failures.settle_many(messages, error)

    def _on_failure(self, message: Message, error: Exception) -> None:
        self.errors.append((message, error))
        self._failures.settle(message, error)

    def _settled(self, verdict: int) -> list[Message]:
        found = (pair for channel in self.channels.values() for pair in channel.settled)
        return [self._messages[tag] for tag, one in found if one == verdict]

    @property
    def acked(self) -> list[Message]:
        """Acknowledged messages, those of one queue in the order of settlement; so are the lists below."""
        return self._settled(AckLedger.ACK)

    @property
    def requeued(self) -> list[Message]:
        """Messages that were requeued."""
        return self._settled(AckLedger.REQUEUE)

    @property
    def rejected(self) -> list[Message]:
        """Messages that were rejected: dead-lettered if their queue has a dead-letter exchange, otherwise dropped."""
        return self._settled(AckLedger.REJECT)

    @property
    def unsettled(self) -> list[Message]:
        """Unsettled messages: not yet handled, or deferred."""
        return [message for message in self._messages.values() if not message.settled]
