"""Each call that blocks lets other greenlets run where gevent or eventlet has replaced threads, or raises at once."""

from __future__ import annotations

import contextlib
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


class Workers:
    """Processes that make calls, one of each library; after a call that ends one, another one goes on."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def outcome(self, library: str, call: str) -> str:
        """Make a call, and return the line that says how it ended."""
        queue = f"greenlets-{uuid.uuid4()}"
        with Session(self.url) as session:
            session.declare(queue, {})
        if library not in self._running:
            self._running[library] = self._start(library)
        process = self._running[library]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{call} {queue}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            del self._running[library]
            code = self._end(process)
            raise AssertionError(f"{call} ended the process with {code}:\n{self._log(library).read_text()[-4000:]}")
        return answer

    def _log(self, library: str) -> Path:
        return self.folder / library

    def _start(self, library: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", str(WORKER), library, self.url]
        with self._log(library).open("w") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> int:
        process.communicate(timeout=60)
        return process.returncode

    def close(self) -> None:
        assert [self._end(process) for process in self._running.values()] == [0] * len(self._running)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Broker() as broker, contextlib.closing(Workers(broker.url, tmp_path_factory.mktemp("greenlets"))) as found:
        yield found


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("call", CALLS)
def test_other_greenlets_run_while_a_call_waits(call: str, library: str, workers: Workers) -> None:
    assert workers.outcome(library, call) == "returned\n"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("start_broker", "the embedded broker needs threads"),
        ("run_with_time_limit", "the time limit of a plain handler interrupts threads"),
    ],
)
def test_what_needs_threads_is_refused_at_once(call: str, reason: str, library: str, workers: Workers) -> None:
    told = workers.outcome(library, call)
    assert told.startswith(f"refused: {reason}, and {library} has replaced them by greenlets in this process: ")
