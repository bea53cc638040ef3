"""Random sessions of consumer, publisher and retries, with cuts and kills: published = handled + dead letters + queued.

`make accounting` runs a thousand (ACCOUNTED_SESSIONS); ACCOUNTED_SEED is the seed of the first, each next has the next.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.accounting import DELAY, Session
from support.proxy import Proxy, behind
from support.rabbitmq import Broker

from fairsched import ConnectionFailed, Publisher, PublishFailed, Retry

SESSIONS = int(os.environ.get("ACCOUNTED_SESSIONS", "16"))
FIRST = int(os.environ.get("ACCOUNTED_SEED", "1"))
SUPPORT = Path(__file__).parents[1] / "support"
QUORUM = {"x-queue-type": "quorum"}
#: Of a queue that makes the delays of a session's retries itself.
DELAYED = Retry(3, backoff=DELAY, jitter=False).queue_arguments


def publish(url: str, queue: str, count: int) -> set[bytes]:
    """Publish numbered messages; return the bodies of those that the broker confirmed."""
    with Publisher(url, confirm_timeout=10) as publisher:
        sent = {b"%d" % number: publisher.publish(b"%d" % number, queue) for number in range(count)}
        confirmed = set()
        for body, confirmation in sent.items():
            with contextlib.suppress(PublishFailed):
                confirmation.result(15)
                confirmed.add(body)
    return confirmed


def cutting(proxy: Proxy, times: list[float]) -> list[threading.Timer]:
    timers = [threading.Timer(seconds, proxy.cut) for seconds in times]
    for timer in timers:
        timer.start()
    return timers


def found_in(broker: Broker, queues: list[str], wanted: set[bytes]) -> Counter[bytes]:
    """Take messages out of queues, until the wanted ones were there or for some seconds: some are on their way."""
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + 10
    with broker.connect() as channel:
        while True:
            for queue in queues:
                while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    found[one[2]] += 1
            if wanted <= found.keys() or time.monotonic() > deadline:
                return found
            channel.connection.process_data_events(0.02)


def account(broker: Broker, seed: int, folder: Path) -> str:
    """Run one session; return what is wrong with its account, or nothing."""
    chosen = random.Random(seed)
    queue, dead, letters = f"account-{seed}", f"account-{seed}-dead", f"account-{seed}.dead-letter"
    fault = chosen.choice(["", "", "cut", "cut", "killed"])
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    broker.declare(dead, letters)
    delays = False
    if chosen.random() < 0.4:
        delays = chosen.random() < 0.5  # from RabbitMQ 4.3 on; before, they are copied
        arguments |= DELAYED if delays else QUORUM | {"x-delivery-limit": 1000}
    broker.declare(queue, arguments=arguments)
    delaying = arguments if delays else {}
    path, seconds = folder / str(seed), chosen.choice([0.3, 0.6])
    path.touch()
    with Proxy(broker.port) as proxy:
        url = behind(proxy, broker.url)
        timers = cutting(proxy, [chosen.uniform(0, 0.8) for _ in range(chosen.randint(1, 3))]) if fault == "cut" else []
        published: set[bytes] = set()
        with contextlib.suppress(ConnectionFailed):  # a cut in the first handshake
            published = publish(url, queue, chosen.randint(1, 60))
        if fault == "killed":
            command = [sys.executable, str(SUPPORT / "accounting.py"), url, queue, str(seed), "30", str(path)]
            command.append(json.dumps(delaying))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chosen.uniform(0.5, 1.5))
            process.kill()
            process.wait()
        else:
            with contextlib.suppress(ConnectionFailed):
                Session(url, queue, seed, seconds, str(path), delaying).run()
        for timer in timers:
            timer.join()
    handled = Counter(path.read_bytes().split())
    left = found_in(broker, [queue, dead, letters], published - handled.keys())
    broker.delete(queue, dead, letters)
    lost = published - handled.keys() - left.keys()
    again = {body for body in published if handled[body] + left[body] > 1} if not fault else set()
    return f"seed {seed} ({fault or 'no fault'}): lost {sorted(lost)}, twice {sorted(again)}" if lost or again else ""


def test_published_is_handled_and_dead_lettered_and_queued(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    logging.getLogger("fairsched").setLevel(logging.CRITICAL + 1)
    try:
        wrong = [text for seed in range(FIRST, FIRST + SESSIONS) if (text := account(broker, seed, tmp_path))]
    finally:
        logging.getLogger("fairsched").setLevel(logging.NOTSET)
    assert not wrong, "\n".join([f"{len(wrong)} of {SESSIONS} sessions:", *wrong])
