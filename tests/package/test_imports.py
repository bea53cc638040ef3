"""No module imports itself by way of others, and layers import downwards only."""

from __future__ import annotations

import ast
import functools
import graphlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
BENCHMARKS = sorted((SOURCES.parent / "benchmarks").glob("*.py"))


def imported_by_python(text: str) -> Iterator[str]:
    """Names that a Python file imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_by_cython(text: str) -> Iterator[str]:
    """Names that a .pyx or .pxd file imports or cimports."""
    for module, names in re.findall(r"^\s*from ([\w.]+) c?import (\([^)]*\)|[^\n#]*)", text, re.MULTILINE):
        yield from (f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names))
    yield from re.findall(r"^\s*c?import ([\w.]+)", text, re.MULTILINE)


def imports(folder: Path) -> dict[str, set[str]]:
    """Return what each module of a folder imports of the others; a .pyx is one module with its .pxd."""
    names: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.p*")):
        if path.suffix in {".py", ".pyx", ".pxd"}:
            module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            find = imported_by_python if path.suffix == ".py" else imported_by_cython
            names.setdefault(module, set()).update(find(path.read_text(encoding="utf-8")))
    found: dict[str, set[str]] = {}
    for module, wanted in names.items():
        # Of `package.thing`, the thing is a module or the package defines it.
        modules = {name if name in names else name.rpartition(".")[0] for name in wanted}
        found[module] = (modules & names.keys()) - {module}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


@functools.cache
def graph_of_sources() -> dict[str, set[str]]:
    return imports(SOURCES)


def test_there_is_no_circle() -> None:
    graph = graph_of_sources()
    assert len(graph) > 200
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("one.py", "import two"), ("two.py", "def later():\n    from one import thing")),
        (("one.pyx", "from two cimport struct_t, other"), ("two.pxd", "from one cimport (\n    thing,\n)")),
        (("one.py", "from package import two"), ("package/two.pyx", "import one")),
        (("one.pyx", "cimport two"), ("two.py", "if TYPE_CHECKING:\n    from one import Thing")),
    ],
)
def test_a_circle_is_found(tmp_path: Path, first: tuple[str, str], second: tuple[str, str]) -> None:
    for name, text in (first, second):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert len(circle(imports(tmp_path))) == 3


#: What each layer may not import: `core` knows nothing of Python objects, the engine nothing of pika, and so on.
@pytest.mark.parametrize(
    ("layer", "forbidden"),
    [
        (r"fairsched\.core\.", r"(?!fairsched\.core\.)"),
        (r"fairsched\.(_core|scheduling)\b", r"fairsched\.(?!core\.|_core$|scheduling\b|errors$|stats$)"),
        (r"fairsched\.pullqueue\b", r"fairsched\.(?!core\.|_core$|scheduling\b|pullqueue\b|errors$)"),
        (r"fairsched\.routing\b", r"fairsched\.(?!core\.|scheduling\b|routing\b|errors$)"),
        (r"fairsched\.delivery\b", r"fairsched\.(publisher|consumer|spark|cli|config|simulator|broker)\b"),
        (r"fairsched\.amqp\b", r"fairsched\.(publisher|consumer|spark|cli|config)\b"),
        (r"fairsched\.publisher\b", r"fairsched\.(consumer|spark|cli)\b"),
        (r"fairsched\.simulator\b", r"fairsched\.(amqp|consumer|spark|cli)\b"),
        (r"fairsched\.consumer\b", r"fairsched\.(spark|cli)\b"),
        (r"fairsched\.spark\b", r"fairsched\.(consumer|cli)\b"),
    ],
)
def test_layers_import_downwards(layer: str, forbidden: str) -> None:
    graph = graph_of_sources()
    layers = {module: wanted for module, wanted in graph.items() if re.match(layer, module)}
    assert layers
    upwards = [(module, name) for module, wanted in layers.items() for name in wanted if re.match(forbidden, name)]
    assert upwards == []


def imported_by_benchmark(path: Path) -> list[str]:
    """List what a benchmark imports from the package, or from what tests share."""
    names = imported_by_python(path.read_text(encoding="utf-8"))
    return [name for name in names if name.partition(".")[0] in ("fairsched", "support")]


@pytest.mark.parametrize("path", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_what_benchmarks_import_is_there(path: Path) -> None:
    """The tests do not run them."""
    for name in imported_by_benchmark(path):
        pkgutil.resolve_name(name)


def test_imports_of_benchmarks_are_found() -> None:
    assert sum(len(imported_by_benchmark(path)) for path in BENCHMARKS) > 20


def test_probes_that_benchmarks_measure_are_optimised_as_the_package_is() -> None:
    named = {name for path in BENCHMARKS for name in re.findall(r"\b_probe\w*", path.read_text(encoding="utf-8"))}
    listed = re.search(r"^MEASURED_PROBES = (\{.*\})$", (SOURCES.parent / "setup.py").read_text(), re.MULTILINE)
    assert listed is not None
    assert named == ast.literal_eval(listed[1])
