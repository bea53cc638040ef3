"""What the value of each setting may be, and how text from the environment becomes one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fairsched.durations import RULE as DURATION
from fairsched.durations import parse_duration
from fairsched.errors import ConfigurationError
from fairsched.frozenmapping import FrozenMapping
from fairsched.pools import Pool, as_pools

#: Seconds that one turn of a queue is waited for at most.
LONGEST_TURN = 3600.0
#: basic.qos carries a prefetch in sixteen bits, but a total may be divided over many queues.
LARGEST_PREFETCH = 65_535
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


class Rule(NamedTuple):
    """How a value is converted and, for messages, what is allowed.

    Parameters
    ----------
    convert : callable
        Raw value to checked value, raising ValueError; applied to its own result it changes nothing.
    allowed : str
        Completes the sentence "<key> must be …".
    """

    convert: Callable[[Any], Any]
    allowed: str


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


def _whole(value: Any, least: int = 1, most: float = float("inf")) -> int:
    if isinstance(value, str) and matches(r"\s*\d+(_\d+)*\s*", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError
    return value


def _text_table(text: str) -> Any:
    """Read "gold=40,free=4", "gold,free", or JSON for names in which , or = occur."""
    if text.lstrip()[:1] in ("{", "["):
        return json.loads(text)
    parts = [part.strip() for part in text.split(",")]
    if any("=" in part for part in parts):
        pairs = [part.rpartition("=") for part in parts]
        table = {name.strip(): number.strip() for name, _, number in pairs}
        if len(table) < len(pairs):  # the same name twice
            raise ValueError
        return table
    return parts


def _numbers(value: Any, most: float = float("inf")) -> FrozenMapping[str, int]:
    if isinstance(value, str):
        value = _text_table(value)
    if not isinstance(value, Mapping):
        raise ValueError
    numbers = [_whole(number, most=most) for number in value.values()]
    return FrozenMapping(zip(_names(list(value)), numbers, strict=True))


def _queues(value: Any) -> FrozenMapping[str, int] | tuple[str, ...]:
    if isinstance(value, str):
        value = _text_table(value)
    return _numbers(value) if isinstance(value, Mapping) else _names(value)


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
        return json.loads(text)
    pairs = [part.partition(":") for part in text.split(",")]
    return [Pool(_whole(size), priority=int(priority) if colon else 0) for size, colon, priority in pairs]


def _key(value: Any) -> str:
    return "queue" if value == "queue" else _ordering_key(value)


def _ordering_key(value: Any) -> str:
    from fairsched.consumer.keys import key_function

    if not isinstance(value, str) or not matches(r"(header|property):.+", value):
        raise ValueError
    key_function(value)  # knows the properties there are
    return value


def _flag(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, str):
        value = words.get(value.strip().lower())
    if not isinstance(value, bool):
        raise ValueError
    return value


def _codel(value: Any) -> FrozenMapping[str, Any]:
    """Read a table, ``target=100ms,interval=20ms``, or the target alone."""
    from fairsched._codel import CoDel  # and with it numpy, which must not be loaded just to read a file

    if isinstance(value, str) and ("=" in value or value.lstrip().startswith("{")):
        value = _text_table(value)
    if not isinstance(value, Mapping):
        value = {"target": value}
    unknown = sorted(set(value) - set(_CODEL))
    if unknown:
        raise ConfigurationError(f"unknown {unknown[0]!r}; there are {', '.join(_CODEL)}")
    table = {name: convert(value[name]) for name, convert in _CODEL.items() if name in value}
    try:
        CoDel(**{name: entry for name, entry in table.items() if name in CODEL_LAW})
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return FrozenMapping(table)


def _positive_duration(value: Any) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError
    return seconds


def _turn(value: Any) -> float:
    seconds = parse_duration(value)
    if seconds > LONGEST_TURN:
        raise ValueError
    return seconds


def _one_of(*words: str) -> Rule:
    def convert(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in words:
            raise ValueError
        return word

    return Rule(convert, "one of " + ", ".join(words))


#: What the table `codel` may hold; the first five make the law.
_CODEL: dict[str, Callable[[Any], Any]] = {
    "target": _positive_duration,
    "interval": _positive_duration,
    "min_backlog": lambda value: _whole(value, least=0),
    "max_returns": _whole,
    "law": lambda value: value.strip() if isinstance(value, str) else value,
    "requeue": _flag,
    "budget": lambda value: _whole(value, least=0),
    "when_alone": _flag,
}
CODEL_LAW = ("target", "interval", "min_backlog", "max_returns", "law")

URLS = Rule(_urls, "one or more URLs that start with amqp:// or amqps://")
QUEUES = Rule(_queues, "different names of queues, or names with weights (whole numbers of at least 1)")
PREFETCH = Rule(
    _prefetch,
    f"'auto', a whole number of at least 1, or one from 1 to {LARGEST_PREFETCH} for each of some names of queues",
)
TARGET_DELAY = Rule(parse_duration, DURATION)
MAX_BUFFER_BYTES = Rule(_whole, "a whole number of at least 1")
ANTICIPATION = Rule(_turn, "at most an hour: " + DURATION)
WORKERS = Rule(
    _workers,
    "a whole number of at least 1, or pools, each with a size of at least 1 and a priority: 4:10,2:0 in text, "
    "{size = 4, priority = 10} in a file",
)
COST = _one_of("constant", "bytes", "time")
KEY = Rule(_key, "'queue', 'header:NAME' or 'property:NAME'")
ORDERING_KEY = Rule(_ordering_key, "'header:NAME' or 'property:NAME'")
WEIGHTS = Rule(_numbers, "names of tenants with weights (whole numbers of at least 1)")
DEFAULT_WEIGHT = Rule(_whole, "a whole number of at least 1")
ON_ERROR = _one_of("requeue", "reject", "dead-letter")
CODEL = Rule(_codel, f"a duration, or a table of {', '.join(_CODEL)}")
SHUTDOWN_TIMEOUT = Rule(parse_duration, DURATION)
CONNECT_TIMEOUT = Rule(_positive_duration, "positive: " + DURATION)
LOG_LEVEL = _one_of(*LOG_LEVELS)
