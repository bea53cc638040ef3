"""Test handlers without a broker: messages in, settlements out, with the settlement code of the real consumer."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pika.spec import Basic, BasicProperties

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp._publishing import PublishWindow
from fairsched.config.queues import Queue
from fairsched.consumer.batching.arrow import ArrowBatch, ArrowColumns
from fairsched.consumer.batching.batch_methods import BatchMethods, MakeBatches
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.explanation import check_consumed
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
from fairsched.errors import ConfigurationError
from fairsched.publisher.calls import Calls, request_properties
from fairsched.publisher.client import Client
from fairsched.publisher.contents import Contents

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fairsched.amqp._publishing import Confirmation
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

    #: Returns what `Message.reply` and `Message.call` publish with, as for a consumer of an `App`; None: nothing does.
    publisher: Callable[[], Any] | None = None

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


class _KeptMessages:
    """The publisher of a `FakeConsumer`: replies and requests are checked and encoded as by a `Publisher`, and kept.

    Parameters
    ----------
    answer : callable or None
        ``answer(request)`` returns the body of the reply to a call.
    """

    def __init__(self, answer: Callable[[Message], Buffer] | None) -> None:
        self.replies: list[Message] = []
        self.requests: list[Message] = []
        self._answer = answer
        self._calls = Calls()
        self._contents = Contents()
        self._window = PublishWindow(1, 1, lambda: None)

    def reply(self, message: Message, body: Buffer, *, mandatory: bool = True, **values: Any) -> Confirmation:
        """Keep a reply; it counts as confirmed."""
        address, values = Client.answer(message, values)
        return self._keep(self.replies, body, "", address, self._contents.encode(None, values))

    def call(
        self,
        body: Buffer,
        routing_key: str = "",
        *,
        exchange: str = "",
        timeout: float | None = 30.0,
        properties: BasicProperties | None = None,
        **values: Any,
    ) -> Message:
        """Keep a request, and return the answer to it."""
        call = self._calls.create(routing_key, timeout, lambda: None)
        encoded = self._contents.encode(properties, request_properties(call, values))
        self._keep(self.requests, body, exchange, routing_key, encoded)
        if self._answer is None:
            raise call.late("the FakeConsumer has no answer=")
        answered = memoryview(self._answer(self.requests[-1])).tobytes()
        answer = BasicProperties(correlation_id=call.correlation_id)
        reply = Message(answered, 1, False, Basic.Deliver(), answer, FakeChannel("amq.rabbitmq.reply-to"))
        reply.settled = True
        return reply

    def _keep(
        self, kept: list[Message], body: Buffer, exchange: str, routing_key: str, properties: bytes
    ) -> Confirmation:
        confirmation: Confirmation = self._window.put(exchange, routing_key, properties, body, True)
        self._window.output(1)
        self._window.confirm(0, True, False)
        content = memoryview(body).tobytes()
        method = Basic.Deliver("fake", len(kept) + 1, False, exchange, routing_key)
        header = _content_header(content, properties)
        kept.append(Message(content, len(kept) + 1, False, method, header, FakeChannel(routing_key)))
        return confirmation


def _content_header(body: bytes, properties: bytes) -> bytes:
    return struct.pack(">HHQ", 60, 0, len(body)) + properties  # class, weight, size


def _requeue(message: Message) -> None:
    settle_failed(message, AckLedger.REQUEUE)


class FakeConsumer(BatchMethods[Iterator[MessageBatch], Iterator[ArrowBatch]]):
    """A consumer without a broker: it gives handlers the messages that a test puts in, one at a time.

    Parameters
    ----------
    on_error, retry, decode, middleware, time_limit
        As for `fairsched.Consumer`; the same for all queues.
    answer : callable, optional
        ``answer(request)`` returns the body of the reply to a `Message.call` of a handler, or raises what the call
        raises. Without it, each call raises `TimeoutError` at once.

    Attributes
    ----------
    channels : dict of str to FakeChannel
        The channel of each queue.
    errors : list of (Message, Exception)
        Messages whose handlers raised, with the exceptions.
    waiting : list of (Message, float)
        Messages whose copies wait for another attempt, with the delay in seconds.
    replies, requests : list of Message
        What handlers published by `Message.reply` and `Message.call`; ``routing_key`` is the one it was published with.
    dead_letters : list of Message
        Copies in a dead-letter queue: ``queue`` is its name, and ``headers["x-exception"]`` the reason.
    queues : dict of str to Queue
        The queues that are consumed: at first ``"test"``; then those that messages were put into or that were added,
        without those that were removed.

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
        answer: Callable[[Message], Buffer] | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            "amqp://localhost", ["test"], on_error=on_error, retry=retry, decode=decode, middleware=middleware,
            time_limit=time_limit,
        )  # fmt: skip
        if answer is not None and not callable(answer):
            raise ConfigurationError(f"answer must be a function of a request, got {answer!r}")
        self._kept = _KeptMessages(answer)
        self.replies, self.requests = self._kept.replies, self._kept.requests
        self.channels: dict[str, FakeChannel] = {}
        self.errors: list[tuple[Message, Exception]] = []
        self.waiting: list[tuple[Message, float]] = []
        self.dead_letters: list[Message] = []
        self._returning: list[tuple[Message, bytes]] = []
        self._counters = Counters()
        self._retries = _KeptCopies(self._settings.retries, self._on_copy)
        self._failures = FailurePolicy(
            self._settings.options.on_error, self._counters, self._retries, policies=self._settings.policies
        )
        #: Of the plain handlers that run now, if a time limit was set when they began; and whether some run.
        self._limited: TimeLimits | None = None
        self._running = False
        #: Time limits of coroutines, by queue.
        self._seconds = dict(self._settings.time_limits)
        self._removed: set[str] = set()
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
        ConfigurationError
            If the queue was removed: a consumer would not get the message.
        """
        if not isinstance(body, bytes):
            raise TypeError(f"body must be bytes, got {body!r}")
        if queue in self._removed:
            raise ConfigurationError(f"queue {queue!r} was removed, so no message can come from it; add it first")
        if queue not in self._settings.queues:
            self._use(self._settings.with_queues({queue: Queue(queue)}))
        key = queue if routing_key is None else routing_key
        made = self._make(body, queue, BasicProperties(headers=headers, **properties), redelivered, exchange, key)
        self._waiting.append(made)
        return made

    @property
    def queues(self) -> dict[str, Queue]:
        """The queues that are consumed."""
        return dict(self._settings.queues)

    def add_queue(self, queue: str | Queue) -> None:
        """Consume another queue, as `Consumer.add_queue` does; `on_error`, `retry` and `time_limit` are its own.

        Parameters
        ----------
        queue : str or Queue
            Its name, or how to consume it.

        Raises
        ------
        ConfigurationError
            If the queue is consumed already with other options, or an option does not go with those of the consumer.

        Notes
        -----
        O(number of queues). May be called by a handler.
        """
        added = queue if isinstance(queue, Queue) else Queue(queue)
        known = self._settings.queues.get(added.name)
        if known is None:
            self._use(self._settings.with_queues({added.name: added}))
            self._removed.discard(added.name)
        elif known != added:
            raise ConfigurationError(
                f"queue {added.name!r} is consumed already, with other options; remove it first, got {added!r}"
            )

    def remove_queue(self, queue: str) -> None:
        """Stop consuming a queue, as `Consumer.remove_queue` does: messages that were not handled are requeued.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError
            If the queue is not consumed.

        Notes
        -----
        Returns at once, and unsettled messages that a handler got can still be settled. O(number of queues and
        messages). May be called by a handler.
        """
        check_consumed(queue, self._settings)
        self._use(self._settings.without_queues([queue]))
        self._removed.add(queue)
        left = [message for message in self._waiting if message.queue == queue]
        self._waiting = deque(message for message in self._waiting if message.queue != queue)
        for message in left:
            message.put_back()

    def _use(self, settings: ConsumerSettings) -> None:
        """Use settings with other queues."""
        if settings.time_limits and self._running and self._limited is None:
            raise ConfigurationError(
                "time_limit of a queue needs a run that began with one; give the consumer the option time_limit"
            )
        self._seconds.clear()
        self._seconds.update(settings.time_limits)
        self._settings = settings
        self._retries.take(settings.retries)
        self._failures.take(settings.policies, self._retries)
        if self._limited is not None:
            self._limited.take(settings.time_limits)

    def return_waiting(self) -> list[Message]:
        """End the delay of all waiting copies: they are added, to be handled by the next `run`.

        Returns
        -------
        list of Message
            The copies, as handlers get them, with the headers that count attempts. Those of queues that were removed
            stay in these, and are not among them.
        """
        copies = [
            self._make(message.body, message.queue, properties, False, "", message.queue)
            for message, properties in self._returning
            if message.queue not in self._removed
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
            channel.publisher = lambda: self._kept
        tag = len(self._messages) + 1
        method = Basic.Deliver("fake", tag, redelivered, exchange, key)
        message = self._messages[tag] = Message(body, tag, redelivered, method, properties, channel)
        return message

    def _on_copy(self, message: Message, declaration: Declaration, properties: bytes) -> None:
        """Keep the copy of a message that failed, in place of a broker."""
        encoded = _content_header(message.body, properties)
        if declaration.if_missing:
            name = declaration.queue
            self.dead_letters.append(self._make(message.body, name, encoded, False, "", name))
        else:
            self.waiting.append((message, declaration.arguments["x-message-ttl"] / 1000))
            self._returning.append((message, encoded))

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call a plain handler for all messages that were put in, as `Consumer.run` does, and return."""
        check_plain(handler, "handler")
        with self._limiting() as limits:
            handler = around_plain(self._settings, handler, limits)
            for message in self:
                call(handler, message)

    async def run_async(self, handler: Callable[[Message], object]) -> None:
        """Call a handler for all messages that were put in, one at a time, as `aio.Consumer.run` does, and return."""
        awaited = is_coroutine_handler(handler)
        with nullcontext() if awaited else self._limiting() as limits:
            thread = None
            calls: Any = handler
            if not awaited:
                calls = thread = HandlerThread(around_thread(self._settings, handler, limits), "fairsched-worker-0")
            try:
                calls = around_coroutine(
                    self._settings, calls, self._counters, threaded=not awaited, seconds=self._seconds
                )
                for message in self:
                    await call_async(calls, message)
            finally:
                if thread is not None:
                    thread.leave()

    @contextmanager
    def _limiting(self) -> Iterator[TimeLimits | None]:
        """Limit the time of handlers."""
        limits = self._settings.time_limits
        self._limited = TimeLimits(limits, self._counters) if limits else None
        self._running = True
        try:
            with self._limited or nullcontext():
                yield self._limited
        finally:
            self._limited, self._running = None, False

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
