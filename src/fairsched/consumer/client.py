"""The common part of the blocking and the asyncio consumer: start, taking messages, stop, figures."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairsched.amqp.flag import Flag
from fairsched.amqp.urls import endpoint
from fairsched.consumer.changing.queue_changes import Done, removed_early
from fairsched.consumer.changing.queue_watcher import QueueWatcher
from fairsched.consumer.changing.uninterrupted import uninterrupted
from fairsched.consumer.drain_time.drain_watch import DrainWatch
from fairsched.consumer.explanation import Explanation, check_consumed, check_hashable, check_known, explained
from fairsched.consumer.handling.delayed_retries import DelayedRetries
from fairsched.consumer.handling.described import described
from fairsched.consumer.handling.failures import FailurePolicy
from fairsched.consumer.handling.redelivered import Redelivered
from fairsched.consumer.handling.retries import Retries
from fairsched.consumer.handling.time_limit import TimeLimits
from fairsched.consumer.io_thread import FORKED, ConsumerEvents, IOThread
from fairsched.consumer.log_limit import LogLimit
from fairsched.consumer.prefetch.arithmetic import busying, shortfall
from fairsched.consumer.requeueing.codel_returns import Shedding
from fairsched.consumer.requeueing.late_returns import LateReturns
from fairsched.consumer.requeueing.pace import Pace
from fairsched.consumer.settings import ConsumerSettings
from fairsched.consumer.sharing.share_group import ShareGroup
from fairsched.consumer.state import STUCK, ConsumerState
from fairsched.consumer.waits import WaitWarnings, consumer_timeout, slow_rates
from fairsched.consumer.worker_queues import WorkerQueues
from fairsched.delivery._counters import Counters
from fairsched.delivery._messagesource import MessageSource
from fairsched.errors import ConfigurationError, ConnectionFailed, ShutDown

if TYPE_CHECKING:
    from fairsched.amqp.side_connection import SideConnection
    from fairsched.config.lanes import Lanes
    from fairsched.config.queues import Queue
    from fairsched.consumer.channels import Unsettled
    from fairsched.consumer.drain_time.drain import Drain
    from fairsched.consumer.group_limits.group_limits import GroupLimits
    from fairsched.delivery._delivery import Message
    from fairsched.lanes.membership import LaneMembership
    from fairsched.lanes.own_lanes import Activity
    from fairsched.lanes.registry import LaneRegistry
    from fairsched.publisher import Publisher
    from fairsched.scheduling._fairqueue import FairQueue
    from fairsched.stats import LimitStats, SlotOutlook

_log = logging.getLogger(__name__)

#: Seconds that the broker has, at most, to confirm the end of deliveries, and later a close.
_ANSWER_TIMEOUT = 5.0
#: What is kept of the shutdown timeout for the close: this part of it, and so many seconds at most.
_CLOSE_PART, _CLOSE_MOST = 0.2, 2.0
#: A close has this many seconds at least, however short the shutdown timeout.
_CLOSE_LEAST = 0.5

#: Why a consumer is an orphan that was dropped.
DROPPED = "no reference to it is left"

#: Started consumers of this process, which a child process has to be kept from using.
_started: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(MessageSource, ConsumerEvents):
    """The common part of the sync and asyncio consumers: worker queues, I/O thread, counters, start, end.

    Parameters
    ----------
    settings : ConsumerSettings
        What to consume, and how.

    Notes
    -----
    Every public method is safe from any thread. Those of `ConsumerEvents` are called by the I/O thread.

    A stop has three steps. The first ends the deliveries and waits until everything that is here is settled. The
    second, `returning`, gives back what is buffered and waits for what was handed out. The third, `abandoned`, waits
    for nothing. All of it has one deadline.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.worker_queues = WorkerQueues(settings)
        self.counters = Counters()
        self._late_returns = LateReturns()
        self._pace = Pace(self._late_returns)
        self._delayed_retries = DelayedRetries()
        self._delayed_retries.take(settings.queues, settings.retries)
        self._retries = self._retries_by(settings) if settings.retries else None
        self._failures = FailurePolicy(
            settings.options.on_error, self.counters, self._retries, self._pace, settings.policies, self.throttle
        )
        #: Of handlers in threads.
        self.limits = TimeLimits(settings.time_limits, self.counters) if settings.time_limits else None
        self._waits = WaitWarnings(
            settings.workers, self._unsettled, self._smaller,
            timeout=lambda queue: consumer_timeout(self.settings.queues.get(queue)),
        )  # fmt: skip
        codel = settings.codel
        self.shedding = codel and Shedding(
            codel, self.counters, self._is_alone, self._advice, late_returns=self._late_returns
        )
        self.on_redelivered = self._redelivered = Redelivered(self._late_returns, self._retries)
        name = settings.options.share_group
        #: Keeps shares in step with those of other processes, if that is wanted.
        self.share_group = None if name is None else ShareGroup(name, settings, self.worker_queues)
        #: Keeps limits together with those of other processes, if there are limits of the group.
        self.group_limits = self._group_limits_of(settings) if settings.has_group_limits else None
        #: Finds the lanes of single tenants, and gives them up, if there may be any.
        self.lane_registry = self._registry_of([lanes for lanes in settings.lanes if not lanes.ordered])
        #: Divides ordered lanes among processes, if there are any.
        self.lane_membership = self._membership_of([lanes for lanes in settings.lanes if lanes.ordered])
        #: Made by `start`: it owns sockets, and a consumer that is never started should own nothing.
        self.io_thread: IOThread
        #: What made consuming impossible, if anything did.
        self.error: BaseException | None = None
        #: Whether nothing is waited for any more.
        self.abandoned = False
        #: Says why this consumer cannot be used any more, if so: set by its owner, asked by the I/O thread.
        self.orphaned: Callable[[], str] = lambda: ""
        #: Returns what answers messages, in whatever thread: set by its owner, before the start, if there is one.
        self.publisher: Callable[[], Publisher] | None = None
        #: Set by the first stop, or by a failure.
        self.stopping = Flag()
        #: Called, in whatever thread, when getters should look again.
        self.on_change: Callable[[], None] | None = None
        self._begun = Flag()
        self._settled = Flag()
        self._forked = False
        self._started = self._closed = False
        self._paused: frozenset[str] = frozenset()
        #: Asks the source of queues, if there is one.
        self._watcher: QueueWatcher | None = None
        #: Asks the broker for backlogs, from the first call of `drain` on.
        self._drain_watch: DrainWatch | None = None
        #: Returns the result of a coroutine, in any thread but that of its event loop; set by an owner that has a loop.
        self.wait_for: Callable[[Any], Any] | None = None
        #: What is told when an added queue is consumed, and when a removed one is forgotten.
        self._adding: dict[str, Future[None]] = {}
        self._leaving: dict[str, Future[None]] = {}
        #: What is told of queues that are to be added when their removal is done, with the name of each.
        self._returning: dict[Future[None], str] = {}
        self._stop_at: float | None = None
        #: Its holder may come again: a destructor, or the hash of a tenant, may call a consumer wherever Python runs.
        self._guard = threading.RLock()

    def _retries_by(self, settings: ConsumerSettings) -> Retries:
        return Retries(settings.retries, settings.urls, self._delayed_retries, self._pace.requeue, settings.home_of)

    def delayed_retries(self, queues: Collection[str], server_properties: Mapping[str, Any] | None) -> Collection[str]:
        """Return those of some queues whose retries the broker at the end of their connection delays."""
        self._late_returns.connected()
        return self._delayed_retries.connected(queues, server_properties)

    def _group_limits_of(self, settings: ConsumerSettings) -> GroupLimits:
        from fairsched.consumer.group_limits.group_limits import GroupLimits  # which only a few consumers need

        return GroupLimits(settings.options.share_group or "", settings, self.worker_queues)

    def _registry_of(self, lanes: Sequence[Lanes]) -> LaneRegistry | None:
        from fairsched.lanes.registry import LaneRegistry  # which needs modules of this package

        return LaneRegistry(lanes, self.settings.urls, self) if lanes else None

    def _membership_of(self, lanes: Sequence[Lanes]) -> LaneMembership | None:
        from fairsched.lanes.membership import LaneMembership  # likewise

        return LaneMembership(lanes, self.settings.urls, self, self.settings.others.weight or 1) if lanes else None

    # Beginning ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and consume; returns when every queue is consumed or `stop` is called, raises when neither can be."""
        self.check_process()
        mine = False
        try:
            # A close finds nothing that was started, and then nothing starts any more, or a thread that it can end.
            with self._guard:
                self._check_new()
                self.io_thread = IOThread(
                    self.settings, self.worker_queues, self.counters, self, self._failures.settle, self.publisher
                )
                measures = self.settings.cost.measures or self.settings.target_delay is not None
                self.prepare(self.io_thread.settlements, measures)
                self.io_thread.pause(self._paused)
                self._pace.begin(self.io_thread.after)
                if self._retries is not None:
                    self._retries.begin(self.io_thread.declarations, _ended(self.io_thread))
                for reason in slow_rates(self.settings):
                    _log.warning("%s", reason)
                self._started = mine = True
                _started.add(self)
                self.io_thread.start()
            if self.stopping.is_set():
                self.io_thread.stop_intake(self._answer_timeout())
            in_time = self._begun.wait(self.settings.options.connect_timeout)
            if not in_time:
                hosts = ", ".join(endpoint(url) for url in self.settings.urls)
                self.error = ConnectionFailed(
                    f"no connection to {hosts} within {self.settings.options.connect_timeout:g} s; "
                    f"last error: {self.io_thread.last_error or 'no answer'}"
                )
            if self.error is not None:
                raise self.error
            for beside in self._beside():
                beside.start(_ended(self.io_thread))
            self._watch()
        except BaseException:
            if mine:
                self.close(at_once=True)
            raise

    def _beside(self) -> list[SideConnection]:
        """Return what has a connection of its own beside that of the I/O thread."""
        found = (self.group_limits, self.share_group, self.lane_registry, self.lane_membership)
        return [one for one in found if one is not None]

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in the I/O thread after so many seconds, unless that has ended."""
        self.io_thread.after(seconds, function)

    def _watch(self) -> None:
        """Begin to ask the source of queues, if there is one."""
        source = self.settings.source
        if source is not None:
            watcher = QueueWatcher(source, self, self.wait_for, LogLimit())
            watcher.start(lambda: self.stopping.is_set() or self.io_thread.ended)
            self._watcher = watcher

    def look(self) -> None:
        """Look, about once a second, whether the source of queues answers."""
        if self._watcher is not None:
            self._watcher.look()

    def _check_new(self) -> None:
        self.check_open()
        if self._started:
            raise RuntimeError("a consumer can be started only once; create another")

    def check_open(self) -> None:
        """Raise RuntimeError if this was closed, or is being closed."""
        if self._closed:
            raise RuntimeError("this consumer is closed; create another")

    def ready(self) -> None:
        """Let `start` return."""
        self._begun.set()

    def failed(self, error: BaseException) -> None:
        """Let `start`, or the thread that consumes, raise."""
        if self._forked:
            _log.error("a worker ended in a child process: %s", error)
            return
        if self.error is None:
            self.error = error
        self.returning = self.abandoned = True
        self.stopped = True
        self.stopping.set()
        self._begun.set()
        self._settled.set()
        self.intake_closed()

    def intake_closed(self) -> None:
        """Let getters leave once the buffer is empty."""
        self.worker_queues.end()
        self._changed()

    def settled(self) -> None:
        """Let `close` return."""
        self._settled.set()

    def orphan(self) -> bool:
        """Whether this consumer cannot be used any more; then it ends, and says so."""
        reason = self.orphaned()
        if not reason:
            return False
        _log.warning("the consumer of %s ends: %s", self._queue_names(), reason)
        self.failed(ShutDown(f"the consumer ended: {reason}"))
        if reason != DROPPED:  # of which there is a warning already
            warnings.warn(f"Consumer of {self._queue_names()} ends: {reason}", ResourceWarning, stacklevel=2)
        return True

    def warn_if_running(self) -> None:
        """Warn that a consumer is dropped which was not closed; its I/O thread finds that out and ends."""
        if self._started and not (self._closed or self._forked or self.io_thread.ended):
            text = f"Consumer of {self._queue_names()} was dropped while it was consuming; use it in a 'with' block"
            warnings.warn(text, ResourceWarning, stacklevel=3)

    def _queue_names(self) -> str:
        names = list(self.settings.windows)
        listed = ", ".join(map(repr, names[:3])) or "no queue"
        return listed + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    # Child processes ---------------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """Raise RuntimeError in a child of the process that started this."""
        if self._forked:
            raise RuntimeError(FORKED)

    def forked(self) -> None:
        """Refuse everything from now on: this is a copy in a child process, without threads, on sockets not its own."""
        self._forked = self.returning = self.abandoned = True
        # The thread that held it does not exist here.
        self._guard = threading.RLock()
        self.io_thread.forked()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # Messages ----------------------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """Let the I/O thread send what it was asked to."""
        self.io_thread.give_way()

    def _is_alone(self, queue: str) -> bool:
        return self.io_thread.consumer_counts.alone(queue)

    def _advice(self) -> str:
        """Say what window would do for a handler as fast as this one."""
        round_trip = self.io_thread.round_trip()
        if round_trip is None or self.service_ns <= 0:
            return "A smaller prefetch leaves messages at the broker"
        workers = self.settings.workers
        service = self.service_ns * 1e-9 / workers
        enough = max(len(self.settings.windows), busying(round_trip, service, workers))
        return (
            f"A prefetch of {enough} in all would keep {'the handler' if workers == 1 else 'all handlers'} busy "
            f"(round trip {round_trip * 1e3:.3g} ms, {service * 1e3:.3g} ms a message), "
            f"it is {self.io_thread.channels.window()}"
        )

    def service(self) -> float | None:
        """Return the mean seconds for which a message lately occupied the workers.

        None if none was handled, or if some are deferred: how long these take, the handler's time does not say.
        """
        seconds = self.handler_seconds()
        return None if seconds is None else seconds / self.settings.workers

    def _unsettled(self) -> int:
        return self.io_thread.channels.unsettled()

    def _smaller(self) -> str:
        """Say how to have fewer messages here."""
        if self.settings.target_delay is not None:
            return "Use more workers, or a shorter handler"
        return f'{self._advice()}; or use prefetch="auto"'

    def charge(self, worker_queue: FairQueue, message: Message, difference: int) -> None:
        """Correct what was charged for a message; a tenant forgotten meanwhile has nothing to correct."""
        if difference:
            try:
                if self.settings.band is not None:
                    worker_queue.settle(message.slot, difference, priority=message.priority or 0)
                elif self.settings.subkey is None:
                    worker_queue.settle(message.slot, difference)
                else:
                    worker_queue.settle(message.slot, difference, subkey=message.subkey)
            except KeyError:
                _log.debug("slot %r is gone; its correction of %d is dropped", message.slot, difference)

    def is_over(self) -> bool:
        """Whether this was stopped and its time for what is here is over."""
        return self.stopping.is_set() and self.remaining() == 0.0

    def account(self, worker_queue: FairQueue, message: Message, elapsed: int) -> None:
        """Charge and measure the nanoseconds that a message's handler took, where that is wanted."""
        cost = self.settings.cost
        if cost.measures:
            self.charge(worker_queue, message, cost.correction(message, elapsed))
        if self.settings.target_delay is not None:
            self.io_thread.measurements.served(elapsed)

    def failed_many(self, messages: list[Message], error: Exception) -> None:
        """Settle messages that raised together, as ``on_error`` says."""
        self._failures.settle_many(messages, error)

    def throttle(self, slot: Hashable, seconds: float) -> None:
        """Let a slot take no turns for so long: here, and in the other processes of the share group."""
        self.worker_queues.throttle(slot, seconds)
        group = self.group_limits or self.share_group
        if group is not None:
            group.throttle(slot, seconds)

    def look_at_wait(self, message: Message) -> None:
        """Look how long messages wait here, because one was handled slowly."""
        self._waits.look(message, self.service_ns * 1e-9)

    def look_at_windows(self) -> None:
        """Say once, with the arithmetic, if the windows are too small for what was measured."""
        round_trip = self.io_thread.round_trip()
        if self.settings.key is None and self.settings.target_delay is None and round_trip is not None:
            service = self.service_ns * 1e-9 / self.settings.workers
            reason = shortfall(self.settings.windows, self.settings.units, round_trip, service)
            if reason:
                _log.warning("shares will flatten under load: %s; raise prefetch=", reason)

    # End ---------------------------------------------------------------------------------------------------------

    def stop(self, now: bool = False) -> None:
        """Stop deliveries; `now` also gives back what is buffered. A call that asks for nothing new abandons all."""
        self.check_process()
        again = self._stop_at is not None and (self.returning or not now)
        self._stop(returning=now or again, abandoned=again)

    def abandon(self) -> None:
        """Wait for nothing any more, in a `close` that is under way too."""
        self._stop(returning=True, abandoned=True)

    def _stop(self, *, returning: bool, abandoned: bool) -> None:
        first = self._stop_at is None
        # In this order: a thread that finds `returning` has a time that runs.
        if first:
            self._stop_at = time.monotonic()
        if returning:
            self.returning = True
        if abandoned:
            self.abandoned = True
        self.stopped = True
        self.stopping.set()
        self._begun.set()
        if abandoned:
            self._settled.set()
        with self._guard:
            started = self._started
        if started:
            if first:
                _log.info("stopping the consumer of %s: deliveries end", self._queue_names())
            self.io_thread.stop_intake(self._answer_timeout())
        self._pace.release()  # after the end of deliveries was asked for, or they would come once more
        if returning or not started:
            self.worker_queues.shutdown()
        if returning:
            self._give_back()
        self._changed()

    def _give_back(self) -> None:
        returned = sum(message.put_back() for message in self.worker_queues.leftovers())
        if returned:
            _log.info("%d messages that were not handled return to their queues", returned)

    def _answer_timeout(self) -> float:
        """Return the seconds for which the broker's answer to a cancelled consumer is waited for."""
        return min(_ANSWER_TIMEOUT, 0.5 * self.settings.options.shutdown_timeout)

    def remaining(self) -> float:
        """Return the seconds that are left for what is here; a part of the shutdown timeout is kept for the close."""
        whole = self.settings.options.shutdown_timeout
        return max(0.0, self._left() - min(_CLOSE_MOST, _CLOSE_PART * whole))

    def time_to_leave(self) -> float:
        """Return the seconds for which cancelled handlers are waited for: of what is left, the close has half."""
        return max(0.0, 0.5 * self._left())

    def _left(self) -> float:
        """Return the seconds until the deadline of a stop."""
        began = time.monotonic() if self._stop_at is None else self._stop_at
        return began + self.settings.options.shutdown_timeout - time.monotonic()

    def close(self, at_once: bool = False) -> None:
        """End: give back what is buffered, send what is settled, close the connection, end the thread.

        After a `stop` that was not repeated, and unless `at_once`, what was handed out is waited for first.
        """
        with self._guard:
            done = self._closed or self._forked or not self._started
            self._closed = True
        if done:
            return
        try:
            if self._watcher is not None:
                self._watcher.end(self._left())
            if self._stop_at is not None and not at_once:
                self._wait_for_settlements()
            self.abandon()
        finally:  # whatever interrupts this: the thread must not be left behind, nor what it consumes
            self.io_thread.close(min(_ANSWER_TIMEOUT, max(_CLOSE_LEAST, self._left())))
            if self._retries is not None:
                self._retries.close(min(_ANSWER_TIMEOUT, max(_CLOSE_LEAST, self._left())))
            for beside in self._beside():
                beside.end(min(_ANSWER_TIMEOUT, max(_CLOSE_LEAST, self._left())))
            if self._drain_watch is not None:
                self._drain_watch.end(min(_ANSWER_TIMEOUT, max(_CLOSE_LEAST, self._left())))
            self._log_end()

    def _log_end(self) -> None:
        done = self.counters.snapshot()
        _log.info(
            "the consumer of %s is closed: %d messages received, %d acknowledged, %d returned, %d rejected",
            self._queue_names(), done["received"], done["acked"], done["nacked"], done["rejected"],
        )  # fmt: skip

    def _wait_for_settlements(self) -> None:
        if self._settled.wait(self.remaining()):
            return
        missing = self.io_thread.channels.unsettled() - self.worker_queues.qsize()
        if missing > 0:
            _log.warning(
                "%d messages that were handed out were not settled within the shutdown timeout of %g s; "
                "they return to their queues", missing, self.settings.options.shutdown_timeout,
            )  # fmt: skip

    def set_weight(self, name: Hashable, weight: int) -> None:
        """Change the weight of a queue, or with a key of a tenant."""
        check_hashable(name)
        self.set_weights({name: weight})

    def set_weights(self, changes: Mapping[Any, int]) -> None:
        """Change the weights of queues, or with a key of tenants, all or none of them."""
        self.check_process()
        while True:
            before = self.settings
            found = before.reweighed(changes)  # which runs the hashes of tenants, that is any code
            changed = {name: quantum for name, quantum in found.quanta.items() if before.quanta.get(name) != quantum}
            with self._guard:
                if self.settings is not before:
                    continue  # two at once would undo each other, and so would a start
                self.settings = found
                self.worker_queues.set_quanta(changed)
                if self._started and found.units != before.units:
                    self.io_thread.reweigh(found)
                return

    def pause(self, queue: str, paused: bool) -> None:
        """Take in no more messages of a queue, or again."""
        self.check_process()
        with self._guard:
            before = self._paused
            if not isinstance(queue, str) or queue not in before:  # a paused lane may be given up for now
                check_consumed(queue, self.settings)
            self._paused = before | {queue} if paused else before - {queue}
            if self._paused != before:
                _log.info("queue %r is %s", queue, "paused" if paused else "resumed")
            if self._started and not self.stopping.is_set():
                self.io_thread.pause(self._paused)

    # Queues that come and go -------------------------------------------------------------------------------------

    def add_queue(self, queue: Queue) -> None:
        """Consume another queue; return when it is consumed, or raise why it cannot be."""
        self._check_thread()
        self.settings.check_no_lane(queue.name)
        uninterrupted(lambda: self.add_queues({queue.name: queue}))[queue.name].result()

    def remove_queue(self, name: str) -> None:
        """Stop consuming a queue; return when nothing of it is here any more."""
        self._check_thread()
        self.settings.check_no_lane(name)
        uninterrupted(lambda: self.begin_removal(name)).result()

    def _check_thread(self) -> None:
        """Raise RuntimeError in the I/O thread, which would wait for itself."""
        if self._started and self.io_thread.is_current():
            raise RuntimeError("a key or cost function runs in the I/O thread, which cannot wait for a queue")

    def add_queues(self, queues: Mapping[str, Queue]) -> dict[str, Future[None]]:
        """Begin to consume more queues, all or, on an error in their options, none.

        Parameters
        ----------
        queues : mapping of str to Queue
            By name.

        Returns
        -------
        dict of str to Future
            Each is done when the queue is consumed, or fails with the reason why it cannot be.

        Raises
        ------
        ConfigurationError
            If a queue is consumed with other options, or cannot be consumed by this consumer.
        ShutDown
            If the consumer was stopped.

        Notes
        -----
        A queue that is consumed already, with equal options, is left as it is. One that is being removed is added when
        it is gone. Waits for nothing. Safe from any thread; O(number of queues of the consumer).
        """
        self.check_process()
        self.check_open()
        with self._guard:
            if self.stopping.is_set():
                raise ShutDown("the consumer was stopped")
            after = {name: queue for name, queue in queues.items() if name in self._leaving}
            known = {name: queue for name, queue in queues.items() if name in self.settings.queues}
            for name in known.keys() - after.keys():
                self._check_same(known[name])
            new = {name: queue for name, queue in queues.items() if name not in known}
            started = self._consume(new) if new else {}
            found = {name: self._adding.get(name) or _done() for name in known if name not in after}
            return found | started | {name: self._add_after(queue) for name, queue in after.items()}

    def _check_same(self, queue: Queue) -> None:
        """Raise ConfigurationError if a queue is consumed with other options."""
        name = queue.name
        known = replace(self.settings.queues[name], weight=self.settings.weights[name])
        if not self.settings.is_lasting(name):  # whose weight is that of its tenant, which may have changed
            queue = replace(queue, weight=known.weight)
        if known != queue:
            raise ConfigurationError(
                f"queue {name!r} is consumed already, with other options; remove it first, or change its weight with "
                "set_weight"
            )

    def _consume(self, new: Mapping[str, Queue]) -> dict[str, Future[None]]:
        """Take queues into the settings, and begin to consume them. Called with the guard."""
        before, settings = self.settings, self.settings.with_queues(new)
        if settings.time_limits and self.limits is None:
            if self._started:
                raise ConfigurationError(
                    f"time_limit of queue {next(iter(new))!r} needs a consumer that was started with a time limit; "
                    "give it the option time_limit, or a queue with one"
                )
            self.limits = TimeLimits(settings.time_limits, self.counters)
        self.worker_queues.add(settings, new)
        self._use(before, settings)
        if not self._started:
            return {name: _done() for name in new}
        futures = {name: _pending() for name in new}
        self._adding.update(futures)
        self.io_thread.add(settings, {name: self._teller(name, self._adding) for name in new})
        if self.io_thread.ended:  # and may not have seen these
            self.changes_ended()
        return futures

    def _use(self, before: ConsumerSettings, settings: ConsumerSettings) -> None:
        """Let every part know settings with other queues. Called with the guard."""
        self.settings = settings
        if settings.divisor != before.divisor:
            quanta = {name: one for name, one in settings.quanta.items() if before.quanta.get(name, one) != one}
            self.worker_queues.set_quanta(quanta)
        self._delayed_retries.take(settings.queues, settings.retries)
        if self._retries is not None:
            self._retries.take(settings.retries)
        elif settings.retries:
            self._retries = self._redelivered.retries = self._retries_by(settings)
            if self._started:
                self._retries.begin(self.io_thread.declarations, _ended(self.io_thread))
        self._failures.take(settings.policies, self._retries)
        if self.limits is not None:
            self.limits.take(settings.time_limits)
        if self.share_group is not None:
            self.share_group.take(settings)
        if self.group_limits is not None:
            self.group_limits.take(settings)
        elif settings.has_group_limits:
            self.group_limits = self._group_limits_of(settings)
            if self._started:
                self.group_limits.start(_ended(self.io_thread))

    def _add_after(self, queue: Queue) -> Future[None]:
        """Add a queue when its removal, which is under way, is done, unless it is removed once more until then."""
        found = _pending()
        self._returning[found] = queue.name

        def again(_removed: Future[None]) -> None:
            try:
                with self._guard:
                    if self._returning.pop(found, None) is None:
                        return
                    added = self.add_queues({queue.name: queue})[queue.name]
            except BaseException as error:
                found.set_exception(error)
            else:
                added.add_done_callback(lambda added: _tell(found, added.exception()))

        self._leaving[queue.name].add_done_callback(again)
        return found

    def begin_removal(self, name: str, at_once: bool = False) -> Future[None]:
        """Begin to remove a queue; the future is done when nothing of it is here any more.

        Parameters
        ----------
        name : str
            The queue.
        at_once : bool
            Whether to close its channel without waiting for its messages in hand: with the consumer, in one step of
            the broker, everything that is unsettled returns to the queue, and what is settled later has no effect.

        Raises
        ------
        ConfigurationError
            If the queue is not consumed.
        """
        self.check_process()
        self.check_open()
        with self._guard:
            leaving = self._leaving.get(name)
            if leaving is not None:
                self._revoke(name)
                return leaving
            check_consumed(name, self.settings)
            if not self._started:
                self.queues_removed([name])
                return _done()
            if self.stopping.is_set():
                raise ShutDown("the consumer was stopped")
            found = self._leaving[name] = _pending()
            self.io_thread.remove(name, self._teller(name, self._leaving), at_once)
            if self.io_thread.ended:
                self.changes_ended()
            return found

    def _revoke(self, name: str) -> None:
        """Give up additions of a queue that wait for its removal: it is removed once more. Called with the guard."""
        for future in [future for future, queue in self._returning.items() if queue == name]:
            del self._returning[future]
            _tell(future, removed_early(name))

    def changes_ended(self) -> None:
        """Let nothing wait for a queue any more: the I/O thread has ended, and with it every consumer."""
        with self._guard:
            adding, leaving = list(self._adding.values()), list(self._leaving.values())
            self._adding.clear()
            self._leaving.clear()
        for future in leaving:
            _tell(future, None)
        for future in adding:
            _tell(future, ShutDown("the consumer was stopped"))

    def _teller(self, name: str, futures: dict[str, Future[None]]) -> Done:
        """Return what takes a future out and tells it; the future may be told by the thread's end, too."""
        future = futures[name]

        def tell(error: BaseException | None) -> None:
            with self._guard:
                if futures.get(name) is future:
                    del futures[name]
            _tell(future, error)

        return tell

    def activity(self, queues: Iterable[str]) -> dict[str, Activity]:
        """Return how those of the queues stand that have a channel."""
        return self.io_thread.channels.activity(queues)

    @property
    def is_serving(self) -> bool:
        """Whether queues are consumed: the consumer is connected, and neither stopped nor closed."""
        return self.io_thread.is_connected and not (self.io_thread.ended or self.stopping.is_set() or self._closed)

    def weight_of(self, tenant: Hashable) -> int:
        """Return the weight of a tenant."""
        settings = self.settings
        return settings.tenants.get(tenant, settings.others).weight or 1

    def return_messages(self, queues: Collection[str]) -> None:
        """Return what waits of queues."""
        returned = Counter(message.queue for message in self.worker_queues.take_back(queues) if message.put_back())
        self._pace.release_of(queues)
        for queue, count in returned.items():
            _log.info("queue %r is left: %d messages that were not handled return to it", queue, count)

    def queues_removed(self, queues: Collection[str]) -> None:
        """Forget queues: settings, slots, figures."""
        with self._guard:
            before = self.settings
            settings = before.without_queues(queues)
            self._use(before, settings)
            for queue in queues:
                self.worker_queues.remove(before, queue)
                self.counters.forget(queue)
                self._waits.forget(queue)
                self._late_returns.forget(queue)
                if self.shedding and settings.key is None:
                    self.shedding.forget(queue)
            if self._started:
                self.io_thread.take(settings)
            gone = {queue for queue in queues if not settings.is_lane(queue)}  # a lane that comes back is still paused
            if not self._paused.isdisjoint(gone):
                self._paused = self._paused.difference(gone)
                if self._started:
                    self.io_thread.pause(self._paused)

    def keep(self, tenant: Hashable) -> None:
        """Forget a tenant's figures no more when it is idle."""
        with self._guard:  # its weight must not change in between
            quantum = self.settings.quanta.get(tenant, self.settings.default_quantum)
            if quantum is not None:
                self.worker_queues.set_quanta({tenant: quantum})

    def held_back(self) -> int:
        """Return the number of messages that failed again and wait here before they are requeued."""
        return self._pace.held

    def windows(self) -> dict[str, int]:
        """Return for every queue that is consumed the unsettled messages that it may have here."""
        return self.io_thread.channels.windows() if self._started else {}

    def state(self) -> ConsumerState:
        """Return what this is doing."""
        buffered = self.worker_queues.qsize()
        if not self._started:
            waiting = dict.fromkeys(self.settings.windows, False)
            return ConsumerState(
                consuming=waiting,
                buffered=buffered,
                stopping=self.stopping.is_set(),
                problem=self._problem(),
                paused=self._paused,
            )
        thread = self.io_thread
        since, paused = thread.since, self._paused
        return ConsumerState(
            connected=thread.is_connected and not thread.ended,
            since=None if since is None else datetime.fromtimestamp(since, UTC),
            last_error=thread.last_error,
            consuming={name: found and name not in paused for name, found in self._subscribed().items()},
            buffered=buffered,
            # What came on a channel that is gone may be buffered still; and the two are not counted at one moment.
            in_hand=max(0, thread.channels.unsettled() - buffered),
            stopping=self.stopping.is_set() or self._closed,
            problem=self._problem(),
            paused=paused,
        )

    def _subscribed(self) -> dict[str, bool]:
        """Return for every queue whether it is consumed; the I/O thread may not know the latest settings yet."""
        found = self.io_thread.channels.subscribed()
        return {name: found.get(name, False) for name in self.settings.windows}

    def _problem(self) -> str | None:
        """Say why this cannot go on by itself, if so."""
        if self.error is not None:
            return described(self.error)
        if self._forked:
            return FORKED
        if not self._started or self.io_thread.ended:
            return None
        overdue = None if self.limits is None else self.limits.overdue()
        if overdue is not None:
            return f"a handler has run for {overdue:.0f} s, more than twice its time limit"
        idle = time.monotonic() - self.io_thread.turned
        return f"the I/O thread has been stuck for {idle:.0f} s" if idle > STUCK else None

    def explain(self, name: Hashable) -> Explanation:
        """Return why a queue, or with a key a tenant, waits."""
        check_hashable(name)
        outlook = self.worker_queues.outlook(name)
        check_known(name, outlook, self.settings, self.worker_queues.stats() if outlook is None else ())
        return self._explained(name, outlook, self.state(), self.occupied(), self._joint_limits())

    def explain_slots(self, names: Iterable[Hashable]) -> list[Explanation]:
        """Return why those of some slots wait that are still there."""
        state, occupied = self.state(), self.occupied()
        outlooks = ((name, self.worker_queues.outlook(name)) for name in names)
        joints = self._joint_limits()
        return [self._explained(name, found, state, occupied, joints) for name, found in outlooks if found is not None]

    def _joint_limits(self) -> dict[Hashable, LimitStats]:
        return self.worker_queues.joint_limits() if self.settings.joint_limits else {}

    def occupied(self) -> dict[str, Unsettled]:
        """Return the filling of every consumed queue's window."""
        return self.io_thread.channels.occupied() if self._started else {}

    def _explained(
        self,
        name: Hashable,
        outlook: SlotOutlook | None,
        state: ConsumerState,
        occupied: dict[str, Unsettled],
        joints: dict[Hashable, LimitStats],
    ) -> Explanation:
        law = self.shedding.law_of(self.worker_queues.queues, name) if self.shedding and outlook is not None else None
        subkeys = self.worker_queues.subkeys(name) if self.settings.subkey is not None and outlook is not None else None
        permits = None if self.group_limits is None else self.group_limits.permits_of(name)
        return explained(name, self.settings, state, outlook, occupied, law, subkeys, permits, joints)

    def drain(self) -> Drain:
        """Return the seconds that the workers of all processes take for what is in the queues.

        Raises
        ------
        ConnectionFailed
            If the broker does not say how many messages the queues have.
        RuntimeError
            If the consumer was not started, or is closed.

        Notes
        -----
        The first call opens a connection beside that of the consumer, and has messages timed from then on.
        """
        self.check_process()
        with self._guard:
            self.check_open()
            if not self._started:
                raise RuntimeError("the consumer was not started")
            if self._drain_watch is None:
                self.time_messages()
                self._drain_watch = DrainWatch(self.settings.urls, _ended(self.io_thread))
            watch = self._drain_watch
        return watch.look(self)

    def handler_seconds(self) -> float | None:
        """Return the mean seconds that handlers took lately; None if none was called, or one deferred its message."""
        return self.service_ns * 1e-9 if self.handled_count and not self.deferring else None

    def stats(self) -> dict[str, Any]:
        """Return counters, what is buffered, and the figures of every slot."""
        found = {
            **self.counters.snapshot(),
            "buffered": self.worker_queues.qsize(),
            "slots": self.worker_queues.stats(),
        }
        if self._retries is not None:
            found |= self._retries.stats()
        if self.share_group is not None:
            found["peers"] = self.share_group.peers
        if self.group_limits is not None:
            found["group_limits"] = self.group_limits.figures()
        if self.lane_registry is not None:
            found["lanes"] = self.lane_registry.counts()
        if self.lane_membership is not None:
            found["ordered_lanes"] = self.lane_membership.counts()
        return {**found, "codel": self.shedding.stats()} if self.shedding else found


def _ended(thread: IOThread) -> Callable[[], bool]:
    """Return what says whether a thread has ended, and keeps nothing else alive."""
    return lambda: thread.ended


def _pending() -> Future[None]:
    """Return a future that cannot be cancelled: what it stands for goes on."""
    found: Future[None] = Future()
    found.set_running_or_notify_cancel()
    return found


def _done() -> Future[None]:
    found = _pending()
    found.set_result(None)
    return found


def _tell(future: Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _in_child() -> None:
    for client in list(_started):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
