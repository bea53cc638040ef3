"""The kinds of values that options have: how text becomes one, what is allowed, and how it is shown."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from fairsched._core import checked_timeout
from fairsched.amqp.bounds import LARGEST_PORT
from fairsched.config.durations import RULE as DURATION
from fairsched.config.durations import parse_duration
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.parameters import check_parameters
from fairsched.config.pools import Pool, as_pools
from fairsched.config.queues import Queue
from fairsched.config.retry import Retry
from fairsched.config.tenants import as_tenants
from fairsched.config.unique_json import check_distinct, parse_json
from fairsched.errors import ConfigurationError
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.scheduling.bands import LAST_BAND
from fairsched.scheduling.limit import Limit, Limits

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
#: In a file, a variable or on the command line: None, where None switches something off.
OFF = "off"


class Kind(NamedTuple):
    """Kind of values that an option has.

    Parameters
    ----------
    read : callable
        Value from a file, a variable, the command line or Python to checked value, raising ValueError or TypeError;
        applied to its own result it changes nothing.
    written : str
        What `read` takes; completes the sentence "<option> must be …".
    check : callable, optional
        Argument of `Consumer` to checked value, raising ValueError. Stricter than `read`: text is no number. None: the
        code that uses the option checks it.
    allowed : str
        What `check` takes; completes the same sentence.
    """

    read: Callable[[Any], Any]
    written: str
    check: Callable[[Any], Any] | None = None
    allowed: str = ""


def masked(value: Any, *, address: bool = False) -> Any:
    """Return a value as it may be shown: passwords masked, a tuple as a list or, when it is of one, as its entry.

    What was given as an address is masked even if it is no URL.
    """
    from fairsched.amqp.urls import mask_address, mask_url  # they need pika, not to be loaded just to read a file

    if isinstance(value, str | bytes):
        return (mask_address if address else mask_url)(value)
    if isinstance(value, tuple | list | set | frozenset):
        shown = [masked(entry, address=address) for entry in value]
        return shown[0] if isinstance(value, tuple) and len(shown) == 1 else shown
    if isinstance(value, Mapping):
        return {masked(key, address=address): masked(entry, address=address) for key, entry in value.items()}
    return value


def matches(pattern: str, text: str) -> bool:
    """Tell whether the whole of `text` matches."""
    return re.fullmatch(pattern, text) is not None


def _urls(value: Any) -> tuple[str, ...]:
    from fairsched.amqp.urls import check_urls

    if isinstance(value, str):
        # A comma is legal in a password, so it separates only in front of another URL.
        value = re.split(r"[\s,;]+(?=amqps?://)", value.strip())
    urls = _names(value)
    if not all(matches(r"amqps?://\S*", url) for url in urls):
        raise ValueError
    return check_urls(urls)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise ValueError
    names = tuple(value)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise ValueError
    return names


def _checked_whole(value: Any, least: int = 1, most: float = math.inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError
    return value


def _whole(value: Any, least: int = 1, most: float = math.inf) -> int:
    if isinstance(value, str) and matches(r"\s*\d+(_\d+)*\s*", value):
        value = int(value)
    return _checked_whole(value, least, most)


def _text_table(text: str) -> Any:
    """Read "gold=40,free=4", "gold,free", or JSON for names in which , or = occur."""
    if text.lstrip()[:1] in ("{", "["):
        return parse_json(text)
    parts = [part.strip() for part in text.split(",")]
    if any("=" in part for part in parts):
        pairs = [part.rpartition("=") for part in parts]
        table = {name.strip(): number.strip() for name, _, number in pairs}
        check_distinct([name.strip() for name, _, _ in pairs], "names")
        return table
    return parts


def quoting(name: Any, inner: Any) -> str:
    """Return how to write a name with dots: without quotes, ``orders.eu`` is the key `eu` of a table `orders`."""
    names = [name]
    while isinstance(inner, Mapping) and not inner.keys() <= {*_QUEUE, *_LIMIT, *_LANES}:
        name, inner = next((key, inner[key]) for key in inner if key not in _QUEUE)
        names.append(name)
    return f'. If the name has dots, quote it in TOML: "{".".join(map(str, names))}"'


def _numbers(value: Any, least: int = 1, most: float = math.inf) -> FrozenMapping[str, int]:
    if isinstance(value, str):
        value = _text_table(value)
    if not isinstance(value, Mapping):
        raise ValueError
    for name, number in value.items():
        if isinstance(number, Mapping):
            raise ConfigurationError(f"{name!r} is a table, not a number{quoting(name, number)}")
    numbers = [_whole(number, least, most) for number in value.values()]
    return FrozenMapping(zip(_names(list(value)), numbers, strict=True))


def _prefetch(value: Any) -> int | str | FrozenMapping[str, int]:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    if isinstance(value, Mapping) or (isinstance(value, str) and not matches(r"\s*[\d_]+\s*", value)):
        return _numbers(value, most=LARGEST_PREFETCH)
    return _whole(value)


def _workers(value: Any) -> int | tuple[Pool, ...]:
    """Read a number; pools, as such or as tables; or text for these, such as "4:10,2:0" or JSON."""
    if isinstance(value, str) and not matches(r"\s*[\d_]+\s*", value):
        value = _text_pools(value)
    if isinstance(value, Mapping | Pool):
        value = [value]
    if isinstance(value, list | tuple):
        return as_pools([pool if isinstance(pool, Pool) else Pool(**pool) for pool in value])
    return _whole(value)


def _text_pools(text: str) -> Any:
    """Read "SIZE:PRIORITY,...", where a priority of 0 may be left out, or JSON."""
    if text.lstrip()[:1] in ("{", "["):
        return parse_json(text)
    pairs = [part.partition(":") for part in text.split(",")]
    return [Pool(_whole(size), priority=int(priority) if colon else 0) for size, colon, priority in pairs]


def _key(value: Any) -> str:
    return "queue" if value == "queue" else _header_or_property(value)


def _header_or_property(value: Any) -> str:
    from fairsched.amqp.properties import PROPERTY_NAMES  # and with it pika

    if not isinstance(value, str) or not matches(r"(header|property):.+", value):
        raise ValueError
    source, _, name = value.partition(":")
    properties = sorted({*PROPERTY_NAMES} - {"headers"})
    if source == "property" and name not in properties:
        raise ConfigurationError(f"no such property; there are {', '.join(properties)}")
    return value


def _band(value: Any) -> str:
    if not isinstance(value, str) or not matches(r"header:.+|property:priority", value):
        raise ValueError
    return value


def _checked_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, str):
        value = words.get(value.strip().lower())
    return _checked_flag(value)


#: Keys of the table `codel`.
_CODEL: dict[str, Callable[[Any], Any]] = {
    "target": lambda value: _positive(parse_duration(value)),
    "interval": lambda value: _positive(parse_duration(value)),
    "min_backlog": lambda value: _whole(value, least=0),
    "max_returns": _whole,
    "law": lambda value: value.strip() if isinstance(value, str) else value,
    "requeue": _flag,
    "budget": lambda value: _whole(value, least=0),
    "when_alone": _flag,
}


def _given(value: Any, known: Mapping[str, object], alone: str) -> Mapping[str, Any]:
    """Return a table of names that are known: as it is, out of text, or of one value that stands alone."""
    if isinstance(value, str) and ("=" in value or value.lstrip().startswith("{")):
        value = _text_table(value)
    table: Mapping[str, Any] = value if isinstance(value, Mapping) else {alone: value}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigurationError(f"unknown {unknown[0]!r}; there are {', '.join(known)}")
    return table


def _codel(value: Any) -> FrozenMapping[str, Any]:
    """Read a table, ``target=100ms,interval=20ms``, or the target alone."""
    from fairsched.scheduling._codel import CoDel  # and with it numpy, which must not be loaded just to read a file

    value = _given(value, _CODEL, "target")
    table = {name: read(value[name]) for name, read in _CODEL.items() if name in value}
    try:
        CoDel(**table)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(str(error)) from None
    return FrozenMapping(table)


def _backoff(value: Any) -> float | tuple[float, float]:
    """Read one duration, or two: a list, or text with a colon between them."""
    if isinstance(value, str) and ":" in value:
        value = value.split(":")
    if isinstance(value, list | tuple) and len(value) == 2:
        first, longest = map(parse_duration, value)
        return first, longest
    return parse_duration(value)


#: Keys of the table `retry`; the exceptions to retry can only be given in Python.
_RETRY: dict[str, Callable[[Any], Any]] = {
    "max_attempts": _whole,
    "backoff": _backoff,
    "jitter": _flag,
    "dead_letter": lambda value: False if value is False or value in ("false", OFF) else value,
}


def _retry(value: Any) -> FrozenMapping[str, Any]:
    """Read a table, ``max_attempts=5,backoff=1s:5m``, or the number of attempts alone."""
    if isinstance(value, Retry):
        value = {name: getattr(value, name) for name in _RETRY}
    value = _given(value, _RETRY, "max_attempts")
    table = {name: read(value[name]) for name, read in _RETRY.items() if name in value and value[name] is not None}
    Retry(**table)  # which checks it
    return FrozenMapping(table)


def _is_off(value: Any) -> bool:
    return value is False or (isinstance(value, str) and value.strip().lower() in (OFF, "false"))


def _queue_retry(value: Any) -> Retry | Literal[False]:
    """Read a retry, or that there is none."""
    if _is_off(value):
        return False
    return value if isinstance(value, Retry) else Retry(**_retry(value))


def _queue_time_limit(value: Any) -> float | Literal[False]:
    """Read a duration, or that there is no limit."""
    return False if _is_off(value) else parse_duration(value)


#: Keys of the table `limit`.
_LIMIT: dict[str, Callable[[Any], Any]] = {
    "concurrency": _whole,
    "rate": lambda value: value.strip() if isinstance(value, str) else value,
    "burst": _whole,
    "scope": lambda value: value.strip() if isinstance(value, str) else value,
    "name": lambda value: value.strip() if isinstance(value, str) else value,
}


def _limit(value: Any) -> Limit:
    """Read a table, ``concurrency=4,rate=10/s,burst=20``, or the concurrency alone."""
    if isinstance(value, Limit):
        return value
    value = _given(value, _LIMIT, "concurrency")
    return Limit(**{name: read(value[name]) for name, read in _LIMIT.items() if value.get(name) is not None})


def _queue_limit(value: Any) -> Limits | Literal[False]:
    """Read a limit, or a list of two, or that there is none."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value)
    if isinstance(value, list | tuple):
        return tuple(map(_limit, value))
    return False if _is_off(value) else _limit(value)


def _frozen(value: Any) -> Any:
    """Return tables and lists that cannot change."""
    if isinstance(value, Mapping):
        return FrozenMapping({name: _frozen(one) for name, one in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


#: Keys of the table of a queue: all arguments of `Queue` except its name.
_QUEUE: dict[str, Callable[[Any], Any]] = {
    "weight": _whole,
    "prefetch": _whole,
    "on_error": lambda value: value.strip().lower() if isinstance(value, str) else value,
    "retry": _queue_retry,
    "time_limit": _queue_time_limit,
    "limit": _queue_limit,
    "band": lambda value: _whole(value, 0, LAST_BAND),
    "durable": _flag,
    "arguments": _frozen,
    "bind": _frozen,
    "dead_letter": str,
    "priority": int,
    "exclusive": _flag,
    "offset": lambda value: value,
}


def _queues(value: Any) -> FrozenMapping[str, Any] | tuple[str, ...]:
    if isinstance(value, str):
        value = _text_table(value)
    if not isinstance(value, Mapping):
        return _names(value)
    if not any(isinstance(one, Mapping) for one in value.values()):
        return _numbers(value)
    names = _names(list(value))
    return FrozenMapping({name: _queue(name, value[name]) for name in names})


#: Keys of the table of lanes: all arguments of `Lanes` except its name.
_LANES: dict[str, Callable[[Any], Any]] = {
    "key": lambda value: value.strip() if isinstance(value, str) else value,
    "buckets": _whole,
    "ordered": _flag,
    "arguments": _frozen,
}


def _queue(name: str, value: Any) -> int | FrozenMapping[str, Any]:
    """Read a weight, or a table of the parameters of `Queue` or of `Lanes`."""
    from fairsched.config.lanes import LANES_ALONE, as_lanes  # and with it numpy, not to be loaded just to read a file

    if not isinstance(value, Mapping):
        return _whole(value)
    if not LANES_ALONE.isdisjoint(value):
        table = _parameters("lanes", name, value, _LANES)
        as_lanes(name, table)  # which checks it
        return table
    table = _parameters("queue", name, value, _QUEUE)
    Queue(name, **table)  # which checks it
    return table


#: The keys that the table of a tenant may have: the parameters of `Tenant`.
_TENANT: dict[str, Callable[[Any], Any]] = {name: _QUEUE[name] for name in ("weight", "limit", "band")}


def _tenants(value: Any) -> FrozenMapping[str, int | FrozenMapping[str, Any]]:
    """Read weights, or tables of the parameters of `Tenant`, by name."""
    if isinstance(value, str):
        value = _text_table(value)
    if not isinstance(value, Mapping):
        raise ValueError
    table = FrozenMapping({name: _tenant(name, value[name]) for name in _names(list(value))})
    as_tenants(table)  # which checks it
    return table


def _tenant(name: str, value: Any) -> int | FrozenMapping[str, Any]:
    return _parameters("tenant", name, value, _TENANT) if isinstance(value, Mapping) else _whole(value)


#: Keys of the table of a source of queues.
_SOURCE: dict[str, Callable[[Any], Any]] = {
    "file": str,
    "pattern": str,
    "function": str,
    "management": str,
    "vhost": str,
    "every": parse_duration,
    "timeout": parse_duration,
    "weights": _numbers,
}


def _source(value: Any) -> FrozenMapping[str, Any]:
    """Read a table, ``pattern=^tenant,management=http://host``, JSON, or the name of a file alone."""
    from fairsched.config.source_table import source_of

    value = _given(value, _SOURCE, "file")
    table = FrozenMapping({name: read(value[name]) for name, read in _SOURCE.items() if name in value})
    if "function" in table and not matches(r"\w+(\.\w+)*:\w+(\.\w+)*", table["function"]):
        raise ConfigurationError(
            f"function must be MODULE:FUNCTION, such as workers.tenants:queues, got {table['function']!r}"
        )
    source_of(table, lambda _name: dict)  # which checks it
    return table


def _parameters(
    what: str, name: str, given: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]]
) -> FrozenMapping[str, Any]:
    """Read the table of a queue, a tenant or lanes."""
    check_parameters(what, name, given, known, quoting(name, given))
    table = {}
    for key, value in given.items():
        try:
            table[key] = known[key](value)
        except (ValueError, TypeError) as error:
            detail = f": {error}" if isinstance(error, ConfigurationError) else ""
            raise ConfigurationError(f"{key} of {what} {name!r} cannot be {value!r}{detail}") from None
    return FrozenMapping(table)


def _positive(seconds: float) -> float:
    if not seconds:
        raise ValueError
    return seconds


def whole(least: int = 1) -> Kind:
    """Whole numbers."""
    rule = f"a whole number of at least {least}"
    return Kind(lambda value: _whole(value, least), rule, lambda value: _checked_whole(value, least), rule)


def duration(most: float = math.inf, limit: str = "", positive: bool = False) -> Kind:
    """Durations: seconds in Python, and as `parse_duration` reads them elsewhere."""

    def read(value: Any) -> float:
        seconds = parse_duration(value)
        if seconds > most or (positive and not seconds):
            raise ValueError
        return seconds

    def check(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        return read(value)

    bounds = "more than 0" if positive else "0 or more" if math.isinf(most) else f"0 to {most:g}"
    return Kind(read, limit + DURATION, check, f"a number of seconds, {bounds}")


def timeout(limit: str = "", positive: bool = False) -> Kind:
    """Timeouts: durations that may be infinite, or longer than any wait can be."""

    def read(value: Any) -> float:
        return within(parse_duration(value)) if isinstance(value, str) else check(value)

    def check(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        return within(checked_timeout(value))

    def within(seconds: float) -> float:
        if positive and not seconds:
            raise ValueError
        return min(seconds, threading.TIMEOUT_MAX)

    return Kind(read, limit + DURATION, check, f"a number of seconds, {'more than 0' if positive else '0 or more'}")


def flag() -> Kind:
    """Yes or no."""
    return Kind(_flag, "true or false", _checked_flag, "True or False")


def word(*words: str, or_function: bool = False) -> Kind:
    """One of some words; in Python perhaps a function instead."""

    def read(value: Any) -> str:
        found = value.strip().lower() if isinstance(value, str) else ""
        if found not in words:
            raise ValueError
        return found

    def check(value: Any) -> Any:
        if value not in words and not (or_function and callable(value)):
            raise ValueError
        return value

    rule = "one of " + ", ".join(words)
    return Kind(read, rule, check, rule + " or a function" if or_function else rule)


def or_off(kind: Kind) -> Kind:
    """Add the word that switches something off, for which Python has None."""

    def read(value: Any) -> Any:
        return OFF if isinstance(value, str) and value.strip().lower() == OFF else kind.read(value)

    return kind._replace(read=read, written=f"{OFF!r}, or {kind.written}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


TEXT = Kind(_text, "text", _text, "a str that is not empty")
URLS = Kind(_urls, "one or more URLs that start with amqp:// or amqps://")
QUEUES = Kind(
    _queues,
    "different names of queues, or names with weights (whole numbers of at least 1) or with tables of "
    f"{', '.join(_QUEUE)}; lanes have tables of {', '.join(_LANES)}",
)
PREFETCH = Kind(
    _prefetch,
    f"'auto', a whole number of at least 1, or one from 1 to {LARGEST_PREFETCH} for each of some names of queues",
)
WORKERS = Kind(
    _workers,
    "a whole number of at least 1, or pools, each with a size of at least 1 and a priority: 4:10,2:0 in text, "
    "{size = 4, priority = 10} in a file",
)
KEY = Kind(_key, "'queue', 'header:NAME' or 'property:NAME'")
HEADER_OR_PROPERTY = Kind(_header_or_property, "'header:NAME' or 'property:NAME'")
BAND = Kind(_band, "'property:priority' or 'header:NAME'")
PORT = Kind(lambda value: _whole(value, 0, LARGEST_PORT), f"a port, 0 to {LARGEST_PORT}")
SOURCE = Kind(_source, f"the name of a file, or a table of {', '.join(_SOURCE)}")
TENANTS = Kind(
    _tenants,
    f"names of tenants with weights (whole numbers of at least 1) or with tables of {', '.join(_TENANT)}",
)
RETRY = Kind(_retry, f"a number of attempts, or a table of {', '.join(_RETRY)}")
LIMIT = Kind(_limit, f"a number of messages, or a table of {', '.join(_LIMIT)}")
CODEL = Kind(_codel, f"a duration, or a table of {', '.join(_CODEL)}")
