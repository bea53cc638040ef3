"""A coverage plugin for headers that several Cython modules share.

Cython's own plugin learns of a `.pxd` only when a module that includes it is reported, in no certain order, and counts
the lines for which the module it read last has code. This one reads every generated file first and counts a line of a
header if any module has code for it.

Cython's tracer is asked in Python for the file at every call and for the number at every line: there the GIL would be
given up, where the engine counts on keeping it. Here both are told without running any Python; quiet_tracer.py sees to
the rest.
"""

from __future__ import annotations

import contextlib
import operator
from pathlib import Path

import Cython.Coverage
from coverage.plugin import FileTracer
from coverage.plugin_support import Plugins

#: Where traced builds leave the generated code: beside its source.
FOLDERS = ("src/fairsched", "tests/probes")


class Tracer(FileTracer):
    """Traces the functions of one source file."""

    line_number_range = operator.attrgetter("f_lineno", "f_lineno")

    def __init__(self, path: str) -> None:
        self._path = path

    def source_filename(self) -> str:
        """Return where the source is."""
        return self._path


class Plugin(Cython.Coverage.Plugin):
    """Cython's plugin, with a complete map of generated files from the start."""

    _everything_read = False

    def _read_everything(self) -> None:
        if self._everything_read:
            return
        self._everything_read = True
        lines: dict[str, dict[int, str]] = {}
        everything = [path for folder in FOLDERS for path in sorted(Path(folder).resolve().glob("*.cpp"))]
        # Generated code names its headers as seen from src/. From anywhere else Cython takes `_core.pxd`, because it is
        # there, for each header of `_core.cpp`.
        with contextlib.chdir("src"):
            for generated in everything:
                self._read_source_lines(str(generated), "")
                # A later module overwrites what an earlier one said of the same header: collect as we go.
                for source, (_, _, code) in self._c_files_map.items():
                    lines.setdefault(source, {}).update(code)
        for source, (generated_file, name, _) in list(self._c_files_map.items()):
            self._c_files_map[source] = (generated_file, name, lines[source])

    def file_tracer(self, filename: str):
        """Trace a file that some Cython module was made from."""
        if filename.startswith("<"):
            return None
        self._read_everything()
        return Tracer(filename) if filename in self._c_files_map else super().file_tracer(filename)

    def file_reporter(self, filename: str):
        """Report a file that some Cython module was made from."""
        self._read_everything()
        return super().file_reporter(filename)


def coverage_init(registry: Plugins, options: object) -> None:
    """Entry point of coverage.py."""
    plugin = Plugin()
    registry.add_configurer(plugin)
    registry.add_file_tracer(plugin)
