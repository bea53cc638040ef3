"""The arguments of a consumer, checked once and frozen."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairsched.amqp.urls import check_urls
from fairsched.consumer.cost import ConstantCost, cost_model
from fairsched.consumer.handlers import check_plain
from fairsched.consumer.keys import Key, key_function
from fairsched.consumer.prefetch.arithmetic import normalise, windows_for
from fairsched.consumer.prefetch.auto import start_windows
from fairsched.consumer.shedding import SheddingRules, shedding_rules
from fairsched.errors import ConfigurationError
from fairsched.pools import Pool, Workers, as_pools

if TYPE_CHECKING:
    from fairsched._codel import CoDel
    from fairsched.consumer.message import Message

#: What may happen to a message whose handler raised.
ON_ERROR = ("requeue", "reject", "dead-letter")

#: The prefetch that is found by measuring, and how long messages may wait for its sake, in seconds.
AUTO, TARGET_DELAY = "auto", 0.1

OnError = str | Callable[["Message", Exception], object]


@dataclass(frozen=True)
class Settings:
    """What a consumer was asked to do.

    Attributes
    ----------
    urls : tuple of str
        Brokers in the order in which they are tried.
    quanta : dict
        Quantum per slot that is known beforehand: queues, or tenants with a weight.
    default_quantum : int or None
        Quantum of any other tenant; None when slots are queues.
    units : dict
        Messages that a queue is served per round of all lanes, for the arithmetic of windows.
    windows : dict
        Unsettled messages per queue.
    default_prefetch : bool
        Whether the windows are the default: then they are chosen anew for each connection, once handlers were measured.
    target_delay : float or None
        Seconds that a message may wait here for ``prefetch="auto"``; None: the windows stay as they are.
    max_buffer_bytes : int or None
        Bytes of unsettled messages; None: as many as come.
    anticipation : float or None
        Seconds that a turn is waited for; None: as the round trip demands.
    shedding : SheddingRules or None
        What becomes of messages that wait here too long.
    pools : tuple of Pool
        The workers, by descending priority.
    key, ordering_key, cost, on_error, shutdown_timeout, connect_timeout
        As given to `Consumer`.
    """

    urls: tuple[str, ...] = field(repr=False)  # with their passwords
    quanta: dict[Hashable, int]
    default_quantum: int | None
    units: dict[str, float]
    windows: dict[str, int]
    default_prefetch: bool
    target_delay: float | None
    max_buffer_bytes: int | None
    anticipation: float | None
    key: Key | None
    ordering_key: Key | None
    cost: ConstantCost
    pools: tuple[Pool, ...]
    on_error: OnError
    shutdown_timeout: float
    connect_timeout: float
    shedding: SheddingRules | None

    @property
    def asked(self) -> tuple[str, ...]:
        """The queues of which it matters who else consumes them."""
        rules = self.shedding
        return tuple(self.windows) if rules and rules.requeue and not rules.when_alone else ()

    @property
    def priorities(self) -> list[int]:
        """Priority of each worker, in descending order."""
        return [pool.priority for pool in self.pools for _ in range(pool.size)]

    @property
    def workers(self) -> int:
        """Number of workers in all pools."""
        return sum(pool.size for pool in self.pools)

    @property
    def lanes(self) -> int:
        """Number of fair queues that workers are divided over."""
        return self.workers if self.ordering_key is not None else 1


def make_settings(
    url: str | Sequence[str],
    queues: Mapping[str, int] | Sequence[str],
    *,
    prefetch: int | str | Mapping[str, int] | None = None,
    target_delay: float | None = None,
    max_buffer_bytes: int | None = None,
    anticipation: float | None = None,
    cost: str | Callable[[Message], int] | None = None,
    key: str | Callable[[Message], object] | None = None,
    weights: Mapping[Any, int] | None = None,
    default_weight: int = 1,
    ordering_key: str | Callable[[Message], object] | None = None,
    workers: Workers = 1,
    on_error: OnError = "requeue",
    shutdown_timeout: float = 25.0,
    connect_timeout: float = 30.0,
    codel: CoDel | None = None,
    codel_requeue: bool = True,
    codel_budget: int = 3,
    codel_when_alone: bool = False,
) -> Settings:
    """make_settings(url, queues, **options)
    --

    Check the arguments of a consumer.

    Parameters
    ----------
    url, queues, **options
        As `Consumer` documents them.

    Returns
    -------
    Settings
        The same, frozen.

    Raises
    ------
    ConfigurationError
        If any of them is not allowed; the message names the value and the rule.

    Notes
    -----
    O(number of queues and weights).
    """
    queue_weights = normalise(_named(queues))
    model = cost_model(cost)
    pools = as_pools(workers)
    lanes = _lanes(pools) if ordering_key is not None else 1
    units = {name: lanes * weight * model.unit / model.expected for name, weight in queue_weights.items()}
    auto = prefetch == AUTO
    if key is None:
        if weights is not None:
            raise ConfigurationError("weights= are weights of tenants and need key=; queues take theirs in queues=")
        quanta: dict[Hashable, int] = {name: weight * model.unit for name, weight in queue_weights.items()}
        default_quantum = None
    else:
        quanta, default_quantum = _tenants(weights or {}, default_weight, model.unit)
    return Settings(
        urls=check_urls(url),
        quanta=quanta,
        default_quantum=default_quantum,
        units=units,
        windows=start_windows(units, sum(pool.size for pool in pools))
        if auto
        else windows_for(prefetch, queue_weights, units),
        default_prefetch=prefetch is None,
        target_delay=_target_delay(target_delay, auto),
        max_buffer_bytes=_bytes(max_buffer_bytes),
        anticipation=None if anticipation is None else _seconds("anticipation", anticipation, 3600.0),
        key=None if key is None else key_function(key),
        ordering_key=None if ordering_key is None else key_function(ordering_key, "ordering_key"),
        cost=model,
        pools=pools,
        on_error=_on_error(on_error),
        shutdown_timeout=_seconds("shutdown_timeout", shutdown_timeout),
        connect_timeout=_seconds("connect_timeout", connect_timeout),
        shedding=shedding_rules(codel, codel_requeue, codel_budget, codel_when_alone, ordered=ordering_key is not None),
    )


def _named(queues: Mapping[str, int] | Sequence[str]) -> dict[str, int]:
    if isinstance(queues, str | bytes):
        raise ConfigurationError(f"queues must be a mapping of names to weights or a list of names, got {queues!r}")
    named = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    if not named:
        raise ConfigurationError("at least one queue is needed, got none")
    for name in named:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255:
            raise ConfigurationError(f"a queue name has 1 to 255 bytes of text, got {name!r}")
    if len(named) != len(queues):
        raise ConfigurationError(f"queues must differ, got {list(queues)!r}")
    return named


def _tenants(weights: Mapping[Any, int], default_weight: int, unit: int) -> tuple[dict[Hashable, int], int]:
    """Bring the weights of tenants and of everybody else into the smallest whole numbers together."""
    # The default takes part under a name that no tenant can have.
    everybody = object()
    together: dict[Any, int] = normalise({**weights, everybody: default_weight})  # type: ignore[dict-item]
    default_quantum = together.pop(everybody) * unit
    return {name: weight * unit for name, weight in together.items()}, default_quantum


def _lanes(pools: tuple[Pool, ...]) -> int:
    """Return the number of lanes: one for each worker, none of whom could take over for another."""
    priorities = sorted({pool.priority for pool in pools}, reverse=True)
    if len(priorities) > 1:
        raise ConfigurationError(
            "ordering_key gives every worker a lane of its own, so none can be of a higher priority than another; "
            f"workers must have one priority, got {', '.join(map(str, priorities))}"
        )
    return sum(pool.size for pool in pools)


def _on_error(value: OnError) -> OnError:
    if callable(value):
        check_plain(value, "on_error")
        return value
    if value in ON_ERROR:
        return value
    raise ConfigurationError(f"on_error must be one of {', '.join(ON_ERROR)} or a function, got {value!r}")


def _target_delay(value: float | None, auto: bool) -> float | None:
    if auto:
        return _seconds("target_delay", TARGET_DELAY if value is None else value)
    if value is not None:
        raise ConfigurationError(f'target_delay is for prefetch="auto", got {value!r} with another prefetch')
    return None


def _bytes(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigurationError(f"max_buffer_bytes must be a whole number of at least 1, got {value!r}")
    return value


def _seconds(name: str, value: float, longest: float = math.inf) -> float:
    # `not <=` also refuses NaN.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= longest or math.isinf(value):
        bounds = "0 or more" if math.isinf(longest) else f"0 to {longest:g}"
        raise ConfigurationError(f"{name} must be a number of seconds, {bounds}, got {value!r}")
    return float(value)
