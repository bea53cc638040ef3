"""The generated C++ holds what the headers promise: no hidden exception checks, no hidden GIL."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_generated.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_generated", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(tool):
    return tool.check()


def test_every_extension_is_checked(report):
    assert "_core" in report.modules


def test_cython_has_no_performance_hints(report):
    assert report.hints == []


def test_no_header_takes_the_gil(report):
    assert report.acquisitions == []


@pytest.mark.parametrize(
    ("body", "hints", "acquisitions"),
    [
        ("cdef inline long half(long n) noexcept nogil:\n    return n // 2\n", 0, 0),
        ("cdef inline void bare() nogil:\n    pass\n", 1, 0),
        ('cdef inline void loud() noexcept nogil:\n    with gil:\n        print("")\n', 0, 1),
    ],
    ids=["clean", "no noexcept", "with gil"],
)
def test_the_check_sees_what_it_is_for(tool, tmp_path, monkeypatch, body, hints, acquisitions):
    core = tmp_path / "src" / "fairsched" / "core"
    core.mkdir(parents=True)
    for package in (core.parent, core):
        (package / "__init__.pxd").touch()
    name = body.split("(")[0].split()[-1]
    (core / "sample.pxd").write_text(body)
    arguments = "4" if name == "half" else ""
    (core.parent / "_core.pyx").write_text(
        f"from fairsched.core.sample cimport {name}\n\ndef call():\n    with nogil:\n        {name}({arguments})\n"
    )
    (tmp_path / "setup.py").write_text((TOOL.parent.parent / "setup.py").read_text())
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setenv("FAIRSCHED_PROBE", "0")
    found = tool.check()
    assert (bool(found.hints), bool(found.acquisitions)) == (bool(hints), bool(acquisitions))
