"""The commands of the quick start, as the page has them, in an empty directory and with the wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import free_ports
from support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "quick-start.md"


class Shell:
    """A shell into which lines are typed."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._output = directory / "terminal"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash"], cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        self._lines = 0

    def shown(self) -> str:
        return self._output.read_text()

    def type(self, line: str, timeout: float = 30.0) -> None:
        """Run a line; it must succeed, or for one that runs in the background, start."""
        self._lines += 1
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\necho line {self._lines}: $?\n")
        self._process.stdin.flush()
        done = re.compile(rf"^line {self._lines}: (\d+)$", re.MULTILINE)
        eventually(lambda: done.search(self.shown()) or self._process.poll() is not None, timeout, line)
        found = done.search(self.shown())
        assert found, self.shown()
        assert found[1] == "0", self.shown()

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@contextmanager
def shell(directory: Path, environment: dict[str, str]) -> Iterator[Shell]:
    found = Shell(directory, environment)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_commands_to_a_worker_and_its_metrics(wheel: Path, tmp_path: Path) -> None:
    """Only the two ports are others, since those of the page may be taken here."""
    page = PAGE.read_text(encoding="utf-8")
    for port, free in zip((5672, 9191), free_ports(2), strict=True):
        assert str(port) in page
        page = re.sub(rf"\b{port}\b", str(free), page)
    metrics = f"http://127.0.0.1:{free}/metrics"
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code, encoding="utf-8")
    [block] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    install, broker, run, publish, scrape = block.splitlines()

    unwanted = re.compile("FAIRSCHED_|PYTHON|VIRTUAL_ENV|[A-Z]*AMQP_URL|RABBITMQ_URL")
    environment = {name: value for name, value in os.environ.items() if not unwanted.match(name)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PIP_FIND_LINKS"] = str(wheel.parent)

    def consumes() -> bool:
        try:
            with urllib.request.urlopen(metrics, timeout=10) as answer:
                text = answer.read().decode()
                return all(f'fairsched_queue_consumed{{queue="{name}"}} 1.0' in text for name in ("gold", "free"))
        except OSError:
            return False

    with shell(tmp_path, environment) as terminal:
        terminal.type(install, 600)
        terminal.type(broker)
        eventually(lambda: "amqp://guest:guest@127.0.0.1:" in terminal.shown())
        terminal.type(run)
        eventually(consumes, what=terminal.shown())
        terminal.type(publish)
        expected = re.findall(r"^fairsched_served_messages_total.*$", page, re.MULTILINE)
        assert len(expected) == 2

        def scraped() -> bool:
            terminal.type(scrape)
            return all(line in terminal.shown() for line in expected)

        eventually(scraped)
        terminal.type("kill %2 %1; wait")
        assert "SIGTERM: finishing" in terminal.shown()
        assert terminal.shown().count("b'order 99'") == 2
