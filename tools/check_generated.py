"""Check the C++ that Cython generates: no exception check that takes the GIL, and nothing in core/ that does.

    check_generated.py [PROJECT]

Cython reports the former as a performance hint, which no compiler flag turns into an error; a division without
`cdivision` takes the GIL back without any word. Both would show only as a slow program, so they are counted. The C++ is
that of the build: what has changed since is translated first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

#: The beginning of a function; Cython writes it on one line, and the name of the header into that of the function.
FUNCTION = re.compile(r"^static .*?\b(__pyx_\w+)\(.*\{$")
OF_CORE = "_9fairsched_4core_"
ACQUISITION = "= __Pyx_PyGILState_Ensure();"
EXCEPTION_CHECK = "__Pyx_ErrOccurredWithGIL()"


class Report(NamedTuple):
    """What was found: functions with exception checks that take the GIL, and those of core/ that take it."""

    modules: list[str]
    exception_checks: list[str]
    acquisitions: list[str]


def load_setup(project: Path) -> ModuleType:
    """Import the project's setup.py, which translates; imported, it builds nothing."""
    spec = importlib.util.spec_from_file_location("fairsched_setup", project / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(project: Path) -> list[Path]:
    """Translate what has changed, as the build does; return the generated files."""
    with contextlib.chdir(project), contextlib.redirect_stdout(io.StringIO()):
        extensions = load_setup(project).translated()
    return [project / source for extension in extensions for source in extension.sources]


def functions(generated: Path) -> Iterator[tuple[str, str]]:
    """Yield each line inside a function, after the function's name."""
    name = ""
    for line in generated.read_text(encoding="utf-8").splitlines():
        if match := FUNCTION.match(line):
            name = match[1]
        elif line == "}":
            name = ""
        elif name:
            yield name, line


def check(project: Path) -> Report:
    """Generate, and list what must not be there."""
    report = Report([], [], [])
    for file in generate(project):
        report.modules.append(file.stem)
        for name, line in functions(file):
            if EXCEPTION_CHECK in line:
                report.exception_checks.append(f"{file.stem}: {name}")
            elif ACQUISITION in line and OF_CORE in name:
                report.acquisitions.append(f"{file.stem}: {name}")
    return report


def main(arguments: list[str]) -> int:
    """Print what was checked and what was found; return 1 if anything was."""
    project = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    report = check(project.resolve())
    print("checked:", *report.modules)
    for place in report.exception_checks:
        print(f"takes the GIL to check for an exception: {place}", file=sys.stderr)
    for place in report.acquisitions:
        print(f"takes the GIL: {place}", file=sys.stderr)
    return 1 if report.exception_checks or report.acquisitions else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
