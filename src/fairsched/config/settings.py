"""Configuration of a worker: frozen and picklable, from a file, the environment and arguments, in rising priority.

A key has the same name everywhere: `shutdown_timeout` in ``fairsched.toml`` or ``[tool.fairsched]`` of
``pyproject.toml``, ``FAIRSCHED_SHUTDOWN_TIMEOUT`` in the environment, ``--shutdown-timeout`` on the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from fairsched.config import values
from fairsched.config.consumer_options import COMMAND_OPTIONS, OPTIONS, PREFIX, did_you_mean
from fairsched.config.file import find_file, read_file
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.retry import Retry
from fairsched.errors import ConfigurationError

__all__ = ["Settings"]

#: Names the file to read; the only variable of ours that is not a setting.
FILE_VARIABLE = "FAIRSCHED_CONFIG"

#: Variables with our prefix that others own: switches of our own build and tests, and what Kubernetes sets in every
#: container of a namespace that has a service called "fairsched".
_FOREIGN = r"(BUILD|SANITIZE|TRACE|PROBE|TEST)(_.*)?|(.*_)?(SERVICE_(HOST|PORT)|PORT(_\d+_(TCP|UDP|SCTP)))(_.*)?|PORT"


class _Given(NamedTuple):
    """A setting as it was found: where, under what name it is known there, and the raw value."""

    key: str
    value: Any
    source: str


_Fields: Any = make_dataclass(
    "_Fields",
    [(name, Any, field(default=() if name in ("url", "queues") else None)) for name in OPTIONS],
    frozen=True, kw_only=True, slots=True, repr=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings(_Fields):  # type: ignore[misc]  # the fields are those of the table
    """Settings of a worker, each with its source.

    Parameters
    ----------
    **options
        As in the table of docs/reference/configuration.md, written as in a file or as for `Consumer`. None, or an empty
        tuple, means that nothing was said: then the app's own option or the default of `Consumer` holds.
    sources : mapping of str to str
        Where each setting came from; for messages, not compared.

    Raises
    ------
    ConfigurationError
        If a value is not allowed. The message names key, value, source and rule, and never shows a password.

    Notes
    -----
    Immutable, hashable and picklable (a pickle carries the password, `repr` does not). Safe from any thread.

    Examples
    --------
    >>> Settings(url="amqp://app:secret@broker/", queues={"gold": 40, "free": 4}, shutdown_timeout="10s")
    Settings(url='amqp://app:******@broker/', queues={'gold': 40, 'free': 4}, shutdown_timeout=10.0)
    """

    sources: Mapping[str, str] = field(default=FrozenMapping(), compare=False)

    def __post_init__(self) -> None:
        for key in OPTIONS:
            given = _Given(key, getattr(self, key), self.source(key))
            if given.value is not None and given.value != ():
                object.__setattr__(self, key, _converted(given))
        object.__setattr__(self, "sources", FrozenMapping(self.sources))

    def __repr__(self) -> str:
        parts = []
        for key in OPTIONS:
            value = getattr(self, key)
            if value is not None and value != ():
                parts.append(f"{key}={values.masked(value)!r}")
        return f"Settings({', '.join(parts)})"

    def source(self, key: str) -> str:
        """Say where a setting came from.

        Parameters
        ----------
        key : str
            Its name.

        Returns
        -------
        str
            Such as "argument prefetch" or "environment variable FAIRSCHED_PREFETCH"; for messages.

        Notes
        -----
        O(1). Safe from any thread.
        """
        return self.sources.get(key, f"argument {key}")

    def consumer_options(self) -> dict[str, Any]:
        """Return the keyword arguments for `Consumer`, other than `url` and `queues`.

        Returns
        -------
        dict
            Only what was set.

        Notes
        -----
        O(number of settings). Safe from any thread.
        """
        options: dict[str, Any] = {}
        for key in OPTIONS:
            value = getattr(self, key)
            if value is None or key in ("url", "queues", *COMMAND_OPTIONS):
                continue
            options[key] = _for_consumer(key, value)
        return options

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any] | None = None,
        *,
        file: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        directory: str | Path = ".",
    ) -> Self:
        """Gather settings from a file, the environment and arguments, in rising priority.

        Parameters
        ----------
        arguments : mapping of str to object, optional
            What the caller was given; a value of None counts as not given.
        file : path, optional
            The file to read. Otherwise the one ``FAIRSCHED_CONFIG`` names, otherwise ``fairsched.toml`` in
            `directory`, otherwise ``pyproject.toml`` there if it has a ``[tool.fairsched]``, otherwise none.
        environ : mapping of str to str, optional
            The environment; `os.environ` by default. Empty variables count as not set.
        directory : path
            Where to look for a file.

        Returns
        -------
        Settings
            A key given twice has the value of the later source; mappings are replaced, not merged.

        Raises
        ------
        ConfigurationError
            If a key is unknown or a value not allowed, in any source, also where a later source overrides it.

        Notes
        -----
        Reads at most two small files. Safe from any thread.
        """
        variables = os.environ if environ is None else environ
        path = file or variables.get(FILE_VARIABLE) or None
        located = Path(path) if path else find_file(Path(directory))
        found: dict[str, _Given] = {}
        for given in [
            *(_from_file(located) if located else ()),
            *_from_environment(variables),
            *_from_arguments(arguments or {}),
        ]:
            found[given.key] = given._replace(value=_converted(given))
        return cls(
            **{key: given.value for key, given in found.items()},
            sources=FrozenMapping({key: given.source for key, given in found.items()}),
        )


def _for_consumer(key: str, value: Any) -> Any:
    """Return a setting as `Consumer` takes it."""
    if value == values.OFF:
        return None
    if key == "codel":
        from fairsched.scheduling._codel import CoDel

        return CoDel(**value)
    if key == "retry":
        return Retry(**value)
    return dict(value) if isinstance(value, FrozenMapping) else value


def _converted(given: _Given) -> Any:
    """Convert and check one value, or say what is wrong with it."""
    kind = OPTIONS[given.key].kind
    try:
        return kind.read(given.value)
    except (ValueError, TypeError) as error:
        detail = f": {error}" if isinstance(error, ConfigurationError) else ""
        shown = values.masked(given.value, address=given.key == "url")
        raise ConfigurationError(
            f"{given.key} must be {kind.written}, got {shown!r} ({given.source}){detail}"
        ) from None


def _from_file(path: Path) -> Iterable[_Given]:
    table, source = read_file(path)
    for key, value in table.items():
        _check_known(key, OPTIONS, source)
        yield _Given(key, value, source)


def _from_environment(variables: Mapping[str, str]) -> Iterable[_Given]:
    known = [option.variable for option in OPTIONS.values()]
    for name in variables:
        if name.startswith(PREFIX) and name != FILE_VARIABLE and not values.matches(_FOREIGN, name[len(PREFIX) :]):
            _check_known(name, known, "the environment", PREFIX)
    for option in OPTIONS.values():
        for name in reversed(option.variables):  # the first is to win, so it comes last
            if variables.get(name):
                yield _Given(option.name, variables[name], f"environment variable {name}")


def _from_arguments(arguments: Mapping[str, Any]) -> Iterable[_Given]:
    for key, value in arguments.items():
        _check_known(key, OPTIONS, "arguments")
        if value is not None:
            yield _Given(key, value, f"argument {key}")


def _check_known(name: str, known: Iterable[str], source: str, prefix: str = "") -> None:
    """Reject a name that does not exist."""
    if name not in known:
        raise ConfigurationError(f"unknown setting {name!r} in {source}: {did_you_mean(name, known, prefix)}")
