"""Check that an sdist holds the Cython sources, that a wheel holds none, and that an SBOM names what the wheel needs.

check_dist.py SDIST WHEEL [SBOM]
"""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def needed(path: str) -> set[str]:
    """Return the names of what a wheel needs when it is installed without extras."""
    with zipfile.ZipFile(path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }


def sbom_problems(path: str, wheel: str) -> list[str]:
    """List what a bill of materials (CycloneDX) lacks: the right subject, a dependency of the wheel, a version."""
    sbom = json.loads(Path(path).read_text(encoding="utf-8"))
    root = sbom["metadata"]["component"]
    _, version, *_ = PurePosixPath(wheel).name.split("-")
    problems = []
    if (root["name"], root.get("version")) != ("fairsched", version):
        problems.append(f"SBOM describes {root['name']} {root.get('version')} instead of fairsched {version}")
    components = {component["bom-ref"]: component for component in sbom["components"]}
    edges = {entry["ref"]: entry.get("dependsOn", []) for entry in sbom["dependencies"]}
    direct = {canonicalize_name(components[ref]["name"]) for ref in edges.get(root["bom-ref"], []) if ref in components}
    problems += [f"SBOM lacks the dependency {name}" for name in sorted(needed(wheel) - direct)]
    problems += [
        f"SBOM has no version of {component['name']}"
        for component in components.values()
        if not component.get("version")
    ]
    return problems


def main(arguments: list[str]) -> int:
    """Print every problem; return 1 if there is one."""
    sdist, wheel, *sboms = arguments
    problems = sdist_problems(sdist) + wheel_problems(wheel)
    for sbom in sboms:
        problems += sbom_problems(sbom, wheel)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
