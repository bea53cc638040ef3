"""A pytest plugin for traced builds: nothing that the tracer does runs Python code.

The engine counts on keeping the GIL between two reads that belong together, and the tracer is called between them. It
runs Python code, and other threads with it, in three cases: for the first function of a file, which coverage then looks
up; when the collector is due, whose finalizers are Python's; and when it notes a line of a file for the first time,
under a lock that it does not need with a GIL. The first two are moved to where tests begin and end, the third is left
out.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
from coverage.collector import Collector
from header_coverage import FOLDERS

_FILES = re.compile(r"__pyx_f\[\] = \{(.*?)\};", re.DOTALL)


def pytest_sessionstart() -> None:
    """Have coverage look up all files of the engine, by the names that generated code has for them."""
    names = set()
    for folder in FOLDERS:
        for path in Path(folder).glob("*.cpp"):
            found = _FILES.search(path.read_text(encoding="utf-8"))
            if found is not None:
                names.update(re.findall(r'"([^"]+)"', found[1]))
    for name in sorted(names):
        exec(compile("", name, "exec"), {})
    gc.disable()
    Collector.lock_data = Collector.unlock_data = bool  # callable, and not written in Python
    for collector in Collector._collectors:
        for tracer in collector.tracers:
            tracer.lock_data = tracer.unlock_data = bool


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect after the last test of a file; the test itself may have switched the collector on."""
    gc.disable()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
