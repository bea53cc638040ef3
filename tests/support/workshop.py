"""A consumer whose every message takes a while, and how much of the time its worker was busy."""

from __future__ import annotations

import bisect
import itertools
import statistics
import threading
import time
from collections import deque

from support.running import Running
from support.waiting import eventually


def undisturbed(values: list[float]) -> float:
    """The value that the least disturbed tenth stays below: a busy machine lengthens times, and shortens none."""
    return statistics.quantiles(values, n=10)[0]


class Workshop(Running):
    """A running consumer with handlers that wait for `service` seconds, and the times of their last starts."""

    def __init__(self, url: str, queues: list[str], service: float, **options: object) -> None:
        super().__init__(url, queues, **options)
        self.service = service
        self.starts: deque[float] = deque(maxlen=20_000)
        #: When each of them began and ended, and whether nothing was here then that could follow it.
        self.handled: deque[tuple[float, float, bool]] = deque(maxlen=20_000)
        self._patience = threading.Event()

    def __enter__(self) -> Workshop:
        super().__enter__()
        try:
            eventually(lambda: self.starts, what="a first message")
        except BaseException:
            self.consumer.stop(now=True)
            raise
        return self

    def _handle(self, message: object) -> None:
        begin = time.perf_counter()
        self.starts.append(begin)
        self._patience.wait(self.service)
        self.handled.append((begin, time.perf_counter(), self.buffered == 0))
        self.processed[message.queue, message.body] += 1

    def forget(self) -> None:
        """Begin to measure anew."""
        self.starts.clear()
        self.handled.clear()

    def cycles(self, count: int, seconds: float = 1e9) -> list[tuple[float, float]]:
        """Return what each run of `count` messages says: seconds a message, and the part of the time that was work.

        The time between two messages is waiting if none was here when it began, except for what it takes undisturbed;
        else it is work, however long the machine takes for it.
        """
        handled = self.recent(seconds)
        gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(handled)]
        # A single message at a time never follows another at once.
        between = undisturbed(gaps) if count > 1 else 0.0
        work = (
            end - begin + (min(gap, between) if empty else gap)
            for (begin, end, empty), gap in zip(handled, gaps, strict=False)
        )
        worked = list(itertools.accumulate(work, initial=0.0))
        found = []
        for first in range(len(handled) - count):
            part = worked[first + count] - worked[first]
            found.append((part / count, part / (handled[first + count][0] - handled[first][0])))
        return found

    def recent(self, seconds: float = 1e9) -> list[tuple[float, float, bool]]:
        """Return what was handled of the messages that were begun in the last seconds."""
        handled = list(self.handled)
        return handled[bisect.bisect_left(handled, (time.perf_counter() - seconds,)) :]

    @property
    def buffered(self) -> int:
        return self.consumer.stats()["buffered"]

    @property
    def window(self) -> int:
        """Unsettled messages that the present consumers may have, all queues together."""
        return sum(one.prefetch.window for one in list(self.consumer._client.io_thread.channels.by_queue.values()))
