"""A handler is ten times slower than another consumer of its queue: what keeps the age of messages down.

Returning what waited too long keeps buffers short. But half of it is sent to the slow consumer again: since their
publication messages are only twice as young as without (2.0 s, 1.0 s). Small windows leave them at the broker.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.running import Running
from support.waiting import eventually

from fairsched import CoDel, Publisher

pytestmark = pytest.mark.steady

#: Messages a second, and for how many seconds; a quarter of them come to the slow consumer as long as it takes them.
RATE, SECONDS = 100, 12.0
#: What happens before is not measured: windows fill, the law finds its pace.
SETTLE = 4.0
PREFETCH, SLOW, QUICK, BUDGET = 51, 0.04, 0.004, 3
ATTEMPTS = 3


class Steady(NamedTuple):
    """The measurements, once windows had filled: 99th percentiles in seconds, and messages handled a second."""

    wait: float  # from arrival in a consumer to the start of the handler
    age: float  # from publication to that
    rate: float


class Aged(Running):
    """A consumer that notes, when a handler starts, how old its message is and how often it had been returned."""

    def __init__(self, url: str, queues: list[str], work: float, **options: object) -> None:
        super().__init__(url, queues, work, **options)
        self.starts: list[tuple[float, float, float]] = []  # (start, wait, age)
        self.returned: list[int] = []

    def _handle(self, message: object) -> None:
        now = time.monotonic()
        self.starts.append((now, now - message.arrived, now - float(message.body)))
        self.returned.append(int(message.headers.get("x-delivery-count", 0)))
        super()._handle(message)


def publish(broker: Node, queue: str, begin: float) -> list[bytes]:
    """Publish at a steady rate, late messages at once; a message's body is the time at which it was due.

    Returns once all are confirmed: a quorum queue of a busy RabbitMQ loses messages that are not confirmed when their
    channel ends.
    """
    bodies = [b"%.6f" % (begin + number / RATE) for number in range(int(RATE * SECONDS))]
    pause = threading.Event()
    with Publisher(broker.url) as publisher:
        for body in bodies:
            pause.wait(max(0.0, float(body) - time.monotonic()))
            publisher.publish(body, queue)
    return bodies


def story(broker: Node, queue: str, **options: object) -> Steady:
    """A slow consumer and a quick one share a queue, behind a slow network."""
    with Proxy(broker.port, delay=0.05) as proxy:
        url = behind(proxy, broker.url)
        with Aged(url, [queue], SLOW, **options) as slow, Aged(url, [queue], QUICK, **options) as quick:
            eventually(lambda: all(hasattr(one.consumer._client, "io_thread") for one in (slow, quick)))
            eventually(lambda: all(one.consumer._client.io_thread.channels.window() for one in (slow, quick)))
            begin = time.monotonic()
            bodies = publish(broker, queue, begin)
            eventually(lambda: slow.acked + quick.acked == len(bodies))
    handled = [body for one in (slow, quick) for (_, body), count in one.processed.items() for _ in range(count)]
    assert Counter(handled) == Counter(bodies), "a message was lost, or handled twice"
    assert max(slow.returned + quick.returned) <= BUDGET
    assert broker.count(queue) == 0
    steady = [one for one in slow.starts + quick.starts if begin + SETTLE <= one[0] <= begin + SECONDS]
    wait, age = (statistics.quantiles([one[which] for one in steady], n=100)[98] for which in (1, 2))
    return Steady(wait, age, len(steady) / (SECONDS - SETTLE))


#: Options of the consumers of each story.
STORIES: dict[str, dict[str, Any]] = {
    "plain": {"prefetch": PREFETCH},
    "codel": {"prefetch": PREFETCH, "codel": CoDel(0.1, 0.02, budget=BUDGET)},
    "auto": {"prefetch": "auto"},
}
Measured = dict[str, Steady]


@pytest.fixture(scope="module")
def measure(broker: Node) -> Callable[[int], Measured]:
    """Return the measurements of an attempt, whose stories are told side by side when the first of them is wanted."""
    found: list[Measured] = []

    def attempt(number: int) -> Measured:
        if number == len(found):
            queues = {name: f"aged-{name}-{number}" for name in STORIES}
            # Messages of quorum queues say how often they were returned.
            broker.declare(*queues.values(), arguments={"x-queue-type": "quorum"})
            with ThreadPoolExecutor(len(STORIES)) as threads:
                told = {
                    name: threads.submit(story, broker, queues[name], **options) for name, options in STORIES.items()
                }
            broker.delete(*queues.values())
            found.append({name: future.result() for name, future in told.items()})
        return found[number]

    return attempt


def compare(measure: Callable[[int], Measured], name: str, is_better: Callable[[Steady, Steady], bool]) -> None:
    """Compare a story with the plain one, until it is better or there were too many attempts."""
    measured = []
    for number in range(ATTEMPTS):
        plain, fresh = measure(number)["plain"], measure(number)[name]
        measured.append((plain, fresh))
        if is_better(plain, fresh) and fresh.rate == pytest.approx(plain.rate, rel=0.05):
            return
    pytest.fail(f"without and with: {measured}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_codel_keeps_buffers_short_at_the_same_throughput(measure: Callable[[int], Measured]) -> None:
    """The longest hundredth of waits is five times shorter; nothing is lost, or returned beyond its budget."""
    compare(measure, "codel", lambda plain, fresh: plain.wait >= 5 * fresh.wait)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_small_windows_keep_messages_young_at_the_same_throughput(measure: Callable[[int], Measured]) -> None:
    """Messages that are not taken in need not be returned: five times younger, from publication on."""
    compare(measure, "auto", lambda plain, fresh: plain.age >= 5 * fresh.age)
