"""A source of queues: it is asked now and then which queues to consume."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fairsched.config.file import parse_toml
from fairsched.config.queue_pattern import QueuePattern
from fairsched.config.queues import Queue, as_queues
from fairsched.config.weight_rules import WeightRules
from fairsched.errors import ConfigurationError

#: How often a source is asked, in seconds, at most and by default.
MOST_OFTEN, USUAL = 0.01, 5.0


@dataclass(frozen=True, slots=True)
class QueueSource:
    """Queues that come and go: a function, a file or a pattern says which queues to consume.

    Parameters
    ----------
    source : callable, Path or QueuePattern
        A function without parameters, or for `fairsched.aio.Consumer` also a coroutine function; or the path of a file:
        JSON, or TOML if its name ends in ``.toml``, with the queues under ``queues``. Either gives what `Consumer`
        takes as `queues`: a mapping of names to weights or to mappings of the parameters of `Queue`, or a collection of
        names (and of `Queue` objects). For a pattern, use `matching`.
    every : float
        Seconds between two questions, at least 0.01.
    weights : mapping of str to int, or callable, optional
        Weights of queues for which the answer has none: regular expressions with weights, of which the first one that
        is found in the name counts, and ``"*"`` with the weight of all others, 1 by default; or a function that returns
        the weight of a name.

    Raises
    ------
    ConfigurationError
        If an argument is invalid; the message names it.

    Notes
    -----
    A consumer adds the queues that are new in an answer and removes those that are missing, except queues that it has
    by other means. It changes weights at once; a queue with other changes is removed and added again. If the source
    raises, or its answer is empty or invalid, the consumer logs this once a minute, and keeps the queues that it has.
    A source that does not answer stops nothing.

    The function is called in a thread of its own, one call at a time; a coroutine runs in the event loop of the
    consumer. Immutable.

    Examples
    --------
    >>> source = QueueSource(lambda: {"gold": 40, "free": 4}, every=1.0)
    >>> sorted(source.read(source.source()))
    ['free', 'gold']
    """

    source: Callable[[], Any] | Path | QueuePattern
    every: float = USUAL
    weights: Mapping[str, int] | Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if not (callable(self.source) or isinstance(self.source, Path | QueuePattern)):
            raise ConfigurationError(f"a source of queues must be a function or a pathlib.Path, got {self.source!r}")
        number = isinstance(self.every, int | float) and not isinstance(self.every, bool)
        if not (number and MOST_OFTEN <= self.every <= 86_400):
            raise ConfigurationError(
                f"every must be a number of seconds from {MOST_OFTEN} to 86400, got {self.every!r}"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", WeightRules(self.weights).rules)

    @classmethod
    def matching(
        cls,
        pattern: str,
        management: str,
        *,
        vhost: str | None = None,
        every: float = USUAL,
        weights: Mapping[str, int] | Callable[[str], int] | None = None,
        timeout: float = 10.0,
    ) -> Self:
        """Return a source of all queues whose names match, which RabbitMQ's management API lists.

        Parameters
        ----------
        pattern : str
            A regular expression, which is searched for in the names, as in policies: use ``^`` and ``$``.
        management : str
            URL of the API, such as ``http://user:password@host:15672``. Without a user, that of the consumer's first
            broker URL is used.
        vhost : str, optional
            The virtual host; by default that of the consumer's first broker URL.
        every, weights
            As for `QueueSource`.
        timeout : float
            Seconds for the API to answer, at most 600.

        Raises
        ------
        ConfigurationError
            If an argument is invalid; the message names it, and shows no password.

        Notes
        -----
        Streams and exclusive queues are left out. An error of the API changes nothing, and is logged once a minute. A
        request for every 500 queues, twice if there are more. The embedded broker has no management API.

        Examples
        --------
        >>> source = QueueSource.matching("^tenant[.]", "http://me:secret@localhost", weights={"gold$": 40, "*": 4})
        >>> str(source)
        "pattern '^tenant[.]' at http://localhost:15672"
        """
        return cls(QueuePattern(pattern, management, vhost, timeout), every, weights)

    def __str__(self) -> str:
        if isinstance(self.source, QueuePattern):
            return str(self.source)
        return f"file {self.source}" if isinstance(self.source, Path) else repr(self.source)

    @property
    def is_coroutine(self) -> bool:
        """True if the source is a coroutine function."""
        return inspect.iscoroutinefunction(self.source)

    def answer(self, urls: Sequence[str] = ()) -> Any:
        """Ask: return what the function returns, which may be a coroutine, what the file contains, or what matches.

        A pattern needs the broker URLs of the consumer.
        """
        if isinstance(self.source, QueuePattern):
            return self.source.names(urls)
        if isinstance(self.source, Path):
            return _content(self.source)
        return self.source()

    def read(self, answer: Any) -> dict[str, Queue]:
        """Return the queues of an answer, by name; raise ConfigurationError if it is empty or invalid."""
        if self.weights is not None:
            answer = _weighted(answer, WeightRules(self.weights))
        return as_queues(answer)


def _weighted(answer: Any, rules: WeightRules) -> Any:
    """Return an answer with weights for the queues that have none in it."""
    if isinstance(answer, Mapping):
        return {name: _with_weight(name, value, rules) for name, value in answer.items()}
    if isinstance(answer, str | bytes) or not isinstance(answer, Collection):
        return answer  # which is an error
    return [Queue(one, weight=rules.weight_of(one)) if isinstance(one, str) and one else one for one in answer]


def _with_weight(name: Any, value: Any, rules: WeightRules) -> Any:
    if isinstance(name, str) and isinstance(value, Mapping) and "weight" not in value:
        return {**value, "weight": rules.weight_of(name)}
    return value


def _content(path: Path) -> Any:
    """Return the queues that a file lists."""
    if path.suffix == ".toml":
        document = parse_toml(path)
        if list(document) != ["queues"]:
            raise ConfigurationError(f"file {path} must have 'queues' and nothing else, got {list(document)}")
        return document["queues"]
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"file {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"file {path} is not valid JSON: {error}") from None


def without_source(queues: Any) -> tuple[Any, QueueSource | None]:
    """Divide the `queues` option into queues and a source of queues.

    Parameters
    ----------
    queues : object
        As `ConsumerOptions` documents it.

    Returns
    -------
    (object, QueueSource or None)
        What `as_queues` takes, or None if a source is all there is; and the source.

    Raises
    ------
    ConfigurationError
        If there is more than one source.

    Notes
    -----
    O(queues). Safe from any thread.
    """
    if _is_source(queues):
        return None, _as_source(queues)
    if isinstance(queues, Mapping | str | bytes) or not isinstance(queues, Collection):
        return queues, None
    sources = [one for one in queues if _is_source(one)]
    if len(sources) > 1:
        raise ConfigurationError(f"queues may have one source of queues, got {len(sources)}: {sources!r}")
    if not sources:
        return queues, None
    return [one for one in queues if not _is_source(one)] or None, _as_source(sources[0])


def _is_source(value: Any) -> bool:
    return isinstance(value, QueueSource | Path) or callable(value)


def _as_source(value: Any) -> QueueSource:
    return value if isinstance(value, QueueSource) else QueueSource(value)
