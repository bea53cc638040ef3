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
from typing import NamedTuple

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.running import Running
from support.waiting import eventually

from fairsched import CoDel

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
    """Publish at a steady rate, late messages at once; a message's body is the time at which it was due."""
    bodies = [b"%.6f" % (begin + number / RATE) for number in range(int(RATE * SECONDS))]
    pause = threading.Event()
    with broker.connect() as channel:
        for body in bodies:
            pause.wait(max(0.0, float(body) - time.monotonic()))
            channel.basic_publish("", queue, body)
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


def compare(broker: Node, new_queue: Declare, is_better: Callable[[Steady, Steady], bool], **options: object) -> None:
    """Tell the story without and with options, until the second is better or there were too many attempts."""
    quorum = {"x-queue-type": "quorum"}  # whose messages say how often they were returned
    measured = []
    for _ in range(ATTEMPTS):
        plain = story(broker, new_queue("plain", arguments=quorum), prefetch=PREFETCH)
        fresh = story(broker, new_queue("fresh", arguments=quorum), **options)
        measured.append((plain, fresh))
        if is_better(plain, fresh) and fresh.rate == pytest.approx(plain.rate, rel=0.05):
            return
    pytest.fail(f"without and with: {measured}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_codel_keeps_buffers_short_at_the_same_throughput(broker: Node, new_queue: Declare) -> None:
    """The longest hundredth of waits is five times shorter; nothing is lost, or returned beyond its budget."""
    options = {"prefetch": PREFETCH, "codel": CoDel(0.1, 0.02, budget=BUDGET)}
    compare(broker, new_queue, lambda plain, fresh: plain.wait >= 5 * fresh.wait, **options)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_small_windows_keep_messages_young_at_the_same_throughput(broker: Node, new_queue: Declare) -> None:
    """Messages that are not taken in need not be returned: five times younger, from publication on."""
    compare(broker, new_queue, lambda plain, fresh: plain.age >= 5 * fresh.age, prefetch="auto")
