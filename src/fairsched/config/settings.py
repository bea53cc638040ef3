"""Configuration of a worker: frozen and picklable, from a file, the environment and arguments, in rising priority.

A key has the same name everywhere: `shutdown_timeout` in ``fairsched.toml`` or ``[tool.fairsched]`` of
``pyproject.toml``, ``FAIRSCHED_SHUTDOWN_TIMEOUT`` in the environment, ``--shutdown-timeout`` on the command line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

from fairsched.config import values
from fairsched.config.file import find_file, read_file
from fairsched.errors import ConfigurationError
from fairsched.frozenmapping import FrozenMapping
from fairsched.pools import Pool

__all__ = ["PREFIX", "URL_VARIABLES", "Settings"]

PREFIX = "FAIRSCHED_"

#: Where a broker's URL is looked for, the first that is set wins; the last three are what hosting platforms set.
URL_VARIABLES = ("FAIRSCHED_URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL")

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """What a worker needs to know.

    None, or an empty tuple, means that nothing was said and the default of `Consumer` holds.

    Parameters
    ----------
    url : str or sequence of str
        Broker URLs, ``amqp://`` or ``amqps://``, in the order in which they are tried.
    queues : mapping of str to int, or sequence of str
        Queues to consume, with weights or without.
    prefetch : int, "auto" or mapping of str to int
        Unsettled messages in all, or for each queue; "auto": found by measuring.
    target_delay : float or str
        Seconds, or text such as ``"100ms"``: how long a message may wait here for the sake of ``prefetch="auto"``.
    max_buffer_bytes : int
        Bytes of unsettled messages.
    anticipation : float or str
        Seconds that a queue whose turn it is may be waited for; 0: nobody is.
    workers : int, or sequence of Pool
        Threads that run handlers; in text ``"4:10,2:0"`` are pools of four of priority 10 and two of priority 0.
    cost : {"constant", "bytes", "time"}
        What a message costs its slot.
    key : str
        ``"queue"``, ``"header:NAME"`` or ``"property:NAME"``: what a slot is.
    weights : mapping of str to int
        Weights of tenants, with `key`.
    default_weight : int
        Weight of tenants that `weights` does not name.
    ordering_key : str
        ``"header:NAME"`` or ``"property:NAME"``: messages that have it in common are handled in order.
    on_error : {"requeue", "reject", "dead-letter"}
        What becomes of a message whose handler raised.
    codel : str, float or mapping
        What becomes of messages that wait here too long: the target alone, or a table of ``target``, ``interval``,
        ``min_backlog``, ``max_returns`` and ``law`` (as for `CoDel`, the times also as text) and of ``requeue``,
        ``budget`` and ``when_alone`` (as `Consumer` takes them with the prefix ``codel_``).
    shutdown_timeout, connect_timeout : float or str
        Seconds, or text such as ``"25s"``.
    log_level : {"debug", "info", "warning", "error", "critical"}
        What the command line logs.
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

    url: tuple[str, ...] = field(default=(), metadata={"rule": values.URLS})
    queues: FrozenMapping[str, int] | tuple[str, ...] = field(default=(), metadata={"rule": values.QUEUES})
    prefetch: int | str | FrozenMapping[str, int] | None = field(default=None, metadata={"rule": values.PREFETCH})
    target_delay: float | None = field(default=None, metadata={"rule": values.TARGET_DELAY})
    max_buffer_bytes: int | None = field(default=None, metadata={"rule": values.MAX_BUFFER_BYTES})
    anticipation: float | None = field(default=None, metadata={"rule": values.ANTICIPATION})
    workers: int | tuple[Pool, ...] | None = field(default=None, metadata={"rule": values.WORKERS})
    cost: str | None = field(default=None, metadata={"rule": values.COST})
    key: str | None = field(default=None, metadata={"rule": values.KEY})
    weights: FrozenMapping[str, int] | None = field(default=None, metadata={"rule": values.WEIGHTS})
    default_weight: int | None = field(default=None, metadata={"rule": values.DEFAULT_WEIGHT})
    ordering_key: str | None = field(default=None, metadata={"rule": values.ORDERING_KEY})
    on_error: str | None = field(default=None, metadata={"rule": values.ON_ERROR})
    codel: FrozenMapping[str, Any] | None = field(default=None, metadata={"rule": values.CODEL})
    shutdown_timeout: float | None = field(default=None, metadata={"rule": values.SHUTDOWN_TIMEOUT})
    connect_timeout: float | None = field(default=None, metadata={"rule": values.CONNECT_TIMEOUT})
    log_level: str | None = field(default=None, metadata={"rule": values.LOG_LEVEL})
    sources: FrozenMapping[str, str] = field(default=FrozenMapping(), compare=False)

    def __post_init__(self) -> None:
        for key in RULES:
            given = _Given(key, getattr(self, key), self.source(key))
            if given.value is not None and given.value != ():
                object.__setattr__(self, key, _converted(given))
        object.__setattr__(self, "sources", FrozenMapping(self.sources))

    def __repr__(self) -> str:
        parts = []
        for key in RULES:
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
            Only what was set. Constant cost and one slot per queue, which the consumer calls None, are translated.

        Notes
        -----
        O(number of settings). Safe from any thread.
        """
        options: dict[str, Any] = {}
        for key in RULES:
            value = getattr(self, key)
            if value is None or key in ("url", "queues", "log_level"):
                continue
            if key == "codel":
                options |= _codel_options(value)
                continue
            if (key, value) in (("cost", "constant"), ("key", "queue")):
                value = None
            options[key] = dict(value) if isinstance(value, FrozenMapping) else value
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


#: The rule of each setting, by key.
RULES: dict[str, values.Rule] = {
    entry.name: entry.metadata["rule"] for entry in fields(Settings) if "rule" in entry.metadata
}


def _codel_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the table into the law and the options that a consumer takes."""
    from fairsched._codel import CoDel

    law = {name: entry for name, entry in table.items() if name in values.CODEL_LAW}
    others = {f"codel_{name}": entry for name, entry in table.items() if name not in values.CODEL_LAW}
    return {"codel": CoDel(**law), **others}


def _converted(given: _Given) -> Any:
    """Convert and check one value, or say what is wrong with it."""
    rule = RULES[given.key]
    try:
        return rule.convert(given.value)
    except (ValueError, TypeError) as error:
        detail = f": {error}" if isinstance(error, ConfigurationError) else ""
        shown = values.masked(given.value, address=given.key == "url")
        raise ConfigurationError(
            f"{given.key} must be {rule.allowed}, got {shown!r} ({given.source}){detail}"
        ) from None


def _from_file(path: Path) -> Iterable[_Given]:
    table, source = read_file(path)
    for key, value in table.items():
        _check_known(key, RULES, source)
        yield _Given(key, value, source)


def _from_environment(variables: Mapping[str, str]) -> Iterable[_Given]:
    known = {PREFIX + key.upper(): key for key in RULES}
    for name in variables:
        if name.startswith(PREFIX) and name != FILE_VARIABLE and not values.matches(_FOREIGN, name[len(PREFIX) :]):
            _check_known(name, known, "the environment", PREFIX)
    # Lowest first, so that a later one overrides it.
    for name in reversed(URL_VARIABLES):
        if variables.get(name):
            yield _Given("url", variables[name], f"environment variable {name}")
    for name, key in known.items():
        if key != "url" and variables.get(name):
            yield _Given(key, variables[name], f"environment variable {name}")


def _from_arguments(arguments: Mapping[str, Any]) -> Iterable[_Given]:
    for key, value in arguments.items():
        _check_known(key, RULES, "arguments")
        if value is not None:
            yield _Given(key, value, f"argument {key}")


def _check_known(name: str, known: Iterable[str], source: str, prefix: str = "") -> None:
    """Reject a name that does not exist, with the one that was probably meant."""
    names = list(known)
    if name in names:
        return
    # The common prefix would make anything look alike.
    close = difflib.get_close_matches(name[len(prefix) :], [entry[len(prefix) :] for entry in names], n=1)
    hint = f"did you mean {prefix + close[0]!r}?" if close else f"there are {', '.join(names)}"
    raise ConfigurationError(f"unknown setting {name!r} in {source}: {hint}")
