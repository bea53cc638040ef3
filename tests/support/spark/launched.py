"""Drivers in processes of their own, which may be killed with all that belongs to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

#: What Spark says when a planner was not up within ten seconds, which no setting changes. A busy machine may need more,
#: and a test that runs queries there starts them again.
SLOW_START = "Python worker failed to connect back"


def launch(
    script: str,
    *arguments: str,
    environment: dict[str, str],
    cwd: Path | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[str]:
    """Start one of the scripts beside this file, in a session of its own."""
    path = Path(__file__).parent / f"{script}.py"
    return subprocess.Popen(
        [sys.executable, str(path), *arguments], env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=stderr,
        text=True, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """End a script and everything that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
