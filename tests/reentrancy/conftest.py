"""The tests of this folder run in another process: one that crashes, or hangs, fails, and the rest go on.

One process runs the tests of a module; what crashed it failed, and another process goes on with those after it. With
FAIRSCHED_APART=0 they run in this process, as for a debugger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

#: Seconds that one test may take, by profile; then it hangs, and the process ends with a traceback of every thread.
LIMIT = {"expensive": 1500, "sanitize": 600}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 250)
ROOT = Path(__file__).parents[2]
REPORT = os.environ.get("FAIRSCHED_APART_REPORT")


class Elsewhere:
    """Return the outcomes of the tests of this session in their own processes."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def outcome(self, item: pytest.Item) -> str:
        """Text of a failure; empty when the test passed."""
        if item.nodeid not in self.outcomes:
            mine = [other.nodeid for other in item.session.items if other.path == item.path]
            self.run([nodeid for nodeid in mine[mine.index(item.nodeid) :] if nodeid not in self.outcomes])
        return self.outcomes[item.nodeid]

    def run(self, nodeids: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report")
            report.touch()
            done = subprocess.run(
                [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
                + ["-o", f"timeout={LIMIT}", "-o", "timeout_method=thread", *nodeids],
                cwd=ROOT,
                env={**os.environ, "FAIRSCHED_APART_REPORT": str(report)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            begun = None
            for line in report.read_text().splitlines():
                nodeid, text = json.loads(line)
                begun = nodeid if text is None else None
                if text is not None:
                    self.outcomes[nodeid] = text
            begun = begun or next((nodeid for nodeid in nodeids if nodeid not in self.outcomes), None)
            if begun is not None:
                recipe = Path(f"{report}.recipe")
                last = recipe.read_text() if recipe.exists() else "unknown"
                self.outcomes[begun] = (
                    f"the process ended with status {done.returncode}, at {last}\n{done.stdout[-12000:]}"
                )


ELSEWHERE = Elsewhere()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wait as long for the first test of a module as all of them may take elsewhere."""
    mine = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in mine if not REPORT else []:
        item.add_marker(pytest.mark.timeout(LIMIT * sum(other.path == item.path for other in mine)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have the test run elsewhere, and fail here if it failed there."""
    if REPORT or os.environ.get("FAIRSCHED_APART") == "0":
        return None
    text = ELSEWHERE.outcome(pyfuncitem)
    if text:
        pytest.fail(text, pytrace=False)
    return True


def report(nodeid: str, text: str | None) -> None:
    with open(str(REPORT), "a") as file:
        print(json.dumps([nodeid, text]), file=file)


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """Say which test begins, in case that the process dies in it."""
    if REPORT:
        Path(f"{REPORT}.recipe").unlink(missing_ok=True)
        report(nodeid, None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Say how a test ended."""
    made = (yield).get_result()
    if REPORT and (made.failed or made.when == "call"):
        sections = "\n".join(text for _, text in made.sections)
        report(item.nodeid, f"{made.longreprtext}\n{sections}" if made.failed else "")
