"""Each call that blocks lets other greenlets run where gevent or eventlet has replaced threads, or raises at once."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched import Broker
from fairsched.cli.broker import Session

WORKER = Path(__file__).parents[1] / "support" / "greenlet_worker.py"
#: Every call that waits for something that another thread may bring about.
CALLS = (
    "get", "get_in_time", "get_many", "put", "put_many", "pull", "pull_from_several", "put_into_pull_queue", "confirm",
    "flush", "wait_for_room", "iterate", "batches", "arrow_batches", "run", "run_workers", "run_worker_queues",
    "run_app",
    "run_app_until_signal", "run_with_retry", "run_in_event_loop", "run_plain_in_event_loop", "publish_in_event_loop",
)  # fmt: skip
LIBRARIES = ("gevent", "eventlet")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def outcome(library: str, call: str, url: str, queue: str) -> str:
    command = [sys.executable, "-W", "ignore", str(WORKER), library, call, url, queue]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("call", CALLS)
def test_other_greenlets_run_while_a_call_waits(call: str, library: str, embedded: Broker) -> None:
    queue = f"greenlets-{uuid.uuid4()}"
    with Session(embedded.url) as session:
        session.declare(queue, {})
    assert outcome(library, call, embedded.url, queue).splitlines()[-1] == "returned"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("start_broker", "the embedded broker needs threads"),
        ("run_with_time_limit", "the time limit of a plain handler interrupts threads"),
    ],
)
def test_what_needs_threads_is_refused_at_once(call: str, reason: str, library: str, embedded: Broker) -> None:
    queue = f"greenlets-{uuid.uuid4()}"
    with Session(embedded.url) as session:
        session.declare(queue, {})
    told = outcome(library, call, embedded.url, queue)
    assert told.startswith(f"refused: {reason}, and {library} has replaced them by greenlets in this process: ")
