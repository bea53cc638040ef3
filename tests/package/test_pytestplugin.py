"""The pytest plugin: everyone's pytest loads it, so it must cost nothing."""

from __future__ import annotations

import subprocess
import sys

NOTHING = """
import sys
import pytest
before = set(sys.modules)
import pytest_fairsched
print(sorted(name for name in set(sys.modules) - before if name != "pytest_fairsched"))
"""


def test_it_imports_nothing_but_pytest() -> None:
    done = subprocess.run([sys.executable, "-c", NOTHING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
