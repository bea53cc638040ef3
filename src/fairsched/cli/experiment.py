"""The experiment of ``fairsched demo``: ten weighted queues, all backlogged, and how often each is served.

Source: "Fair Consuming With RabbitMQ" (2015): quanta 4, 8, …, 40, every message costs 4, prefetch 50 per queue.
`brokerexperiment` runs it on a broker. This file runs it where there is none, off Linux: on the engine alone, with a
thread in place of the broker.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from fairsched import FairQueue

#: Quantum of each queue; together they are served 55 messages a round.
QUANTA = {f"p{index}": 4 * (index + 1) for index in range(10)}
COST = 4
PREFETCH = 50
#: 600 rounds: every count can be exact, and the experiment takes a few seconds at 100 µs per message.
MESSAGES = 33_000
SERVICE_TIME = 100e-6
BODY = bytes(100)

#: Seconds between two updates of the live table.
_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the experiment.

    Parameters
    ----------
    messages : int
        Messages to process.
    service_time : float
        Seconds that the handler takes for a message.
    prefetch : int
        Messages of each queue in the process at a time.
    """

    messages: int = MESSAGES
    service_time: float = SERVICE_TIME
    prefetch: int = PREFETCH


#: Callback for progress: the messages served so far by queue, and the seconds elapsed.
Watch = Callable[[Mapping[str, int], float], None]


@dataclass(slots=True)
class Meter:
    """Handles messages: keeps busy for the service time, counts, and reports progress.

    Parameters
    ----------
    plan : Plan
        Number of messages, and how long each takes.
    watch : callable
        Called about ten times a second with the counts and the seconds so far.

    Notes
    -----
    To be used by one thread. The clock starts with the first message.
    """

    plan: Plan
    watch: Watch
    served: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUANTA, 0))
    total: int = 0
    started: float = 0.0
    ended: float = 0.0
    _next_look: float = 0.0

    @property
    def seconds(self) -> float:
        """Time from the first message to the last."""
        return self.ended - self.started

    def handle(self, name: str) -> bool:
        """Handle one message of a queue; return False for the last one."""
        now = time.perf_counter()
        if self.total == 0:
            self.started = now
            self._next_look = now + _INTERVAL
        # A busy wait, as in the article: sleeping for 100 µs takes far longer than that.
        until = now + self.plan.service_time
        while now < until:
            now = time.perf_counter()
        self.ended = now
        self.served[name] += 1
        self.total += 1
        if now >= self._next_look:
            self.watch(self.served, self.seconds)
            self._next_look = time.perf_counter() + _INTERVAL
        return self.total < self.plan.messages


class Feeder:
    """Keeps `window` messages of each queue in the engine, as a broker keeps a consumer's prefetch filled.

    Parameters
    ----------
    engine : FairQueue
        With a slot for each of `QUANTA`.
    window : int
        Messages per queue.

    Notes
    -----
    `acknowledge` belongs to the consuming thread. It waits while half a window is acknowledged and not yet replaced:
    a broker's round trip shorter than that, so that, whatever else this machine does, no queue with a window of at
    least twice its messages per round runs dry.
    """

    def __init__(self, engine: FairQueue, window: int) -> None:
        self._engine = engine
        self._window = window
        self._acknowledged: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(max(1, window // 2))
        self._thread = threading.Thread(target=self._run, name="fairsched-demo-feeder", daemon=True)

    def __enter__(self) -> Feeder:
        self._put([name for name in QUANTA for _ in range(self._window)])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._acknowledged.put(None)
        self.join()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end, which it does at the end of the ``with`` block, or by failing."""
        self._thread.join(timeout)

    def acknowledge(self, name: str) -> None:
        """Replace a handled message of a queue by a new one."""
        self._room.acquire()
        self._acknowledged.put(name)

    def _put(self, names: list[str]) -> None:
        self._engine.put_many(names, [BODY] * len(names), [COST] * len(names))

    def _run(self) -> None:
        try:
            while (name := self._acknowledged.get()) is not None:
                self._put([name])
                self._room.release()
        finally:
            self._engine.shutdown(immediate=True)  # a consumer that still waits must not wait for ever


def run_in_process(plan: Plan, watch: Watch) -> Meter:
    """Run the experiment on the engine alone, in this process.

    Parameters
    ----------
    plan : Plan
        What to do.
    watch : callable
        Is told the figures while they grow.

    Returns
    -------
    Meter
        The counts and the time.

    Notes
    -----
    O(messages). One thread feeds while the caller's handles.
    """
    engine = FairQueue(QUANTA)
    meter = Meter(plan, watch)
    with Feeder(engine, plan.prefetch) as feeder:
        while True:
            name, _body = engine.get()
            if not meter.handle(name):
                return meter
            feeder.acknowledge(name)
