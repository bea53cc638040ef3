"""Workers of Celery and dramatiq, as users run them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).parent / "clients"
WORKERS = {
    "celery": [
        "celery",
        "-A",
        "shares_app",
        "worker",
        "-c",
        "2",
        "-l",
        "warning",
        "-Q",
        "{queues}",
        "--without-mingle",
    ],
    "dramatiq": ["dramatiq", "shares_app", "--processes", "1", "--threads", "2"],
}
WORKERS["dramatiq-gevent"] = ["gevent.monkey", "--module", *WORKERS["dramatiq"]]


class Jobs:
    """Jobs of an app, and what became of them.

    Parameters
    ----------
    framework : str
        "celery", "dramatiq" or "dramatiq-gevent".
    url : str
        Of the broker.
    queues : list of str
        All of the worker's queues.
    done : Path
        File that the worker notes begun jobs in.
    shares : mapping, optional
        Arguments of fair shares; None: a worker as it comes.
    window : int
        Prefetch, a queue.
    """

    def __init__(
        self, framework: str, url: str, queues: list[str], done: Path, shares: Mapping[str, Any] | None, window: int
    ) -> None:
        self._framework = framework
        self._done = done
        self._log = done.with_suffix(".log")
        done.touch()
        self._queues = ",".join(queues)
        self._environment = {
            **os.environ, "BROKER_URL": url, "QUEUES": self._queues, "DONE": str(done), "WINDOW": str(window),
            "dramatiq_queue_prefetch": str(window), "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FAIR_SHARES": json.dumps(shares or {}),
        }  # fmt: skip

    def send(self, program: str) -> None:
        """Run a program that sends jobs by `send(queue, name, busy, tenant)`."""
        text = (
            f"from functools import partial\nimport shares_app\nsend = partial(shares_app.send, {self._framework!r})\n"
        )
        program += "\nshares_app.await_broker()"
        done = subprocess.run(
            [sys.executable, "-c", text + program], cwd=CLIENTS, env=self._environment, timeout=120,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def worker(self, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker, and end it as an operator would."""
        command = [part.format(queues=self._queues) for part in WORKERS[self._framework]]
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command, *options], cwd=CLIENTS, env=self._environment, stdout=log, stderr=log
            )
            try:
                yield process
            except BaseException as error:
                begun = len(self.begun())
                error.add_note(f"worker: exit code {process.poll()}, {begun} jobs begun\n{self.log()[-4000:]}")
                raise
            finally:
                if process.poll() is None:
                    process.terminate()
                    assert process.wait(60) == 0

    def log(self) -> str:
        """Return what the worker printed."""
        return self._log.read_text()

    def begun(self) -> list[tuple[str, float]]:
        """Return the name of each job that has ended, and when it began; in the order of beginnings."""
        # What stands behind the last end of a line is being written.
        whole, _, _ = self._done.read_text().rpartition("\n")
        pairs = (line.split() for line in whole.splitlines())
        return sorted(((name, float(began)) for name, began in pairs), key=lambda pair: pair[1])
