"""A consumer whose every message takes a while, and what its pace says about the network in front of it."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import deque

from integration.rabbitmq import eventually
from integration.running import Running


def undisturbed(values: list[float]) -> float:
    """The value that the least disturbed tenth stays below: a busy machine lengthens times, and shortens none."""
    return statistics.quantiles(values, n=10)[0]


class Workshop(Running):
    """A running consumer with handlers that wait for `service` seconds, and the times of their last starts."""

    def __init__(self, url: str, queues: list[str], service: float, **options: object) -> None:
        super().__init__(url, queues, **options)
        self.service = service
        self.starts: deque[float] = deque(maxlen=20_000)
        self.times: deque[float] = deque(maxlen=20_000)
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
        self.times.append(time.perf_counter() - begin)
        self.processed[message.queue, message.body] += 1

    def forget(self) -> None:
        """Begin to measure anew."""
        self.starts.clear()
        self.times.clear()

    def pace(self) -> float:
        """Seconds from one message to the next while there are any: the handler's time, and what is around it."""
        starts = self.recent()
        return undisturbed([later - earlier for earlier, later in itertools.pairwise(starts)])

    def span(self, count: int) -> float:
        """Seconds that so many messages take, waiting for them included."""
        starts = self.recent()
        return undisturbed([later - earlier for earlier, later in zip(starts, starts[count:], strict=False)])

    def recent(self, seconds: float = 1e9) -> list[float]:
        """Starts of the last seconds."""
        since = time.perf_counter() - seconds
        return [start for start in list(self.starts) if start >= since]

    @property
    def buffered(self) -> int:
        return self.consumer.stats()["buffered"]

    @property
    def window(self) -> int:
        """Unsettled messages that the present consumers may have, all queues together."""
        return sum(one.prefetch.window for one in list(self.consumer._client.io_thread._current.values()))
