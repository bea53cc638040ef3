"""A standalone Spark cluster on this machine, a master and two workers, any of which may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

from support.ports import free_ports
from support.spark.home import brief_jvm
from support.waiting import eventually

_HOST = "127.0.0.1"
_DEPLOY = "org.apache.spark.deploy"


class Standalone:
    """Processes of their own with ports of their own, and their logs and work in a folder.

    Each worker has a core and a GiB, so that an executor has one task at a time.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._home = Path(environment["SPARK_HOME"])
        settings = {"SPARK_LOCAL_IP": _HOST, "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_DAEMON_JAVA_OPTS": brief_jvm()}  # fmt: skip
        self._environment = {**environment, **settings}
        self._port, self._page = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def start(self) -> None:
        """Return when the workers have registered."""
        self._run("master.Master", "--port", str(self._port), "--webui-port", str(self._page))
        eventually(self._answers, 120, f"a master; see {self._folder}")
        self.fill_up()

    def fill_up(self) -> None:
        """Start workers until there are two."""
        for _ in range(2 - self._alive()):
            self._run("worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                      "--work-dir", str(self._folder / "work"), self.url)  # fmt: skip
        eventually(lambda: self._alive() == 2, 120, f"two workers; see {self._folder}")

    def kill_worker(self, pid: int) -> None:
        """Kill a worker, but not its executors, and return when the master knows."""
        [worker] = [one for one in self._processes[1:] if one.pid == pid]
        worker.kill()
        worker.wait(30)
        eventually(lambda: self._alive() < 2, 60, "the master knows that a worker is gone")

    def close(self) -> None:
        """Kill all there is, executors too: they are in the groups of their workers."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def _run(self, name: str, *arguments: str) -> None:
        log = self._folder / f"{name}-{len(self._processes)}.log"
        command = [str(self._home / "bin" / "spark-class"), f"{_DEPLOY}.{name}", "--host", _HOST, *arguments]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)

    def _answers(self) -> bool:
        assert self._processes[0].poll() is None, (self._folder / "master.Master-0.log").read_text()[-2000:]
        try:
            return self._alive() >= 0
        except (OSError, ValueError):  # no server listens, or all paths still lead to the page for people
            return False

    def _alive(self) -> int:
        with urllib.request.urlopen(f"http://{_HOST}:{self._page}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])
