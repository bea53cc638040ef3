"""The page about the log has each line that consumers and publishers log, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fairsched"
PAGE = ROOT / "docs" / "howto" / "log.md"
LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
#: The page does not list them: their lines are whole sentences made elsewhere.
WHOLE = {("WARNING", "…")}


def logged(path: Path) -> Iterator[tuple[str, str]]:
    """Levels and lines of a module, with … for what is filled in."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":  # of which each call stands in one line
        source = "\n".join(re.findall(r"^ *(_log\..*)", source, re.MULTILINE))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name("_log"), level), [ast.Constant(str(text)), *_]) if level in LEVELS:
                yield LEVELS[level], re.sub(r"%[-.0-9]*[a-z]", "…", text)


def listed() -> list[tuple[str, str]]:
    return re.findall(r"^\| ([A-Z]+) \| `(.*?)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_has_each_line() -> None:
    modules = [
        SOURCES / "aio.py",
        *(path for name in ("amqp", "consumer", "lanes", "publisher") for path in files(name)),
    ]
    found = {line for module in modules for line in logged(module)} - WHOLE
    assert len(found) > 40
    assert found == {*listed()}


def files(package: str) -> list[Path]:
    return sorted(path for path in (SOURCES / package).rglob("*.py*") if path.suffix in (".py", ".pyx"))


def test_the_page_has_no_line_twice() -> None:
    assert len(listed()) == len({*listed()})
