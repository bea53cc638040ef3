"""Load scenarios from files: your own, and those that come with fairsched."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from fairsched.config.file import parse_toml
from fairsched.errors import ConfigurationError
from fairsched.simulator.reading import closest
from fairsched.simulator.scenario import Scenario

__all__ = ["load_scenario", "scenario_names"]

_FOLDER = "scenarios"


def scenario_names() -> list[str]:
    """Return the names of the scenarios that come with fairsched, in alphabetical order."""
    folder = resources.files("fairsched.simulator") / _FOLDER
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(source: str | Path) -> Scenario:
    """Read a scenario.

    Parameters
    ----------
    source : str or Path
        A TOML file (a Path, or text that ends in .toml), or the name of a scenario that comes with fairsched.

    Returns
    -------
    Scenario
        Named after the file, unless it has a name.

    Raises
    ------
    ConfigurationError
        The file or scenario does not exist, is not valid TOML, or has a value that is not allowed.

    Examples
    --------
    >>> load_scenario("optimal-prefetch").consumers[0].prefetch
    26
    """
    if isinstance(source, Path) or source.endswith(".toml"):
        path = Path(source)
        return _scenario(parse_toml(path), path.stem, f"file {path}", path.parent)
    if source not in scenario_names():
        raise ConfigurationError(f"unknown scenario {source!r}; {closest(source, scenario_names())}")
    text = (resources.files("fairsched.simulator") / _FOLDER / f"{source}.toml").read_text(encoding="utf-8")
    return _scenario(tomllib.loads(text), source, f"scenario {source}", None)


def _scenario(table: dict[str, Any], name: str, where: str, directory: Path | None) -> Scenario:
    try:
        return Scenario.from_dict({"name": name, **table}, directory)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
