"""The generated C++ holds what the headers promise: no hidden exception checks, no hidden GIL."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(project):
    command = [sys.executable, ROOT / "tools" / "check_generated.py", project]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_no_hints_and_no_gil_in_the_core():
    done = check(ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    extensions = {path.stem for path in (ROOT / "src" / "fairsched").glob("_*.pyx")}
    assert extensions <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("cdef inline long sample() noexcept nogil:\n    return 1\n", ""),
        ("cdef inline void sample() nogil:\n    pass\n", "takes the GIL to check for an exception: "),
        ('cdef inline void sample() noexcept nogil:\n    with gil:\n        print("")\n', "takes the GIL: "),
    ],
    ids=["clean", "without noexcept", "with gil"],
)
def test_the_check_sees_what_it_is_for(tmp_path, function, complaint):
    core = tmp_path / "src" / "fairsched" / "core"
    core.mkdir(parents=True)
    for package in (core.parent, core):
        (package / "__init__.pxd").touch()
    (core / "header.pxd").write_text(function)
    caller = "from fairsched.core.header cimport sample\n\ndef call():\n    with nogil:\n        sample()\n"
    (core.parent / "_core.pyx").write_text(caller)
    shutil.copy(ROOT / "setup.py", tmp_path)
    done = check(tmp_path)
    assert (done.returncode, complaint in done.stderr) == (1 if complaint else 0, True)
