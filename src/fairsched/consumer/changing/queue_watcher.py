"""The thread that asks a source of queues, and has a consumer add and remove them."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fairsched.consumer.changing.functions_made_anew import with_first_functions
from fairsched.consumer.handling.described import described
from fairsched.consumer.log_limit import PAUSE, LogLimit
from fairsched.errors import ConfigurationError, ShutDown

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fairsched.config.queue_source import QueueSource
    from fairsched.config.queues import Queue
    from fairsched.consumer.settings import ConsumerSettings

_log = logging.getLogger(__name__)


class QueueSet(Protocol):
    """The queues of a consumer, as a watcher needs them; `Client` documents the methods."""

    settings: ConsumerSettings

    def add_queues(self, queues: Mapping[str, Queue]) -> dict[str, Future[None]]:
        """Begin to consume more queues."""

    def begin_removal(self, name: str) -> Future[None]:
        """Begin to remove a queue."""

    def set_weights(self, changes: Mapping[Any, int]) -> None:
        """Change weights."""


class QueueWatcher:
    """Asks a source of queues every few seconds, and changes the queues of a consumer.

    Parameters
    ----------
    source : QueueSource
        It is asked.
    consumer : QueueSet
        It has the queues.
    wait_for : callable or None
        Returns the result of a coroutine that the source returned; None: it must not return any.

    Notes
    -----
    Queues that no answer has named, such as those added by `Consumer.add_queue`, are left alone. A queue that cannot be
    consumed is logged once a minute, and added again with the next answer.

    `start` and `end` are for the owner, `look` for the I/O thread; the rest belongs to the thread of the watcher.
    """

    def __init__(
        self, source: QueueSource, consumer: QueueSet, wait_for: Callable[[Any], Any] | None, log: LogLimit
    ) -> None:
        self._source = source
        self._consumer = consumer
        self._wait_for = wait_for
        self._log = log
        self._over: Callable[[], bool] = lambda: False
        self._ended = threading.Event()
        #: Since when the source has not answered, on the clock of `time.monotonic`; None: it is not being asked.
        self._asked_at: float | None = None
        #: Queues that were in an answer, and have not been missing in a later one.
        self._named: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="fairsched-queues", daemon=True)

    def start(self, over: Callable[[], bool]) -> None:
        """Begin to ask, until `over` or `end`."""
        self._over = over
        self._thread.start()

    def end(self, timeout: float) -> None:
        """Ask no more; wait for an answer that is under way for so many seconds at most."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout if self._asked_at is None else min(timeout, 0.1))

    def look(self) -> None:
        """Log if the source does not answer; to be called about once a second."""
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else time.monotonic() - asked_at
        if waited > PAUSE and self._log.due("silent"):
            _log.error(
                "the source of queues, %s, has not answered for %.0f s; the queues stay as they are", self._source,
                waited,
            )  # fmt: skip

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._ended.is_set() or self._over()):
            try:
                self._take(self._ask())
            except ShutDown:
                return
            except BaseException as error:  # a source that ends its thread by SystemExit would never be asked again
                if self._ended.is_set() or self._over():
                    return
                self._complain(error)
            self._ended.wait(self._source.every)

    def _complain(self, error: BaseException) -> None:
        if self._log.due("failed"):
            _log.error(
                "the source of queues, %s, failed; the queues stay as they are: %s", self._source, described(error)
            )

    def _ask(self) -> dict[str, Queue]:
        self._asked_at = time.monotonic()
        try:
            answer = self._source.answer(self._consumer.settings.urls)
            if inspect.isawaitable(answer):
                if self._wait_for is None:
                    if inspect.iscoroutine(answer):
                        answer.close()
                    raise ConfigurationError("a source that returns a coroutine is for fairsched.aio.Consumer")
                answer = self._wait_for(answer)
            return self._source.read(answer)
        finally:
            self._asked_at = None

    def _take(self, wanted: Mapping[str, Queue]) -> None:
        """Change the queues of the consumer to those of an answer."""
        for name in self._named - wanted.keys():
            self._remove(name)
        self._named = set(wanted)
        settings = self._consumer.settings
        known = {
            name: one if one.weight == settings.weights[name] else replace(one, weight=settings.weights[name])
            for name, one in settings.queues.items()
        }
        wanted = {name: self._with_known_functions(known, queue) for name, queue in wanted.items()}
        changed = {name for name, queue in wanted.items() if name in known and known[name] != queue}
        reweighed = {
            name: wanted[name].weight
            for name in changed
            if settings.key is None and replace(known[name], weight=wanted[name].weight) == wanted[name]
        }
        if reweighed:
            self._consumer.set_weights(reweighed)
        again = changed - reweighed.keys()
        for name in again:
            self._remove(name)
        self._add({name: queue for name, queue in wanted.items() if name not in known or name in again})

    def _with_known_functions(self, known: Mapping[str, Queue], queue: Queue) -> Queue:
        """Return a queue with the functions that it is consumed with, if the source only makes them anew.

        They differ in each answer. If that counted, the queue would be removed and added again for each of them.
        """
        first = known.get(queue.name)
        if first is None or first == queue:
            return queue
        found = with_first_functions(first, queue)
        if found is not queue and self._log.due("made anew"):
            _log.error(
                "the source of queues, %s, makes another function for queue %r in each answer; the first one stays: "
                "define what on_error and Retry(on=) name outside of the source", self._source, queue.name,
            )  # fmt: skip
        return found

    def _remove(self, name: str) -> None:
        try:
            self._consumer.begin_removal(name)
        except ConfigurationError:
            _log.debug("queue %r was removed already, or could not be consumed", name)

    def _add(self, queues: Mapping[str, Queue]) -> None:
        try:
            added = self._consumer.add_queues(queues)
        except ConfigurationError:  # one of them cannot be consumed: the others can
            added = {}
            for name, queue in queues.items():
                try:
                    added |= self._consumer.add_queues({name: queue})
                except ConfigurationError as error:
                    self._note(error)
        for future in added.values():
            future.add_done_callback(lambda done: self._note(done.exception()))

    def _note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, ShutDown) and self._log.due("refused"):
            _log.error("a queue of the source is not consumed, and is tried again with its next answer: %s", error)
