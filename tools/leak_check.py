"""Look for memory that the extension has allocated and lost: a plugin of pytest, used with LSAN (tools/sanitize).

It looks when all tests are done and the interpreter still knows all it has: what nobody points at any more is leaked.
What others than the extension have allocated does not count.
"""

from __future__ import annotations

import ctypes
import os
import tempfile

import pytest


def leaks() -> list[str]:
    """Return LSAN's report of each leak whose memory was asked for by the extension."""
    with tempfile.TemporaryFile("w+b") as report:
        kept = os.dup(2)
        os.dup2(report.fileno(), 2)
        try:
            ctypes.CDLL(None).__lsan_do_recoverable_leak_check()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        report.seek(0)
        text = report.read().decode(errors="replace")
    found = []
    for part in text.split("\n\n"):
        # The caller of malloc, as it is 0; Cython's C++ and the .pxd it comes from are in a folder of that name.
        caller = next((line for line in part.splitlines() if line.strip().startswith("#1 ")), "")
        if " leak of " in part and "fairsched" in caller:
            found.append(part.strip())
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    found = leaks()
    print("\n\n".join(["", *found]) if found else "\nno leaks")
    if found:
        session.exitstatus = 1
