"""The article's experiment over a real broker: ten temporary queues, filled, consumed and deleted."""

from __future__ import annotations

import itertools
import math
import threading
import time
import uuid
from collections.abc import Callable

from fairsched.cli.broker import temporary_queues
from fairsched.cli.experiment import BODY, QUANTA, Meter, Plan, Watch
from fairsched.consumer import Consumer

#: Seconds that the first windows may take to arrive; after that it begins with what is here.
_FILLING = 10.0


def on_broker(url: str) -> Callable[[Plan, Watch], Meter]:
    """Return the experiment on one broker.

    Parameters
    ----------
    url : str
        The broker.

    Returns
    -------
    callable
        Takes plan and watch, as `run_in_process` does, and returns the meter.

    Raises
    ------
    ConnectionFailed
        By the callable, if the broker cannot be reached or refuses.
    """

    def run(plan: Plan, watch: Watch) -> Meter:
        prefix = f"fairsched.demo.{uuid.uuid4().hex}."
        with temporary_queues(url, {prefix + name: itertools.repeat(BODY, _backlog(plan)) for name in QUANTA}):
            return _consume(url, prefix, plan, watch)

    return run


def _backlog(plan: Plan) -> int:
    """Count the messages that each queue needs to be backlogged to the end.

    Every queue gets as many as the most favoured one can lose: equal backlogs, so that it is the consumer alone
    that makes the shares.
    """
    largest = max(QUANTA.values()) / sum(QUANTA.values())
    return math.ceil(plan.messages * largest * 1.1) + 2 * plan.prefetch


def _consume(url: str, prefix: str, plan: Plan, watch: Watch) -> Meter:
    meter = Meter(plan, watch)
    queues = {prefix + name: quantum for name, quantum in QUANTA.items()}
    with Consumer(url, queues, prefetch=dict.fromkeys(queues, plan.prefetch)) as consumer:
        _wait_for_windows(consumer, plan.prefetch)
        for message in consumer:
            with message:
                more = meter.handle(message.queue.removeprefix(prefix))
            if not more:
                break
    return meter


def _wait_for_windows(consumer: Consumer, window: int) -> None:
    """Let every queue's first window arrive, so that the one subscribed first does not begin alone."""
    pause = threading.Event()
    deadline = time.monotonic() + _FILLING
    while time.monotonic() < deadline:
        if all(slot.queued >= window for slot in consumer.stats()["slots"].values()):
            return
        pause.wait(0.002)
