"""The synchronous consumer: a context manager, an iterator, and worker threads."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairsched._core import checked_timeout
from fairsched.amqp._ackledger import AckLedger
from fairsched.config.arguments import made_by
from fairsched.config.queues import Queue
from fairsched.consumer.batching.arrow import ArrowBatch, ArrowColumns
from fairsched.consumer.batching.batch_methods import BatchMethods, MakeBatches
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.batching.pending_batch import SLICE, each_batch, take
from fairsched.consumer.client import DROPPED, Client
from fairsched.consumer.explanation import Explanation
from fairsched.consumer.handling.around import around_plain
from fairsched.consumer.handling.workers import WorkerThreads
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.state import ConsumerState
from fairsched.delivery._settling import settle_all
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError, ShutDown

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message
    from fairsched.scheduling._fairqueue import FairQueue


class Consumer(BatchMethods[Iterator[MessageBatch], Iterator[ArrowBatch]]):
    """Consume RabbitMQ queues in weighted fair order.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://`` URL; several URLs are tried in turn.
    queues : mapping of str to int, or sequence of str, or QueueSource
        Weight of each queue, or the names of queues with equal weights; or a source of queues that come and go.
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
        if settings.source is not None and settings.source.is_coroutine:
            raise ConfigurationError(f"{settings.source}: a source that is a coroutine is for fairsched.aio.Consumer")
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
            If there are worker queues, which only `run` serves: an `ordering_key` and more than one of `workers`.
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
        yield from client.messages(self._usable_worker_queue(), SLICE, client.is_over)
        if client.error is not None:
            raise client.error

    def get(self, timeout: float | None = None) -> Message:
        """Wait for the next message in fair order and return it.

        Parameters
        ----------
        timeout : float, optional
            Maximum wait in seconds; by default unlimited.

        Returns
        -------
        Message
            The caller settles it.

        Raises
        ------
        queue.Empty
            If no message came in time.
        ShutDown
            If the consumer was stopped, and no message is buffered or the shutdown timeout has passed.
        ConfigurationError
            If the consumer has worker queues, which only `run` serves: an `ordering_key` and more than one worker.
        FairschedError
            If consuming cannot continue.
        TypeError, ValueError
            If the timeout is not a number, or is negative or NaN.
        RuntimeError
            Outside the ``with`` block, and in a child process that was forked after it was entered.
        BaseException
            The exception that ended the I/O thread, such as SystemExit raised by a key function.

        Notes
        -----
        O(1). An exception that interrupts the call, such as KeyboardInterrupt, loses no message: one that was taken
        already is requeued. An iteration takes less time a message.

        Safe from any thread. The ``with`` block ends as for an iteration.

        Examples
        --------
        >>> with Consumer(url, {"gold": 40, "free": 4}) as consumer:  # doctest: +SKIP
        ...     with consumer.get(timeout=30) as message:
        ...         work(message.body)
        """
        deadline = time.monotonic() + checked_timeout(timeout)
        client, worker_queue = self._client, self._usable_worker_queue()
        if client.settlements.flush_requested:
            client.give_way()
        found: list[list[Message]] = []
        try:
            while not client.is_over():
                left = max(0.0, deadline - time.monotonic())
                take(found, client, worker_queue, 1, min(SLICE, left))
                if found[-1]:
                    return found[-1][0]
                if left == 0.0:
                    raise Empty
                found.clear()  # of the empty list: a wait of days would collect one for each second
            raise ShutDown("the consumer was stopped, and its shutdown timeout has passed")
        except BaseException as error:
            for messages in found:
                settle_all(messages, AckLedger.REQUEUE)
            if isinstance(error, ShutDown) and client.error is not None:
                raise client.error from None
            raise

    def _usable_worker_queue(self) -> FairQueue:
        """Return the worker queue to take messages from, or raise why none can be taken."""
        client = self._client
        client.check_process()
        client.check_open()
        if not self._entered:
            raise RuntimeError("consume inside 'with consumer:', which connects and closes")
        return client.worker_queues.only()

    def _arrow_columns(self, headers: Sequence[str], properties: Sequence[str]) -> MakeBatches:
        return ArrowColumns(list(self._client.settings.windows), headers, properties).batches

    def _each_batch(self, make: MakeBatches, size: int, wait: float) -> Iterator[Any]:
        return each_batch(self._client, self._usable_worker_queue(), make, size, wait)

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

    def add_queue(self, queue: str | Queue) -> None:
        """Consume another queue, from now on, too.

        Parameters
        ----------
        queue : str or Queue
            Its name, or how to consume it. It is declared if the `Queue` says so.

        Raises
        ------
        ConfigurationError
            If the queue is consumed already with other options, if an option does not go with those of the consumer,
            if the queue is one of its lanes, or if the broker refused the declaration.
        QueueNotFound
            If the queue does not exist.
        ConnectionFailed
            If the broker refused to have it consumed, or did not answer within `connect_timeout`.
        ShutDown
            If the consumer was stopped.
        RuntimeError
            If the consumer was closed; in a child process that was forked after the consumer was started.

        Notes
        -----
        Returns when the broker has confirmed the consumer; before the start, at once. After an error, nothing has
        changed. An exception that interrupts the call, such as KeyboardInterrupt, leaves the addition under way, or not
        begun: the same call again waits for it. A queue that is consumed already with equal options is left as it is.

        Shares are exact with every number of queues: quanta are scaled together when the weight of the new queue
        requires it. Windows of other queues do not change. The window of the new queue is its own `prefetch`, or the
        part of the consumer's `prefetch` that it would have had if all queues had been there from the start; so the
        total grows. With ``prefetch="auto"`` all windows are shared anew, at its pace, and `max_buffer_bytes` is
        divided anew.

        Safe from any thread and from handlers; O(number of queues). Many threads may add queues at the same time.
        """
        self._client.add_queue(queue if isinstance(queue, Queue) else Queue(queue))

    def remove_queue(self, queue: str) -> None:
        """Stop consuming a queue, and forget it.

        Parameters
        ----------
        queue : str
            The queue's name.

        Raises
        ------
        ConfigurationError
            If the queue is not consumed by this consumer, or is one of its lanes, which are consumed together.
        ShutDown
            If the consumer was stopped.
        RuntimeError
            If the consumer was closed; in a child process that was forked after the consumer was started.

        Notes
        -----
        The consumer at the broker is cancelled, and buffered messages of the queue return to it; those of other queues
        keep their places. Messages in hand can still be settled, for as long as `shutdown_timeout`; those that are not
        return to the queue, too. Then the method returns, and nothing of the queue is left: no share, limit, window or
        figure. So a handler should settle its message before it removes its own queue. A consumer without queues waits
        for more. An exception that interrupts the call, such as KeyboardInterrupt, leaves the removal under way, or not
        begun.

        If the broker does not answer, as on a link whose end was not noticed yet, the method returns `shutdown_timeout`
        and five seconds after the call at the latest; unsettled messages return to the queue when the connection ends.
        Only a queue with a single active consumer, whose messages in hand must be settled first, has no such limit.

        Safe from any thread and from handlers; O(number of queues and buffered messages).
        """
        self._client.remove_queue(queue)

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
        unsettled. The queue stays paused after a lost connection, and until this consumer ends; so does a lane that is
        given up and consumed again meanwhile. Pausing a paused queue does nothing.

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
            be published). With limits of a group also ``group_limits``: the numbers of names and permits that this
            consumer holds, whether it is the keeper, and the members of its group. With ordered `Lanes` also
            ``ordered_lanes``: the number of lanes of each name that this consumer consumes.

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
