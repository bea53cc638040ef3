"""The synchronous consumer: a context manager, an iterator, and worker threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fairsched.config.arguments import made_by
from fairsched.consumer.batching.arrow import ArrowBatch, ArrowColumns
from fairsched.consumer.batching.batches import MessageBatch, check_limits, plain_batches
from fairsched.consumer.batching.pending_batch import taken
from fairsched.consumer.client import DROPPED, Client
from fairsched.consumer.explanation import Explanation
from fairsched.consumer.handling.around import around_plain
from fairsched.consumer.handling.workers import WorkerThreads
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.state import ConsumerState
from fairsched.delivery.handlers import check_plain

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue

_Batch = TypeVar("_Batch", bound=MessageBatch)

#: How often a waiting iterator looks whether the shutdown timeout is over, in seconds.
_SLICE = 1.0


class Consumer:
    """Consume RabbitMQ queues in weighted fair order.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://`` URL; several URLs are tried in turn.
    queues : mapping of str to int, or sequence of str
        Weight of each queue, or the names of queues with equal weights.
    **options
        Prefetch, workers, the cost of a message, the handling of failed and late messages, and more:
        `fairsched.config.ConsumerOptions` documents each option.

    Raises
    ------
    ConfigurationError
        If an argument is invalid.

    Notes
    -----
    All methods are safe from any thread. Heartbeats, recovery and settlement run in a separate thread, so a handler may
    take as long as the broker's ``consumer_timeout`` allows, 30 minutes by default. Delivery is at least once: after a
    lost connection the broker redelivers unacked messages, and settling the earlier delivery has no effect.

    Examples
    --------
    >>> with Consumer(url, {"gold": 40, "free": 4}) as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         with message:
    ...             work(message.body)
    """

    @made_by(ConsumerSettings)
    def __init__(self, settings: ConsumerSettings) -> None:
        self._client = client = Client(settings)
        alive = weakref.ref(self)
        client.orphaned = lambda: "" if alive() is not None else DROPPED
        self._workers: WorkerThreads | None = None
        self._entered = False

    def __enter__(self) -> Consumer:
        self._client.start()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close(at_once=kind is not None)

    def __del__(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.warn_if_running()

    def __iter__(self) -> Iterator[Message]:
        """Yield messages in fair order until `stop`; the caller settles each, or uses it in a ``with``.

        Raises
        ------
        ConfigurationError
            If there are lanes, which only `run` serves: an `ordering_key` and more than one of `workers`.
        FairschedError
            If consuming cannot go on.
        RuntimeError
            Outside of the ``with`` block, and in a child process that was forked since.
        BaseException
            Whatever ended the I/O thread, such as SystemExit raised by a key function.

        Notes
        -----
        Leaving the ``with`` block after a `stop` waits for the messages that were handed out and are not settled.
        Leaving it without one, or by an exception, does not: they return to their queues.
        """
        client = self._client
        client.check_process()
        client.check_open()
        if not self._entered:
            raise RuntimeError("iterate inside 'with consumer:', which connects and closes")
        yield from client.messages(client.lanes.only(), _SLICE, client.is_over)
        if client.error is not None:
            raise client.error

    def batches(self, max_size: int = 256, max_wait: float = 0.1) -> Iterator[MessageBatch]:
        """Yield batches of messages in fair order until `stop`; the caller settles each batch or uses it in a ``with``.

        Parameters
        ----------
        max_size : int
            Maximum number of messages in a batch, from 1 to 1 000 000. No batch is larger than the prefetch windows
            together (`prefetch`); a prefetch of twice `max_size` keeps the broker sending while a batch is handled.
        max_wait : float
            Seconds that a batch which is not full waits for more messages after its first; 0 to 3600. It does not wait
            if the prefetch windows are full, so that no more messages can come, or if the consumer stops.

        Returns
        -------
        iterator of MessageBatch
            Sequences of messages. The wait for the first message of a batch has no time limit.

        Raises
        ------
        ConfigurationError
            If an argument is invalid, or the consumer has lanes, which only `run` serves.
        FairschedError, RuntimeError, BaseException
            As for an iteration over the consumer.

        Notes
        -----
        A stop, the end of the consumer's ``with`` block and a lost connection have the same effects as on the messages
        of an iteration. An exception that interrupts the wait for more messages requeues those already in the batch.

        Examples
        --------
        >>> with Consumer(url, {"gold": 40, "free": 4}, prefetch=1000) as consumer:  # doctest: +SKIP
        ...     for batch in consumer.batches(max_size=256):
        ...         with batch:
        ...             store([message.body for message in batch])
        """
        return self._batches(plain_batches, max_size, max_wait)

    def arrow_batches(
        self,
        max_size: int = 256,
        max_wait: float = 0.1,
        *,
        headers: Sequence[str] = (),
        properties: Sequence[str] = (),
    ) -> Iterator[ArrowBatch]:
        """Yield batches of messages as Arrow record batches, in fair order, until `stop`; needs pyarrow.

        Parameters
        ----------
        max_size, max_wait
            As for `batches`.
        headers : sequence of str
            Names of headers to include, each as a string column of that name. Values other than text are written as
            JSON. The value is null if a message does not have the header, or its headers cannot be decoded.
        properties : sequence of str
            Names of properties to include, such as "message_id", each as a column of that name: a string, except
            ``priority`` and ``delivery_mode`` (int32) and ``timestamp`` (in UTC; null beyond the year 9999). The value
            is null if a message does not have the property, or it cannot be decoded.

        Returns
        -------
        iterator of ArrowBatch
            Batches as from `batches`, each with a ``record_batch``.

        Raises
        ------
        ConfigurationError
            As for `batches`; or if pyarrow is not installed, a property does not exist, or two columns would have the
            same name.
        FairschedError, RuntimeError, BaseException
            As for an iteration over the consumer.

        Notes
        -----
        The columns of ``batch.record_batch`` are ``body`` (binary), ``queue`` (dictionary of strings: all queues of
        this consumer, the same in every batch), ``exchange`` and ``routing_key`` (strings), ``redelivered`` (bool),
        then properties and headers. Invalid UTF-8 in a string is replaced. Messages whose bodies exceed 2 GiB together
        are split into several batches.

        Examples
        --------
        >>> with Consumer(url, {"gold": 40, "free": 4}, prefetch=1000) as consumer:  # doctest: +SKIP
        ...     for batch in consumer.arrow_batches(headers=["tenant"]):
        ...         with batch:
        ...             writer.write_batch(batch.record_batch)
        """
        columns = ArrowColumns(list(self._client.settings.windows), headers, properties)
        return self._batches(columns.batches, max_size, max_wait)

    def _batches(self, make: Callable[..., Generator[_Batch]], max_size: int, max_wait: float) -> Iterator[_Batch]:
        size, wait = check_limits(max_size, max_wait)
        client = self._client
        client.check_process()
        client.check_open()
        if not self._entered:
            raise RuntimeError("take batches inside 'with consumer:', which connects and closes")
        return self._each_batch(make, client.lanes.only(), size, wait)

    def _each_batch(
        self, make: Callable[..., Generator[_Batch]], lane: FairQueue, size: int, wait: float
    ) -> Iterator[_Batch]:
        client = self._client
        handled = partial(client.handled_many, lane)
        for messages in taken(client, lane, size, wait):
            yield from make(messages, client.failed_many, handled)

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call a handler for each message, in `workers` threads, until `stop`; then close.

        Parameters
        ----------
        handler : callable
            A plain function, called with one `Message`. When the handler returns, the message is acked unless it was
            settled or deferred; when the handler raises an `Exception`, the message is settled as `on_error` says.

        Raises
        ------
        ConfigurationError
            If `handler` is a coroutine function or a generator function, or returns a coroutine or a generator, whose
            code would never run. The message is requeued.
        ConnectionFailed, QueueNotFound
            If consuming cannot start.
        RuntimeError
            If the consumer was closed; in a child process that was forked after the consumer was started.
        BaseException
            The exception that ended a worker or the I/O thread, such as SystemExit raised by the handler or by a key
            function.

        Notes
        -----
        Connects first, unless the consumer was entered as a context manager. Blocks; signals are still handled.
        """
        client = self._client
        client.check_process()
        client.check_open()
        check_plain(handler, "handler")
        handler = around_plain(client.settings, handler, client.limits)
        if not self._entered:
            self._client.start()
        self._workers = WorkerThreads(client, handler, client.settings.priorities)
        client.on_change = self._on_change
        try:
            with client.limits or nullcontext():
                self._workers.start()
                self._workers.wait()
            client.close()
        finally:
            client.close(at_once=True)
        if client.error is not None:
            raise client.error

    def _on_change(self) -> None:
        if self._client.abandoned and self._workers is not None:
            self._workers.release()

    def stop(self, now: bool = False) -> None:
        """Ask the consumer to stop: take no more deliveries, finish the buffered messages, ack, close.

        Parameters
        ----------
        now : bool
            Return buffered messages to their queues at once; running handlers finish and settle.

        Raises
        ------
        RuntimeError
            In a child process that was forked after the consumer was started.

        Notes
        -----
        Returns at once. `run` returns, and an iteration ends, when the work is done or `shutdown_timeout` has passed.
        Until then the consumer waits for messages in flight to be settled, deferred ones included. If a second call
        asks for no more than an earlier one, the consumer stops waiting: unsettled messages return to their queues.

        Safe from any thread and from handlers. From a signal handler use `fairsched.consumer.signals`.
        """
        self._client.stop(now)

    def set_weight(self, queue: Hashable, weight: int) -> None:
        """Change the weight of a queue, or with a `key` of a tenant, while the consumer runs.

        Parameters
        ----------
        queue : str, or hashable
            Name of the queue or tenant.
        weight : int
            The new weight, in the same unit as the other weights.

        Raises
        ------
        ConfigurationError
            If there is no such queue, or the weight is not a whole number of at least 1; then nothing is changed.
        RuntimeError
            In a child process that was forked after the consumer was started.

        Notes
        -----
        The new weight applies to buffered messages from the next turns on. Prefetch windows that depend on the weights
        are recomputed, which takes a few AMQP methods to and from the broker.

        Safe from any thread, before and after the start; O(number of queues).
        """
        self._client.set_weight(queue, weight)

    def pause(self, queue: str) -> None:
        """Stop consuming a queue until `resume`: its consumer at the broker is cancelled.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError
            If the queue is not consumed by this consumer.
        RuntimeError
            In a child process that was forked after the consumer was started.

        Notes
        -----
        Messages that are buffered or in flight are handled as usual; none returns to the queue, and none is kept
        unsettled. The queue stays paused after a lost connection, and until this consumer ends. Pausing a paused queue
        does nothing.

        A tenant that shares its queue with others cannot be paused: its messages would fill the prefetch window, and
        those of other tenants would no longer be delivered.

        Safe from any thread, also before the start. Returns at once; O(number of queues).
        """
        self._client.pause(queue, True)

    def resume(self, queue: str) -> None:
        """Consume a paused queue again; do nothing if the queue is not paused.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError, RuntimeError
            As for `pause`.

        Notes
        -----
        As for `pause`. Consuming starts once the messages that were here at the pause are settled, so that the
        unsettled messages never exceed the prefetch window.
        """
        self._client.pause(queue, False)

    def explain(self, name: Hashable) -> Explanation:
        """Explain why a queue, or with a `key` a tenant, waits: as data, and with ``str()`` as a sentence.

        Parameters
        ----------
        name : str, or hashable
            Name of the queue or tenant.

        Returns
        -------
        Explanation
            Its deficit and weight, what is served before it, its messages here, and what holds it back.

        Raises
        ------
        ConfigurationError
            If the name is unknown: there is no such queue, or no messages of such a tenant are here. The error lists
            some known names.

        Notes
        -----
        Reads state that the scheduler and the I/O thread keep anyway, and changes nothing. The scheduler's figures are
        a consistent snapshot; the others are read a moment later. Safe from any thread, also before the start and after
        the close; O(number of queues, plus number of slots with messages here), with the scheduler's lock held for the
        second part.
        """
        return self._client.explain(name)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of this consumer.

        Returns
        -------
        dict
            ``received``, ``acked``, ``nacked`` (requeued), ``rejected``, ``errors`` (handlers that raised),
            ``timed_out`` (handlers that exceeded their time limit), ``stale_settlements`` (messages settled after their
            channel was gone), ``reconnects``, ``buffered``, and ``slots``: a `SlotStats` per queue or tenant. Messages
            that waited too long: ``shed`` (returned; also counted in ``nacked`` or ``rejected``), ``kept_alone``,
            ``kept_budget``. With a `codel` also ``codel``: the slots whose messages are being returned (``dropping``),
            and a `CoDelStats` per slot (``slots``). With a `retry` also ``retried``, ``dead_lettered``, ``retrying``
            (messages whose copy is not confirmed yet) and ``retry_failures`` (messages requeued because no copy could
            be published).

        Notes
        -----
        O(number of slots).
        """
        return self._client.stats()

    @property
    def state(self) -> ConsumerState:
        """The state of this consumer: whether connected, since when, the last error, buffered messages, and more.

        Safe from any thread; O(number of queues).
        """
        return self._client.state()
