"""The article's experiment over a real broker: ten temporary queues, filled, consumed and deleted."""

from __future__ import annotations

import itertools
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fairsched.cli.broker import Session
from fairsched.cli.experiment import BODY, QUANTA, Meter, Plan, Watch
from fairsched.consumer import Consumer
from fairsched.errors import ConnectionFailed

#: Should this process be killed, the broker deletes the queues itself once nobody has used them for ten minutes.
_ARGUMENTS = {"x-expires": 600_000}

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
        with _temporary_queues(url, [prefix + name for name in QUANTA], _backlog(plan)):
            return _consume(url, prefix, plan, watch)

    return run


def _backlog(plan: Plan) -> int:
    """Count the messages that each queue needs to be backlogged to the end.

    Every queue gets as many as the most favoured one can lose: equal backlogs, so that it is the consumer alone
    that makes the shares.
    """
    largest = max(QUANTA.values()) / sum(QUANTA.values())
    return math.ceil(plan.messages * largest * 1.1) + 2 * plan.prefetch


@contextmanager
def _temporary_queues(url: str, names: list[str], messages: int) -> Iterator[None]:
    """Declare and fill queues; delete them whatever happens.

    All of them: one that an interrupt found being declared may be there, and deleting one that is not is no error. A
    deletion that is interrupted itself is begun again, once.
    """
    try:
        with Session(url) as session:
            for name in names:
                session.declare(name, _ARGUMENTS)
                session.publish(name, itertools.repeat(BODY, messages))
        yield
        _delete(url, names)
    except BaseException:
        with suppress(ConnectionFailed):  # what went wrong first is what the user is told
            _delete(url, names)
        raise


def _delete(url: str, names: list[str]) -> None:
    with Session(url) as session:
        session.delete(*names)


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
