"""Benchmarks are not run by the tests: what they import from here is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """List the names that a file imports from the package or from what tests share, in functions too."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (str(node.module), alias.name)
        for node in nodes
        for alias in node.names
        if str(node.module).partition(".")[0] in ("fairsched", "support")
    ]


@pytest.mark.parametrize("path", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_what_is_imported_is_there(path: Path) -> None:
    for module, name in imported(path):
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def test_imports_are_found() -> None:
    assert sum(len(imported(path)) for path in BENCHMARKS) > 20
