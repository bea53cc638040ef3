"""Finding and reading the file that settings are kept in."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fairsched.errors import ConfigurationError

__all__ = ["find_file", "parse_toml", "read_file"]

OWN_FILE = "fairsched.toml"
PROJECT_FILE = "pyproject.toml"


def find_file(directory: Path) -> Path | None:
    """Find the configuration file of a directory.

    Parameters
    ----------
    directory : Path
        Where to look. Parents are not searched: a file in a parent folder must not change a worker.

    Returns
    -------
    Path or None
        ``fairsched.toml``, else a ``pyproject.toml`` with a ``[tool.fairsched]``, else None.

    Raises
    ------
    ConfigurationError
        If ``pyproject.toml`` has to be looked into and is not valid TOML.

    Notes
    -----
    Reads at most one file. Safe from any thread.
    """
    own, project = directory / OWN_FILE, directory / PROJECT_FILE
    if own.is_file():
        return own
    if project.is_file() and "fairsched" in parse_toml(project).get("tool", {}):
        return project
    return None


def read_file(path: Path) -> tuple[dict[str, Any], str]:
    """Read the settings of a file.

    Parameters
    ----------
    path : Path
        A TOML file. One called ``pyproject.toml`` keeps its settings in ``[tool.fairsched]``, any other at its top.

    Returns
    -------
    tuple of dict and str
        The raw settings, and what to call their source in messages.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is not valid TOML, or lacks the table.

    Notes
    -----
    Reads one file. Safe from any thread.
    """
    document = parse_toml(path)
    if path.name != PROJECT_FILE:
        return document, f"file {path}"
    tool = document.get("tool", {})
    table = tool.get("fairsched") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise ConfigurationError(f"file {path} has no table [tool.fairsched]")
    return table, f"[tool.fairsched] of file {path}"


def parse_toml(path: Path, kind: str = "file") -> dict[str, Any]:
    """Parse a TOML file, with or without a byte order mark; `kind` is what errors call it.

    Raises ConfigurationError if the file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{kind} {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8, or nested too deep to be read
        raise ConfigurationError(f"{kind} {path} is not valid TOML: {error}") from None
