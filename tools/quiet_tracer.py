"""A pytest plugin for traced builds: nothing that the tracer does runs Python code.

The engine counts on keeping the GIL between two reads that belong together, and the tracer is called between them. It
runs Python code, and other threads with it, in two cases: for the first function of a file, which coverage then looks
up, and when the collector is due, whose finalizers are Python's. Both are moved to where tests begin and end.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
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


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect after the last test of a file; the test itself may have switched the collector on."""
    gc.disable()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
