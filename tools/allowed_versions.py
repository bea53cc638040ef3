"""Print constraints for pip: the oldest or the newest release of each dependency that pyproject.toml allows.

    allowed_versions.py oldest|newest [EXTRA ...]

Run by the Python that will install them: a release counts if it has a file for this Python. Without a wheel an old one
would have to be compiled, so sources count only where there is no wheel at all, as for PySpark.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
AGES = {"oldest": min, "newest": max}


def requirements(extras: list[str]) -> list[Requirement]:
    """List what the package and these extras of it depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    unknown = sorted(set(extras) - set(optional))
    if unknown:
        raise SystemExit(f"extras must be among {sorted(optional)}, got {unknown}")
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


def releases(name: str) -> list[str]:
    """Ask pip for the releases of a project that this Python can install."""
    for option in (["--only-binary", ":all:"], []):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
        answer = subprocess.run([*command, "--json", *option, name], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return list(json.loads(answer.stdout)["versions"])
    raise SystemExit(f"pip finds no release of {name} for this Python: {answer.stderr.strip()}")


def chosen(requirement: Requirement, age: str) -> str:
    """Return the constraint for one dependency."""
    allowed = [Version(release) for release in releases(requirement.name) if release in requirement.specifier]
    if not allowed:
        raise SystemExit(f"no release of {requirement.name} for this Python satisfies {requirement.specifier}")
    return f"{requirement.name}=={AGES[age](allowed)}"


def main(arguments: list[str]) -> None:
    """Print one constraint for each dependency."""
    age, *extras = arguments or [""]
    if age not in AGES:
        raise SystemExit(f"the first argument must be one of {sorted(AGES)}, got {age!r}")
    for requirement in requirements(extras):
        print(chosen(requirement, age))


if __name__ == "__main__":
    main(sys.argv[1:])
