"""Check that an sdist holds the Cython sources and that a wheel holds none: check_dist.py SDIST WHEEL."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import PurePosixPath

#: What a user may compile from, and what must never travel in a wheel.
SOURCE_SUFFIXES = {".pyx", ".pxd", ".pxi"}
GENERATED_SUFFIXES = {".c", ".cpp", ".so", ".pyd", ".pyc"}
#: Files of the sdist without which its build or its tests would fail.
SDIST_FILES = (
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "setup.py",
    "src/fairsched/_core.pyx",
    "src/fairsched/py.typed",
)
WHEEL_FILES = (
    "fairsched/__init__.py",
    "fairsched/_core.pyi",
    "fairsched/py.typed",
    "fairsched/simulator/scenarios/optimal-prefetch.toml",
)


def sdist_problems(path: str) -> list[str]:
    """List what is missing from the sdist, and what is in it that was generated."""
    with tarfile.open(path) as archive:
        # The first component is the folder name-version.
        names = [PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in archive if member.isfile()]
    found = {str(name) for name in names}
    problems = [f"sdist lacks {name}" for name in SDIST_FILES if name not in found]
    if not any(name.suffix == ".pxd" and "core" in name.parts for name in names):
        problems.append("sdist lacks the headers src/fairsched/core/*.pxd")
    problems += [f"sdist holds generated {name}" for name in names if name.suffix in GENERATED_SUFFIXES]
    return problems


def wheel_problems(path: str) -> list[str]:
    """List what is missing from the wheel, and what is in it that belongs to the sources or the tests."""
    with zipfile.ZipFile(path) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    found = {str(name) for name in names}
    problems = [f"wheel lacks {name}" for name in WHEEL_FILES if name not in found]
    modules = [name for name in names if name.suffix in {".so", ".pyd"} and name.parts[0] == "fairsched"]
    if not any(name.name.startswith("_core.") for name in modules):
        problems.append("wheel lacks the compiled fairsched/_core")
    problems += [f"wheel holds the test probe {name}" for name in modules if name.name.startswith("_probe")]
    unwanted = SOURCE_SUFFIXES | {".c", ".cpp", ".pyc"}
    problems += [f"wheel holds source {name}" for name in names if name.suffix in unwanted]
    problems += [f"wheel holds {name}" for name in names if name.parts[0] in {"tests", "benchmarks", "docs", "tools"}]
    return problems


def main(arguments: list[str]) -> int:
    """Print every problem; return 1 if there is one."""
    sdist, wheel = arguments
    problems = sdist_problems(sdist) + wheel_problems(wheel)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
