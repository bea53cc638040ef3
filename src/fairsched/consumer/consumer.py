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
from fairsched.handlers import check_plain

if TYPE_CHECKING:
    from fairsched._delivery import Message
    from fairsched._fairqueue import FairQueue

_Batch = TypeVar("_Batch", bound=MessageBatch)

#: How often a waiting iterator looks whether the shutdown timeout is over, in seconds.
_SLICE = 1.0


class Consumer:
    """Consume RabbitMQ queues in weighted fair order.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://``; several are tried in turn.
    queues : mapping of str to int, or sequence of str
        Weight per queue, or names of queues that weigh the same.
    **options
        Prefetch, workers, what a message costs, what happens to failed and to late ones, and more:
        `fairsched.config.ConsumerOptions` documents each.

    Raises
    ------
    ConfigurationError
        If an argument is not allowed.

    Notes
    -----
    All methods are safe from any thread. Heartbeats, recovery and settlement run in a thread of their own, so
    handlers may take as long as the broker's ``consumer_timeout`` allows, 30 minutes by default. Delivery is at least
    once: after a lost connection the broker delivers again what was not acked, and settling the earlier delivery does
    nothing.

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
        """Yield batches of messages in fair order until `stop`; the caller settles each, or uses it in a ``with``.

        Parameters
        ----------
        max_size : int
            Most messages of a batch, from 1 to 1 000 000. No batch has more than the windows let in (`prefetch`); twice
            as much keeps the broker sending while a batch is handled.
        max_wait : float
            Seconds for which a batch that is not full waits for more messages, once it has one; 0 to 3600. It does not
            wait if the windows are full, so that no more can come, and not when the consumer stops.

        Returns
        -------
        iterator of MessageBatch
            Sequences of messages. The first message of each is waited for as long as it takes.

        Raises
        ------
        ConfigurationError
            If an argument is not allowed, or there are lanes, which only `run` serves.
        FairschedError, RuntimeError, BaseException
            As an iteration over the consumer.

        Notes
        -----
        A stop, leaving the ``with`` block of the consumer, and lost connections have the effects that they have on
        messages of an iteration. What interrupts the wait for more messages requeues those of the batch.

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
            Headers that are to be columns of their names: strings, where values other than text are JSON, and null
            where a message does not have the header, or headers that cannot be decoded.
        properties : sequence of str
            Properties that are to be columns of their names, such as "message_id": strings, but ``priority`` and
            ``delivery_mode`` (int32) and ``timestamp`` (in UTC; null beyond the year 9999). Null where a message does
            not have it, or it cannot be decoded.

        Returns
        -------
        iterator of ArrowBatch
            Batches as those of `batches`, each with a ``record_batch``.

        Raises
        ------
        ConfigurationError
            As `batches`; or if pyarrow is not installed, there is no such property, or two columns would have the same
            name.
        FairschedError, RuntimeError, BaseException
            As an iteration over the consumer.

        Notes
        -----
        The columns of ``batch.record_batch`` are ``body`` (binary), ``queue`` (dictionary of strings: all queues of
        this consumer, in every batch the same), ``exchange`` and ``routing_key`` (strings), ``redelivered`` (bool),
        then properties and headers. What is no UTF-8 in a string is replaced. Messages whose bodies have more than
        2 GiB together become several batches.

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
        """Give messages to a handler in `workers` threads until `stop`, then close.

        Parameters
        ----------
        handler : callable
            A plain function, called with one `Message`. Returning acks it unless it was settled or deferred; raising
            an `Exception` settles it as `on_error` says.

        Raises
        ------
        ConfigurationError
            If `handler` is a coroutine function or a generator function, or returns what one makes: nothing of it
            would run. The message is requeued.
        ConnectionFailed, QueueNotFound
            If consuming cannot begin.
        RuntimeError
            If the consumer was closed; in a child process that was forked since it was started.
        BaseException
            Whatever ended a worker or the I/O thread, such as SystemExit raised by the handler or by a key function.

        Notes
        -----
        Connects first unless the consumer was entered as a context manager. Blocks; signals are handled meanwhile.
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
        """Ask the consumer to end: take no more deliveries, finish what is buffered, ack, close.

        Parameters
        ----------
        now : bool
            Return what is buffered to its queues at once; handlers that run finish and settle.

        Raises
        ------
        RuntimeError
            In a child process that was forked since the consumer was started.

        Notes
        -----
        Returns at once; `run` returns, and an iteration ends, when the work is done or `shutdown_timeout` is over.
        What was handed out is waited for until it is settled, deferred messages too. A call that asks for no more
        than an earlier one waits for nothing: what is unsettled returns to its queues.

        Safe from any thread and from handlers. From a signal handler use `fairsched.consumer.signals`.
        """
        self._client.stop(now)

    def set_weight(self, queue: Hashable, weight: int) -> None:
        """Change the weight of a queue, or with a `key` that of a tenant, while it consumes.

        Parameters
        ----------
        queue : str, or hashable
            The queue's name, or the tenant's.
        weight : int
            Its new weight, in the units of all the others.

        Raises
        ------
        ConfigurationError
            If there is no such queue, or the weight is not a whole number of at least 1; nothing is changed then.
        RuntimeError
            In a child process that was forked since the consumer was started.

        Notes
        -----
        Messages that are here are served by it from the next turns on. Prefetch windows that go by the weights are
        divided anew, which takes the exchange of a few methods with the broker.

        Safe from any thread, before and after the start too; O(number of queues).
        """
        self._client.set_weights({queue: weight})

    def pause(self, queue: str) -> None:
        """Take in no more messages of a queue until `resume`: its consumer at the broker is cancelled.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError
            If it is not consumed.
        RuntimeError
            In a child process that was forked since the consumer was started.

        Notes
        -----
        What is here, or on its way, is handled as ever; nothing returns to the queue, and nothing is kept unsettled. It
        stays paused when the connection is lost, and until the end of this consumer. A queue that is paused already
        stays so.

        A tenant that shares its queue with others cannot be paused: its messages would fill the window, and nothing
        of the others would come any more.

        Safe from any thread, before the start too. Returns at once; O(number of queues).
        """
        self._client.pause(queue, True)

    def resume(self, queue: str) -> None:
        """Take in messages of a queue again that was paused; of any other, do nothing.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError, RuntimeError
            As `pause`.

        Notes
        -----
        As for `pause`. It is consumed when what was here at the pause is settled, so that no more than the window is
        ever here.
        """
        self._client.pause(queue, False)

    def explain(self, name: Hashable) -> Explanation:
        """Say why a queue, or with a `key` a tenant, waits: as data, and by ``str()`` as a sentence.

        Parameters
        ----------
        name : str, or hashable
            The queue's name, or the tenant's.

        Returns
        -------
        Explanation
            Its account, what is served before it, what of it is here, and what is in its way.

        Raises
        ------
        ConfigurationError
            If nothing is known of it: no such queue, and nothing of such a tenant is here. The message lists some of
            those that are known.

        Notes
        -----
        Reads what the scheduler and the I/O thread keep anyway, and changes nothing. Figures of the scheduler are of
        one moment, the others of a moment later. Safe from any thread, before the start and after the close too;
        O(number of queues, and of those with messages here), with the lock of the scheduler held for the latter.
        """
        return self._client.explain(name)

    def stats(self) -> dict[str, Any]:
        """Return the figures of this consumer.

        Returns
        -------
        dict
            ``received``, ``acked``, ``nacked`` (requeued), ``rejected``, ``errors`` (handlers that raised),
            ``timed_out`` (those that exceeded their time limit), ``stale_settlements`` (settled after their channel was
            gone), ``reconnects``, ``buffered``, and ``slots``: a `SlotStats` per queue or tenant. Of those that waited
            too long: ``shed`` (returned; counted in ``nacked`` or ``rejected`` too), ``kept_alone``, ``kept_budget``,
            and with a `codel` also ``codel``: the slots whose messages are being returned (``dropping``), and a
            `CoDelStats` per slot (``slots``). With a `retry` also ``retried``, ``dead_lettered``, ``retrying`` (whose
            copy is not confirmed yet) and ``retry_failures`` (requeued, since no copy could be published).

        Notes
        -----
        O(number of slots).
        """
        return self._client.stats()

    @property
    def state(self) -> ConsumerState:
        """What this consumer is doing at the moment: connected, since when, the last error, what waits here, and more.

        Safe from any thread; O(number of queues).
        """
        return self._client.state()
