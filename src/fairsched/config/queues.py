"""Queues to consume, with the options of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.config.delayed_retry import check_arguments
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.parameters import check_parameters
from fairsched.config.pools import PRIORITIES, is_priority
from fairsched.config.retry import Retry
from fairsched.config.unique_json import check_distinct
from fairsched.config.weights import check_weight
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.scheduling.bands import check_band
from fairsched.scheduling.limit import Limit, checked_limit

__all__ = ["Queue", "as_queues"]

_POLICIES = ("requeue", "reject")
_OFFSETS = ("first", "last", "next")
#: Window of each queue for which all consumers need the same one, unless it has a `prefetch` of its own. So many
#: messages keep a lane going over a round trip of a quorum queue, and 64 lanes at one process stay below RabbitMQ's
#: timeout of half an hour with handlers of several seconds.
ONE_WINDOW = 32


@dataclass(frozen=True)
class Queue:
    """A queue to consume, with the options that apply to it alone.

    If `durable`, `arguments`, `bind` or `dead_letter` is given, the consumer declares the queue at the start, and again
    if the queue disappears. Otherwise the queue must exist.

    Parameters
    ----------
    name : str
        The queue's name.
    weight : int
        The queue's weight, at least 1.
    prefetch : int, optional
        Maximum number of unsettled messages of this queue, 1 to 65 535. It also bounds how many are handled at a time,
        so that a slow queue cannot occupy all workers. By default the consumer's prefetch; not with
        ``prefetch="auto"``. By default 32 if `arguments` say that it is a quorum queue with a single active consumer:
        such a queue keeps its order only if all its consumers have the same window.
    on_error : "requeue", "reject" or callable, optional
        What happens to a message whose handler raised; by default as for the consumer.
    retry : Retry or False, optional
        How such a message is retried; False: it is not. By default as for the consumer, unless `on_error` is given.
    time_limit : float or False, optional
        Seconds that a call of the handler may take; False: no limit. By default as for the consumer.
    limit : Limit or sequence of Limit, or False, optional
        How many messages of this queue are handled at a time, and how fast; by default there is no limit. Two limits if
        one has a name and one has none: both hold. False in a file removes the limit that the app sets. Not for
        consumers with a `key`, which limit `tenants`.
    band : int, optional
        The queue's strict band, from 0 to 7; 4 by default. While a message of a queue of one band is buffered, no
        messages of later bands are handed to a handler, for as long as that lasts. Not for consumers with a `key`,
        whose `tenants` have bands.
    durable : bool, optional
        Whether the queue survives a restart of the broker; True by default, if the queue is declared.
    arguments : mapping, optional
        Arguments of the declaration, such as ``{"x-queue-type": "quorum"}``. With the ``x-delayed-retry-…`` of
        `Retry.queue_arguments`, a quorum queue of RabbitMQ 4.3 delays retries itself.
    bind : sequence of str or tuple
        Exchanges to bind the queue to: names, or tuples of name, routing key and, optionally, arguments.
    dead_letter : str, optional
        Name of the queue for rejected messages; it is declared durable if it does not exist. It sets the arguments
        ``x-dead-letter-exchange`` and ``x-dead-letter-routing-key``. Messages whose retries are exhausted go there too.
    priority : int, optional
        Consumer priority: the broker delivers to a consumer of lower priority only while those of higher priority have
        full windows.
    exclusive : bool
        Whether no other consumer may consume the queue. Needs `prefetch`.
    offset : "first", "last", "next", int or datetime, optional
        For a stream: where to start, also after a lost connection. Needs `prefetch`.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names it.

    Notes
    -----
    Immutable. Safe from any thread.

    Examples
    --------
    >>> gold = Queue("gold", weight=40, durable=True, bind=[("orders", "gold.*")], dead_letter="gold.failed")
    >>> gold.is_declared, Queue("free").is_declared
    (True, False)
    >>> gold.all_arguments
    {'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'gold.failed'}
    """

    name: str
    _: KW_ONLY
    weight: int = 1
    prefetch: int | None = None
    on_error: str | Callable[[Any, Exception], object] | None = None
    retry: Retry | Literal[False] | None = None
    time_limit: float | Literal[False] | None = None
    limit: Limit | Sequence[Limit] | Literal[False] | None = None
    band: int | None = None
    durable: bool | None = None
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)
    bind: Collection[str | tuple[Any, ...]] = field(default=(), hash=False)
    dead_letter: str | None = None
    priority: int | None = None
    exclusive: bool = False
    offset: str | int | datetime | None = None

    def __post_init__(self) -> None:
        if not (self.name and is_short_string(self.name)):
            raise ConfigurationError(f"a queue name has 1 to {LONGEST} bytes of text, got {self.name!r}")
        self._check_handling()
        self._check_topology()
        self._check_consumer()

    def _refuse(self, what: str, rule: str) -> ConfigurationError:
        return ConfigurationError(f"{what} of queue {self.name!r} must be {rule}, got {getattr(self, what)!r}")

    def _check_handling(self) -> None:
        check_weight(self.name, self.weight)
        if self.prefetch is not None and not (_is_whole(self.prefetch) and 1 <= self.prefetch <= LARGEST_PREFETCH):
            raise self._refuse("prefetch", f"a whole number from 1 to {LARGEST_PREFETCH}")
        if callable(self.on_error):
            check_plain(self.on_error, f"on_error of queue {self.name!r}")
        elif self.on_error is not None and self.on_error not in _POLICIES:
            raise self._refuse("on_error", f"one of {', '.join(_POLICIES)} or a function")
        if self.retry is not None and self.retry is not False and not isinstance(self.retry, Retry):
            raise self._refuse("retry", "a fairsched.Retry or False")
        limit = self.time_limit
        if limit is not None and limit is not False and not (_is_real(limit) and 0 < limit <= sys.float_info.max):
            raise self._refuse("time_limit", "a positive number of seconds or False")
        object.__setattr__(self, "limit", checked_limit(self.limit, f"queue {self.name!r}"))
        if self.band is not None:
            check_band(self.name, self.band)
        if self.retry and self.on_error is not None:
            raise ConfigurationError(
                f"queue {self.name!r} has retry and on_error, of which one takes the other's place"
            )

    def _check_topology(self) -> None:
        if self.durable not in (None, True, False):
            raise self._refuse("durable", "True or False")
        if self.arguments is not None:
            if not isinstance(self.arguments, Mapping) or not all(isinstance(name, str) for name in self.arguments):
                raise self._refuse("arguments", "a mapping of names to values")
            check_arguments(self.name, self.arguments)
            object.__setattr__(self, "arguments", FrozenMapping(self.arguments))
        if isinstance(self.bind, str | bytes | Mapping) or not isinstance(self.bind, Collection):
            raise self._refuse("bind", "a list of exchanges")
        object.__setattr__(self, "bind", tuple(map(self._binding, self.bind)))
        if self.dead_letter is not None:
            if not (self.dead_letter and is_short_string(self.dead_letter)):
                raise self._refuse("dead_letter", f"the name of a queue, 1 to {LONGEST} bytes of text")
            if self.dead_letter == self.name:
                raise self._refuse("dead_letter", "another queue")
            if any(name.startswith("x-dead-letter-") for name in self.arguments or ()):
                raise ConfigurationError(
                    f"dead_letter of queue {self.name!r} makes the arguments x-dead-letter-exchange and "
                    "x-dead-letter-routing-key, which are given too"
                )

    def _binding(self, one: Any) -> tuple[str, str, FrozenMapping[str, Any]]:
        parts = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else ()
        exchange, key, arguments = (*parts, *("", "", {})[len(parts) :])[:3] if 1 <= len(parts) <= 3 else (None,) * 3
        texts = exchange and is_short_string(exchange) and is_short_string(key)
        if not (texts and isinstance(arguments, Mapping)):
            raise ConfigurationError(
                f"bind of queue {self.name!r} must have names of exchanges, or tuples of name, routing key (at most "
                f"{LONGEST} bytes of text) and perhaps arguments, got {one!r}"
            )
        return exchange, key, FrozenMapping(arguments)

    def _check_consumer(self) -> None:
        if self.priority is not None and not is_priority(self.priority):
            raise self._refuse("priority", PRIORITIES)
        if not isinstance(self.exclusive, bool):
            raise self._refuse("exclusive", "True or False")
        offset = self.offset
        known = offset in _OFFSETS or (_is_whole(offset) and 0 <= offset < 2**63)  # type: ignore[operator]
        if offset is not None and not known and not isinstance(offset, datetime):
            raise self._refuse("offset", f"one of {', '.join(_OFFSETS)}, a whole number of at least 0 or a datetime")
        if self.is_stream and self.retry:
            known_by = "arguments" if offset is None else "offset"
            raise ConfigurationError(f"queue {self.name!r} is a stream, by its {known_by}: streams have no retry")
        if (self.exclusive or offset is not None) and self.prefetch is None:
            what = "exclusive" if self.exclusive else "offset"
            raise ConfigurationError(
                f"{what} of queue {self.name!r} needs prefetch: another window takes another consumer"
            )

    @property
    def is_declared(self) -> bool:
        """True if the consumer declares the queue."""
        return self.durable is not None or self.arguments is not None or bool(self.bind) or self.dead_letter is not None

    @property
    def is_stream(self) -> bool:
        """True if its arguments say that it is a stream."""
        return self.offset is not None or (self.arguments or {}).get("x-queue-type") == "stream"

    @property
    def bindings(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The exchange, routing key and arguments of each binding."""
        return [(exchange, key, thawed(arguments)) for exchange, key, arguments in map(self._binding, self.bind)]

    @property
    def all_arguments(self) -> dict[str, Any]:
        """The arguments that the queue is declared with."""
        found: dict[str, Any] = thawed(self.arguments or {})
        if self.dead_letter is not None:
            found |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead_letter}
        return found

    @property
    def has_single_active_consumer(self) -> bool:
        """Whether the queue is declared so that the broker delivers to one consumer at a time."""
        return (self.arguments or {}).get("x-single-active-consumer") is True

    @property
    def needs_one_window(self) -> bool:
        """Whether the order lasts only if all consumers of the queue, in all processes, have the same window.

        A quorum queue puts the messages that it takes back from a consumer behind those that it took back earlier. If
        the next consumer has a smaller window, it has not got all of them when it is lost in its turn, and the rest is
        delivered first.
        """
        return self.has_single_active_consumer and (self.arguments or {}).get("x-queue-type") == "quorum"

    @property
    def has_fixed_window(self) -> bool:
        """Whether the window never changes: neither by measurement nor by another consumer beside the first one."""
        return self.exclusive or self.offset is not None or self.needs_one_window

    @property
    def own_window(self) -> int | None:
        """The window that the queue has whatever others there are; None: its part of the consumer's prefetch."""
        return ONE_WINDOW if self.prefetch is None and self.needs_one_window else self.prefetch

    @property
    def consumer_arguments(self) -> dict[str, Any]:
        """The arguments that the queue is consumed with."""
        found: dict[str, Any] = {}
        if self.priority is not None:
            found["x-priority"] = self.priority
        if self.offset is not None:
            found["x-stream-offset"] = self.offset
        return found


def thawed(value: Any) -> Any:
    """Return mappings as dicts and tuples as lists, as pika takes them."""
    if isinstance(value, Mapping):
        return {name: thawed(one) for name, one in value.items()}
    return list(map(thawed, value)) if isinstance(value, list | tuple) else value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_queues(queues: object) -> dict[str, Queue]:
    """Convert the `queues` option.

    Parameters
    ----------
    queues : mapping, or collection of str and Queue
        A mapping of names to weights, or to mappings of the parameters of `Queue`; or a collection of names and `Queue`
        objects.

    Returns
    -------
    dict of str to Queue
        The queues by name, at least one.

    Raises
    ------
    ConfigurationError
        If `queues` is something else, or a value in it is invalid.

    Notes
    -----
    O(queues). Safe from any thread.
    """
    if isinstance(queues, str | bytes) or not isinstance(queues, Collection):
        raise ConfigurationError(
            f"queues must be a mapping of names to weights or a list of names, Queues and Lanes, got {queues!r}"
        )
    if isinstance(queues, Mapping):
        found = [_named(name, value) for name, value in queues.items()]
    else:
        found = [one if isinstance(one, Queue) else Queue(one) for one in queues]
    if not found:
        raise ConfigurationError("at least one queue is needed, got none")
    check_distinct([one.name for one in found], "queues")
    return {one.name: one for one in found}


def _named(name: Any, value: Any) -> Queue:
    if isinstance(value, Queue):
        if value.name != name:
            raise ConfigurationError(f"queue {value.name!r} stands under another name, {name!r}")
        return value
    if not isinstance(value, Mapping):
        return Queue(name, weight=value)
    known = [option.name for option in fields(Queue) if option.name != "name"]
    check_parameters("queue", name, value, known)
    return Queue(name, **value)
