"""What the blocking and the asyncio consumer share: start, settlement of failures, stop, figures."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched.consumer.connection import Pump
from fairsched.consumer.counters import Counters
from fairsched.consumer.lanes import Lanes
from fairsched.consumer.listener import Listener
from fairsched.consumer.settings import Settings
from fairsched.consumer.shedding import Shedding
from fairsched.consumer.urls import endpoint
from fairsched.consumer.window import shortfall
from fairsched.errors import ConnectionFailed, ShutDown
from fairsched.prefetch import recommend

if TYPE_CHECKING:
    from fairsched._fairqueue import FairQueue
    from fairsched.consumer.message import Message

_log = logging.getLogger(__name__)

#: Handled messages after which measured round trip and handler time are held against the windows.
_LOOK_AFTER = 1000
#: Seconds that the broker has to confirm a close.
_CLOSE_TIMEOUT = 5.0


class Machine(Listener):
    """Machine(settings)
    --

    One consumer without a face: lanes, I/O thread, counters and the way they begin and end.

    Parameters
    ----------
    settings : Settings
        What to consume, and how.

    Notes
    -----
    Every public method is safe from any thread. `ready`, `failed` and `intake_closed` are called by the I/O thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lanes = Lanes(settings)
        self.counters = Counters()
        rules = settings.shedding
        self._shedding = rules and Shedding(rules, self.counters, self._is_alone, self._advice)
        #: Made by `start`: it owns sockets, and a consumer that is never started should own nothing.
        self.pump: Pump
        #: What made consuming impossible, if anything did.
        self.error: BaseException | None = None
        #: Whether workers leave what is buffered.
        self.abandoned = False
        #: Set by the first stop, or by a failure.
        self.stopping = threading.Event()
        #: Called, in whatever thread, when getters should look again.
        self.on_change: Callable[[], None] | None = None
        self._begun = threading.Event()
        self._started = self._closed = False
        self._stop_at: float | None = None
        self._guard = threading.Lock()
        self._handled = 0
        self._service = 0.0

    # Beginning ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and consume; returns when every queue is consumed or `stop` is called, raises when neither can be."""
        with self._guard:
            if self._started:
                raise RuntimeError("a consumer can be started once; make another")
            self.pump = Pump(self.settings, self.lanes, self.counters, self, self.settle_failure)
            self._started = True
        try:
            self.pump.start()
            if self.stopping.is_set():
                self.pump.stop_intake()
            in_time = self._begun.wait(self.settings.connect_timeout)
            if not in_time:
                hosts = ", ".join(endpoint(url) for url in self.settings.urls)
                self.error = ConnectionFailed(
                    f"no connection to {hosts} within {self.settings.connect_timeout:g} s; "
                    f"last error: {self.pump.last_error or 'no answer'}"
                )
            if self.error is not None:
                raise self.error
        except BaseException:
            self.stop(now=True)
            self.close()
            raise

    def ready(self) -> None:
        """Let `start` return."""
        self._begun.set()

    def failed(self, error: BaseException) -> None:
        """Let `start`, or whoever consumes, raise."""
        if self.error is None:
            self.error = error
        self.abandoned = True
        self.stopping.set()
        self._begun.set()
        self.intake_closed()

    def intake_closed(self) -> None:
        """Let getters leave once the buffer is empty."""
        self.lanes.shutdown()
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # Messages ----------------------------------------------------------------------------------------------------

    def try_get(self, lane: FairQueue, priority: int = 0) -> Message | None:
        """Return the next message of a lane that came on a living channel, or None if there is none for us now.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        while True:
            if self.abandoned:
                raise ShutDown("the consumer was stopped")
            try:
                slot, message = lane.get(False, priority=priority)
            except queue.Empty:
                return None
            if self._usable(lane, slot, message):
                return message  # type: ignore[no-any-return]

    def get(self, lane: FairQueue, timeout: float | None = None, priority: int = 0) -> Message | None:
        """Return the next message of a lane, waiting for it; None if the time is over.

        Raises
        ------
        ShutDown
            If there will be none.
        """
        while True:
            message = self.try_get(lane, priority)
            if message is not None:
                return message
            # About to wait: the broker may be waiting too, for what is settled but not sent.
            self.pump.request_flush()
            try:
                slot, message = lane.get(True, timeout, priority=priority)
            except queue.Empty:
                return None
            if self.abandoned:
                message.nack()
            elif self._usable(lane, slot, message):
                return message  # type: ignore[no-any-return]

    def _usable(self, lane: FairQueue, slot: Any, message: Message) -> bool:
        """Whether a message just taken is one to handle; if not, its slot was charged for nothing."""
        # Its channel may be gone, and the broker delivers it again; or it waited too long, and was sent back.
        if message.alive and not (self._shedding and self._shedding.returns(lane, slot, message)):
            return True
        self.charge(lane, slot, -message.cost)
        return False

    def _is_alone(self, queue: str) -> bool:
        return self.pump.census.alone(queue)

    def _advice(self) -> str:
        """Say what window would do for a handler as fast as this one."""
        round_trip = self.pump.round_trip()
        if round_trip is None or self._service <= 0:
            return "A smaller prefetch leaves messages at the broker"
        service = self._service * 1e-9 / self.settings.workers
        return (
            f"A prefetch of {recommend(round_trip, service)} in all would keep the handler busy "
            f"(round trip {round_trip * 1e3:.3g} ms, {service * 1e3:.3g} ms a message), "
            f"it is {self.pump.window()}"
        )

    def charge(self, lane: FairQueue, slot: Any, difference: int) -> None:
        """Correct what a slot of a lane was charged; a tenant forgotten meanwhile has nothing to correct."""
        if difference:
            try:
                lane.settle(slot, difference)
            except KeyError:
                _log.debug("slot %r is gone; its correction of %d is dropped", slot, difference)

    def handled(self, lane: FairQueue, message: Message, elapsed: int) -> None:
        """Note that the handler of a lane's message took `elapsed` nanoseconds."""
        cost = self.settings.cost
        if cost.measures:
            self.charge(lane, message.slot, cost.correction(message, elapsed))
        if self.settings.target_delay is not None:
            self.pump.gauge.served(elapsed)
        # Several workers may lose an update here; the mean and the moment of the look need not be exact.
        self._service += (elapsed - self._service) / min(100, self._handled + 1)
        self._handled += 1
        if self._handled == _LOOK_AFTER:
            self._look_at_windows()

    def _look_at_windows(self) -> None:
        """Say once, with the arithmetic, if the windows are too small for what was measured."""
        round_trip = self.pump.round_trip()
        if self.settings.key is None and self.settings.target_delay is None and round_trip is not None:
            service = self._service * 1e-9 / self.settings.workers
            reason = shortfall(self.settings.windows, self.settings.units, round_trip, service)
            if reason:
                _log.warning("shares will flatten under load: %s; raise prefetch=", reason)

    def settle_failure(self, message: Message, error: BaseException) -> None:
        """Settle a message whose handler raised, as ``on_error`` says; log it once, without its body."""
        self.counters.add("errors")
        policy = self.settings.on_error
        what = policy if isinstance(policy, str) else "on_error function"
        # A message that fails again and again would bury the log under its traceback.
        trace = None if message.redelivered else (type(error), error, error.__traceback__)
        _log.error(
            "handler failed on message %d of queue %r (%s: %s); settled by: %s",
            message.delivery_tag, message.queue, type(error).__name__, error, what, exc_info=trace,
        )  # fmt: skip
        if callable(policy):
            try:
                policy(message, error)
            except Exception:
                _log.exception("on_error function failed; message %d is requeued", message.delivery_tag)
            if not (message.settled or message.deferred):
                message.nack()
        else:
            message.nack(requeue=policy == "requeue")

    # End ---------------------------------------------------------------------------------------------------------

    def stop(self, now: bool = False) -> None:
        """Stop deliveries; a second call, or `now`, also leaves what is buffered."""
        if now or self.stopping.is_set():
            self.abandoned = True
            self.lanes.shutdown()
        if self._stop_at is None:
            self._stop_at = time.monotonic()
        self.stopping.set()
        self._begun.set()
        with self._guard:
            started = self._started
        if started:
            self.pump.stop_intake()
        else:
            self.lanes.shutdown()
        self._changed()

    def remaining(self) -> float:
        """Return the seconds left of the shutdown timeout."""
        began = time.monotonic() if self._stop_at is None else self._stop_at
        return max(0.0, began + self.settings.shutdown_timeout - time.monotonic())

    def close(self) -> None:
        """Give back what is buffered, send what is settled, close the connection, end the thread."""
        with self._guard:
            if self._closed or not self._started:
                return
            self._closed = True
        try:
            self.stop(now=True)
            returned = sum(message.nack() for message in self.lanes.leftovers())
            if returned:
                _log.info("%d messages that were not handled return to their queues", returned)
        finally:  # whatever interrupts this: the thread must not be left behind, nor what it consumes
            self.pump.close(_CLOSE_TIMEOUT)

    def stats(self) -> dict[str, Any]:
        """Return counters, what is buffered, and the figures of every slot."""
        found = {**self.counters.snapshot(), "buffered": self.lanes.qsize(), "slots": self.lanes.stats()}
        return {**found, "codel": self._shedding.stats()} if self._shedding else found
