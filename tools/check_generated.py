"""Check the C++ that Cython generates: no performance hints, and nothing in core/ that takes the GIL.

    check_generated.py [PROJECT]

Cython reports an exception check that needs the GIL as a hint, which no compiler flag turns into an error; a division
without `cdivision` takes the GIL back without any word. Both would show only as a slow program, so they are counted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from Cython.Build import cythonize

#: A comment that Cython writes above the code of each source line: the file it came from, and the line.
ORIGIN = re.compile(r'^\s*/\* "([^"]+\.(?:pyx|pxd|pxi|pyd))":(\d+)')
ACQUISITION = "= __Pyx_PyGILState_Ensure();"
HINT = "performance hint"


class Report(NamedTuple):
    """What was found: hints as Cython worded them, and the source lines in core/ whose code takes the GIL."""

    modules: list[str]
    hints: list[str]
    acquisitions: list[str]


def load_setup(project: Path) -> ModuleType:
    """Import the project's setup.py for its extensions and directives; imported, it builds nothing."""
    spec = importlib.util.spec_from_file_location("fairsched_setup", project / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(project: Path, target: Path) -> tuple[list[Path], str]:
    """Translate every extension into `target`; return the generated files and what Cython said meanwhile."""
    setup = load_setup(project)
    setup.collect_seldom()
    said = io.StringIO()
    with contextlib.chdir(project), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        extensions = cythonize(
            setup.extensions(),
            include_path=["src"],
            compiler_directives=setup.DIRECTIVES | {"emit_code_comments": True},
            build_dir=str(target),
            force=True,
        )
    return [target / source for extension in extensions for source in extension.sources], said.getvalue()


def acquisitions_from_core(generated: Path) -> list[str]:
    """List the lines of core/ headers whose generated code takes the GIL."""
    origin = ""
    found = []
    for line in generated.read_text(encoding="utf-8").splitlines():
        if match := ORIGIN.match(line):
            origin = f"{match[1]}:{match[2]}"
        elif ACQUISITION in line and "/core/" in origin:
            found.append(origin)
    return found


def check(project: Path) -> Report:
    """Generate into a temporary folder, and count. Once in a process: Cython remembers the files of the first time."""
    with tempfile.TemporaryDirectory() as folder:
        files, said = generate(project, Path(folder))
        acquisitions = [origin for file in files for origin in acquisitions_from_core(file)]
    hints = [line for line in said.splitlines() if HINT in line]
    return Report([file.stem for file in files], hints, acquisitions)


def main(arguments: list[str]) -> int:
    """Print what was checked and what was found; return 1 if anything was."""
    project = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    report = check(project.resolve())
    print("checked:", *report.modules)
    for hint in report.hints:
        print(hint, file=sys.stderr)
    for origin in report.acquisitions:
        print(f"takes the GIL: {origin}", file=sys.stderr)
    return 1 if report.hints or report.acquisitions else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
