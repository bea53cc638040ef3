"""Install, fetch and run the test suites of others, and read what became of each test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from suite_brokers import PORT, TLS_PORT, raise_loopback, serving
from suites import CACHE, Suite, run

MOST_SECONDS = 3600


def prepare(suites: list[Suite], venv: Path, packages: list[str]) -> Path:
    """Fetch what is not there yet; return the interpreter of the virtual environment that has the packages."""
    python = venv / "bin" / "python"
    wanted = "\n".join(packages)
    noted = venv / "installed"
    if not noted.exists() or noted.read_text() != wanted:
        print("== installing the peers", flush=True)
        run(sys.executable, "-m", "venv", "--clear", venv)
        run(python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", *wanted.split("\n"))
        noted.write_text(wanted)
    for suite in suites:
        if not suite.folder.exists():
            print(f"== fetching the tests of {suite.name} {suite.version}", flush=True)
            part = suite.folder.with_name(f"{suite.folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            suite.fetch(part, python)
            part.rename(suite.folder)
    return python


def inside(broker: str, suites: list[Suite], python: Path, label: str, more: Mapping[str, str] = {}) -> None:
    """Run the suites on one broker; called in the network that is this broker's.

    Results are kept under a `label`; `more` is added to the environment of the suites.
    """
    raise_loopback()
    folder = CACHE / "results" / label
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, "DOCKER_HOST": "tcp://127.0.0.1:2375", "RABBITMQ_HOST": "localhost",
        "RABBITMQ_5672_TCP": str(PORT), "RABBITMQ_5671_TCP": str(TLS_PORT), "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    for name in ("PYTHONPATH", "FORCE_COLOR"):
        environment.pop(name, None)
    for suite in suites:
        for old in folder.glob(f"{suite.name}-?.*"):
            old.unlink()
        shutil.rmtree(folder / f"{suite.name}-cache", ignore_errors=True)
        failed: list[str] = []
        with serving(broker), suite.beside():
            for turn in (1, 2):
                results = folder / f"{suite.name}-{turn}.xml"
                with (folder / f"{suite.name}-{turn}.log").open("wb") as log:
                    done = subprocess.run(
                        suite.command(broker, python, results, failed), cwd=suite.folder,
                        env={**environment, **suite.environment, **more},
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=MOST_SECONDS, check=False,
                    )  # fmt: skip
                print(f"   {label}, {suite.name} {suite.version}, try {turn}: {summary(results)}", flush=True)
                if done.returncode == 0:
                    break
                failed = [name for name, outcome in outcomes(results).items() if outcome == "failed"]


def outcomes(results: Path) -> dict[str, str]:
    """Return what became of each test: passed, failed or skipped."""
    found: dict[str, str] = {}

    def visit(element: ET.Element, path: str) -> None:
        for child in element:
            if child.tag in ("testsuite", "undefined"):  # undefined: what Node calls a suite of suites
                visit(child, f"{path}{child.get('name')} > " if child.get("name") != "pytest" else "")
            elif child.tag == "testcase":
                where = child.get("classname", "")
                name = f"{path}{child.get('name')}" if where in ("", "test") else f"{where}.{child.get('name')}"
                kinds = {part.tag for part in child}
                outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
                # A test that passes and whose fixture then fails is there twice.
                if found.get(name) != "failed":
                    found[name] = outcome

    if results.exists():
        visit(ET.parse(results).getroot(), "")
    return found


def summary(results: Path) -> str:
    counts = Counter(outcomes(results).values())
    return ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped"))


def of_both_tries(label: str, suite: Suite) -> dict[str, str]:
    """Return what became of each test: "again" if it passed when it was tried a second time."""
    first, second = (outcomes(CACHE / "results" / label / f"{suite.name}-{turn}.xml") for turn in (1, 2))
    for name, outcome in second.items():
        if first.get(name) != "passed" and outcome == "passed":
            first[name] = "again" if name in first else "passed"
    return first


def listed(page: Path, heading: str) -> dict[str, list[re.Pattern[str]]]:
    """Return the tests that the page lists below a heading, by suite; a star stands for anything."""
    found: dict[str, list[re.Pattern[str]]] = {}
    _, _, part = page.read_text().partition(f"\n## {heading}\n")
    for suite, tests in re.findall(r"^\| ([\w-]+) \| (`.+`) \|", part.partition("\n## ")[0], re.MULTILINE):
        for test in re.findall(r"`(.+?)`", tests):
            found.setdefault(suite, []).append(re.compile(".*".join(map(re.escape, test.split("*")))))
    return found
