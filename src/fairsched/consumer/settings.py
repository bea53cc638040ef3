"""Values derived from a consumer's options: quanta, prefetch windows, pools of workers, functions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.amqp.urls import check_urls
from fairsched.config.arguments import made_by
from fairsched.config.consumer_options import TARGET_DELAY, ConsumerOptions
from fairsched.config.lanes import Lanes, queues_and_lanes
from fairsched.config.pools import as_pools
from fairsched.config.queue_source import without_source
from fairsched.config.queues import Queue
from fairsched.config.retry import Retry
from fairsched.config.tenants import OTHERS, Tenant, as_tenants, weights_of
from fairsched.config.weights import check_weight, normalise, quanta_of
from fairsched.consumer.cost import cost_model
from fairsched.consumer.handling.decoding import Decoder
from fairsched.consumer.handling.retries import delay_queue
from fairsched.consumer.keys import key_function
from fairsched.consumer.message_bands import band_function
from fairsched.consumer.prefetch.arithmetic import default_window, windows_for
from fairsched.consumer.prefetch.auto import start_windows
from fairsched.consumer.requeueing.codel_returns import checked_codel
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError
from fairsched.prefetch import LARGEST_PREFETCH
from fairsched.scheduling._arrays import AMOUNT_MAX
from fairsched.scheduling.limit import JointName, Limit, Limits, own_and_named

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: What `on_error` may be.
OnError = str | Callable[["Message", Exception], object]

#: Largest quantum the engine accepts.
LARGEST_QUANTUM = AMOUNT_MAX

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")

#: The prefetch that is found by measuring.
AUTO = "auto"


class ConsumerSettings:
    """Checked options of a consumer, and the values derived from them.

    Parameters
    ----------
    url, queues, **options
        As `ConsumerOptions` documents them.

    Attributes
    ----------
    options : ConsumerOptions
        As given. What needs no computation is read from here.
    urls : tuple of str
        Brokers in the order in which they are tried.
    weights : dict
        Weight per queue, as given.
    tenants : dict
        The `Tenant` of each name, as given, with its weight.
    others : Tenant
        The weight and limit of all other tenants.
    divisor : int
        Greatest common divisor of the weights of the queues.
    quanta : dict
        Quantum per slot that is known beforehand: queues, or tenants with a weight.
    default_quantum : int or None
        Quantum of any other tenant; None when slots are queues.
    units : dict
        Messages that a queue is served per round of all worker queues, for the arithmetic of windows.
    windows : dict
        Unsettled messages per queue.
    default_prefetch : bool
        Whether the windows are the default: then they are chosen anew for each connection, once handlers were measured.
    target_delay : float or None
        Seconds that a message may wait here for ``prefetch="auto"``; None: the windows stay as they are.
    queues : dict of str to Queue
        The options of each queue, the buckets of lanes included.
    lanes : tuple of Lanes
        The lanes among the queues.
    source : QueueSource or None
        Says which other queues to consume.
    policies : dict of str to (str or callable)
        The `on_error` of each queue that has its own.
    retries : dict of str to Retry
        Of each queue whose messages are retried.
    codel : CoDel or None
        Which messages wait here too long, and what happens to them.
    limits : dict
        Limit, or both limits, of each queue or tenant that has a limit of its own; None: no limit, in place of
        `default_limit`.
    default_limit : Limit, tuple of Limit, or None
        Limit of each tenant that has none of its own.
    joint_limits : dict
        By `JointName`, the limits that several queues or tenants have together.
    bands : dict
        Band of each queue or tenant for which one is said.
    pools : tuple of Pool
        The workers, by descending priority.
    key, subkey, ordering_key : callable or None
        From a message to its tenant, to whose it is among those of the tenant or queue, or to the sequence it belongs
        to.
    band : callable or None
        From a message to its priority, from 0 to 9.
    decode : Decoder or None
        From a message to what its body stands for.
    middleware : tuple of callable
        The outermost first.
    cost : ConstantCost
        From a message to what it is charged.

    Raises
    ------
    ConfigurationError
        If an option is not allowed; the message names the value and the rule.

    Notes
    -----
    O(number of queues and weights). Not changed once made: safe from any thread.
    """

    #: Whether compiled code reads the deliveries from the connection instead of pika. None: if this version of pika
    #: allows it; True: the start fails if it does not. Only tests set it.
    fast: bool | None = None
    #: Seconds per turn to wait for a queue whose messages are in flight; None: by the round trip. Only tests and
    #: benchmarks set it.
    anticipation: float | None = None

    @made_by(ConsumerOptions)
    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.urls = check_urls(options.url)
        self.pools = as_pools(options.workers)
        self.cost = cost_model(options.cost, by_subkey=options.subkey is not None)
        self.tenants, self.others = as_tenants(options.tenants)
        fixed, self.source = without_source(options.queues)
        # None without a source is no queue at all, which is an error.
        is_fixed = fixed is not None or self.source is None
        self.queues, self.lanes = queues_and_lanes(fixed, self.others.weight or 1) if is_fixed else ({}, ())
        key = _key(options.key, self.lanes)
        self.key = None if key in (None, "queue") else key_function(key)
        self.subkey = None if options.subkey is None else key_function(options.subkey, "subkey")
        ordering = _ordering_key(options.ordering_key, self.lanes)
        self.ordering_key = None if ordering is None else key_function(ordering, "ordering_key")
        self.band = None if options.band is None else band_function(options.band)
        if callable(options.on_error):
            check_plain(options.on_error, "on_error")
        if self.source is not None and isinstance(options.prefetch, Mapping):
            raise ConfigurationError(
                f"prefetch with a source of queues must not name queues, got {options.prefetch!r}; say it of each: "
                "Queue(NAME, prefetch=N)"
            )
        if options.tenants is not None and self.key is None:
            raise ConfigurationError("tenants= needs key=; queues have weights, limits and bands in queues=")
        self.weights = {name: queue.weight for name, queue in self.queues.items()}
        self.quanta, self.default_quantum = self._quanta()
        _check_quanta(self.quanta)
        if self.key is not None:
            _refuse_of_queues(self.queues)
        self.limits, self.default_limit = self._limits(), self.others.limit or None
        self.joint_limits = _joint_limits(self)
        self.bands = self._bands()
        _check_band(self, self.bands)
        _check_worker_queues(self)
        _check_group_limits(self)
        self.default_prefetch = options.prefetch is None
        self.decode = None if options.decode is None else Decoder(options.decode)
        self.middleware = _middleware(options.middleware)
        self.target_delay = _target_delay(options.target_delay, options.prefetch == AUTO)
        self._find_units()
        if not self.queues:  # for its checks
            _windows(options.prefetch, {}, {"": 1}, {"": 1.0}, self.workers)
        self.windows = self._windows(options.prefetch) if self.queues else {}
        _refuse_changing_windows(options.max_buffer_bytes, self.queues)
        #: Queue that the connection must have for itself before anything is consumed; None: there is no such queue.
        self.lock: str | None = None
        self.policies = _policies(self.queues)
        self.retries = _retries(options.retry, self.queues)
        self.time_limits = _time_limits(options.time_limit, self.queues)
        self.codel = checked_codel(options.codel, ordered=self.ordering_key is not None)

    def _quanta(self) -> tuple[dict[Hashable, int], int | None]:
        """Return the quanta of the slots that are known, and that of any other."""
        unit = self.cost.unit
        if self.key is not None:
            assert self.others.weight is not None
            return quanta_of(weights_of(self.tenants), self.others.weight, unit)
        return {name: weight * unit for name, weight in normalise(self.weights).items()}, None

    @property
    def has_group_limits(self) -> bool:
        """Whether a limit counts the messages of all processes of the share group."""
        return any(one.scope == "group" for one in self.all_limits())

    def all_limits(self) -> list[Limit]:
        """Return the limits of all slots, and the total. O(slots)."""
        return _single_limits(self.options.limit, self.default_limit, *self.limits.values())

    def limits_of(self, slot: Hashable) -> list[Limit]:
        """Return all limits of a slot, and the total."""
        return _single_limits(self.options.limit, self.limits.get(slot, self.default_limit))

    def limit_of(self, slot: Hashable) -> Limit | None:
        """Return the limit that a slot has by itself, or that goes by a `JointName`; None if there is none."""
        if type(slot) is JointName:
            return self.joint_limits.get(slot)
        return own_and_named(self.limits.get(slot, self.default_limit))[0]

    def _limits(self) -> dict[Hashable, Limits | None]:
        """Return the limits that queues or tenants have of their own."""
        return _own_limits(self.queues if self.key is None else self.tenants)

    def _bands(self) -> dict[Hashable, int]:
        """Return the bands that queues or tenants have of their own."""
        return _own_bands(self.queues if self.key is None else self.tenants)

    def _find_units(self) -> None:
        """Set the number of messages that each queue is served per round, by its weight."""
        self.divisor = math.gcd(*self.weights.values())
        self.units = {name: self._unit(name) for name in self.weights}

    def _windows(self, prefetch: Any) -> dict[str, int]:
        """Return the window of each queue, by its weight."""
        return _windows(prefetch, self.queues, normalise(self.weights), self.units, self.workers)

    def _later_prefetch(self) -> Any:
        """Return the `prefetch` option for the present queues, which are others than at the start."""
        prefetch = self.options.prefetch
        if isinstance(prefetch, Mapping):
            own = {name: queue.prefetch for name, queue in self.queues.items()}
            missing = [name for name, window in own.items() if window is None and name not in prefetch]
            if missing:
                raise ConfigurationError(
                    f"prefetch names a window for each queue, so queue {missing[0]!r} needs one, too: "
                    f"Queue({missing[0]!r}, prefetch=N)"
                )
            return {name: prefetch.get(name, window) for name, window in own.items()}
        return min(prefetch, LARGEST_PREFETCH * len(self.queues)) if isinstance(prefetch, int) else prefetch

    def reweighed(self, changes: Mapping[Any, int]) -> ConsumerSettings:
        """Return a copy with other weights of some queues, or with a `key` of some tenants.

        Parameters
        ----------
        changes : mapping
            Weights by name.

        Returns
        -------
        ConsumerSettings
            With other quanta, units and windows; all else is shared.

        Raises
        ------
        ConfigurationError
            If a queue is not consumed, or a weight is not allowed.

        Notes
        -----
        O(number of queues and weights).
        """
        found = copy.copy(self)
        if self.key is not None:
            found.quanta = {**self.quanta, **{name: self._tenant_quantum(name, changes[name]) for name in changes}}
            tenants = {name: replace(self.tenants.get(name, Tenant()), weight=changes[name]) for name in changes}
            found.tenants = {**self.tenants, **tenants}
            _check_quanta(found.quanta)
            found._reweigh_own_lanes(changes)
            return found
        unknown = [name for name in changes if name not in self.weights]
        if unknown:
            raise ConfigurationError(f"queue {unknown[0]!r} is not consumed; there are {', '.join(self.weights)}")
        found.weights = {**self.weights, **changes}
        found.quanta, _ = found._quanta()
        _check_quanta(found.quanta)
        found._find_units()
        found.windows = found._windows(found._later_prefetch())
        return found

    def _reweigh_own_lanes(self, changes: Mapping[Any, int]) -> None:
        """Give lanes of single tenants the windows that go with other weights of these. O(lanes, changes)."""
        weights = {
            lane: weight
            for tenant, weight in changes.items()
            for lanes in self.lanes
            if not lanes.ordered and (lane := lanes.own_lane_of(tenant)) in self.weights
        }
        if weights:
            before = copy.copy(self)
            self.weights = {**self.weights, **weights}
            self._rescale(before, weights)
            windows = {lane: self._later_window(self.queues[lane]) for lane in weights}
            self.windows = {**self.windows, **windows}

    def with_queues(self, added: Mapping[str, Queue]) -> ConsumerSettings:
        """Return a copy that consumes more queues.

        Parameters
        ----------
        added : mapping of str to Queue
            Queues that are not consumed yet.

        Returns
        -------
        ConsumerSettings
            The windows of the other queues are as before. Each new queue has the window that it would have if all
            queues had been there from the start.

        Raises
        ------
        ConfigurationError
            If a queue is consumed already, or cannot be consumed with these options.

        Notes
        -----
        O(number of queues).
        """
        for name in added:
            if name in self.queues:
                raise ConfigurationError(f"queue {name!r} is consumed already")
        _refuse_changing_windows(self.options.max_buffer_bytes, added)
        found = copy.copy(self)
        found.queues = {**self.queues, **added}
        found.retries = {**self.retries, **_retries(self.options.retry, added)}
        if found.retries:
            _check_names(found.retries, found.queues)
        found.weights = {**self.weights, **{name: queue.weight for name, queue in added.items()}}
        found.policies = {**self.policies, **_policies(added)}
        found.time_limits = {**self.time_limits, **_time_limits(self.options.time_limit, added)}
        if self.key is None:
            found.limits = {**self.limits, **_own_limits(added)}
            found.joint_limits = _joint_limits(found)
            found.bands = {**self.bands, **_own_bands(added)}
        else:
            _refuse_of_queues(added)
        _check_band(found, {} if self.key is not None else _own_bands(added))
        _check_worker_queues(found)
        _check_group_limits(found)
        found._rescale(self, added)
        found.windows = {**self.windows, **{name: found._later_window(queue) for name, queue in added.items()}}
        return found

    def without_queues(self, removed: Collection[str]) -> ConsumerSettings:
        """Return a copy that does not consume some of the queues; the windows of the others are as before.

        O(number of queues).
        """
        found = copy.copy(self)
        found.queues, found.weights = _without(self.queues, removed), _without(self.weights, removed)
        found.retries, found.policies = _without(self.retries, removed), _without(self.policies, removed)
        found.time_limits, found.windows = _without(self.time_limits, removed), _without(self.windows, removed)
        found.units = _without(self.units, removed)
        if self.key is None:
            found.limits, found.bands = _without(self.limits, removed), _without(self.bands, removed)
            found.quanta = _without(self.quanta, removed)
        found._rescale(self, ())
        return found

    def _rescale(self, before: ConsumerSettings, added: Collection[str]) -> None:
        """Set units and quanta: of all queues if the divisor of their weights is another, else of the added ones."""
        self.divisor = math.gcd(*self.weights.values())
        kept = self.divisor == before.divisor
        names = added if kept else self.weights
        units = {name: self._unit(name) for name in names}
        self.units = {**self.units, **units} if kept else units
        if self.key is None:
            quanta: dict[Hashable, int] = {name: self.weights[name] // self.divisor * self.cost.unit for name in names}
            self.quanta = {**self.quanta, **quanta} if kept else quanta
            _check_quanta(quanta)

    def _unit(self, name: str) -> float:
        """Return the number of messages that a queue is served per round, by its weight."""
        return self.worker_queues * self.cost.unit * (self.weights[name] // self.divisor) / self.cost.expected

    def _later_window(self, queue: Queue) -> int:
        """Return the window of a queue that is added: its own, or its part among all queues."""
        prefetch, name = self.options.prefetch, queue.name
        if queue.own_window is not None and (prefetch != AUTO or queue.needs_one_window):
            return queue.own_window
        if prefetch is None:
            return default_window(self.units[name], sum(self.units.values()), len(self.units))
        if isinstance(prefetch, int):
            part = prefetch * self.weights[name] // sum(self.weights.values())
            return max(1, min(LARGEST_PREFETCH, part))
        whole = _windows(self._later_prefetch(), {name: queue}, {name: 1}, {name: 1.0}, self.workers)
        return whole[name]

    def _tenant_quantum(self, name: object, weight: int) -> int:
        """Return the quantum of a tenant: that of tenants without a weight stays, so theirs is the scale."""
        check_weight(name, weight)
        if name == OTHERS:
            raise ConfigurationError(
                f"weight of {OTHERS!r}, all other tenants, cannot change while the consumer runs, got {weight}"
            )
        assert self.default_quantum is not None
        assert self.others.weight is not None
        quantum, rest = divmod(weight * self.default_quantum, self.others.weight)
        if rest:
            least = self.others.weight // math.gcd(self.default_quantum, self.others.weight)
            raise ConfigurationError(
                f"weight of {name!r} must be a multiple of {least}, as the weights at the start are, got {weight}"
            )
        return quantum

    def is_lasting(self, queue: str) -> bool:
        """Return whether a queue is none of the lanes of single tenants, which come and go. O(lanes)."""
        return not any(lanes.is_own_lane(queue) for lanes in self.lanes)

    def is_lane(self, queue: str) -> bool:
        """Return whether a queue is a lane, which may be left and consumed again. O(lanes)."""
        return any(lanes.is_lane(queue) for lanes in self.lanes)

    def check_no_lane(self, queue: object) -> None:
        """Raise ConfigurationError for a queue that lanes add and remove themselves. O(buckets)."""
        for lanes in self.lanes:
            if isinstance(queue, str) and lanes.reserves(queue):
                raise ConfigurationError(
                    f"queue {queue!r} belongs to lanes {lanes.name!r}, which are consumed together: it cannot be added "
                    "or removed, only paused"
                )

    def home_of(self, queue: str) -> str:
        """Return the queue to which messages of a queue come back after a delay: itself, or for a lane of a tenant
        alone, which may be deleted meanwhile, a bucket. O(lanes).
        """
        for lanes in self.lanes:
            if lanes.is_own_lane(queue):
                return lanes.bucket_of_own_lane(queue)
        return queue

    @property
    def asked(self) -> tuple[str, ...]:
        """The queues whose consumers the broker is asked to count, because CoDel requeues only if there is another."""
        return tuple(self.windows) if self.asks else ()

    @property
    def asks(self) -> bool:
        """Whether the broker is asked to count the consumers of queues."""
        codel = self.codel
        return bool(codel and codel.requeue and not codel.when_alone)

    @property
    def priorities(self) -> list[int]:
        """Priority of each worker, in descending order."""
        return [pool.priority for pool in self.pools for _ in range(pool.size)]

    @property
    def workers(self) -> int:
        """Number of workers in all pools."""
        return sum(pool.size for pool in self.pools)

    @property
    def worker_queues(self) -> int:
        """Number of fair queues that workers are divided over."""
        return self.workers if self.ordering_key is not None else 1


def _key(key: Any, lanes: Sequence[Lanes]) -> Any:
    """Return the `key` option of a consumer: by default that of its lanes, which no other may contradict."""
    for one in lanes:
        if key in (None, "queue"):
            key = one.key
        elif key != one.key:
            other = f"that of lanes {lanes[0].name!r}" if key == lanes[0].key else "that of the consumer"
            raise ConfigurationError(
                f"key of lanes {one.name!r} is {one.key!r}, but {other} is {key!r}: they must be the same, since all "
                "messages of a consumer have turns by one key"
            )
    return key


def _ordering_key(ordering_key: Any, lanes: Sequence[Lanes]) -> Any:
    """Return the `ordering_key` option of a consumer: that of lanes that keep their order is their key."""
    for one in lanes:
        if one.ordered and ordering_key not in (None, one.key):
            raise ConfigurationError(
                f"ordering_key must be the key of lanes {one.name!r}, which keep the order of {one.key!r}, "
                f"got {ordering_key!r}"
            )
    return next((one.key for one in lanes if one.ordered), ordering_key)


def _single_limits(*given: Limit | Sequence[Limit] | None) -> list[Limit]:
    """Return the limits of which each of these consists."""
    return [one for limits in given for one in own_and_named(limits) if one is not None]


def _joint_limits(settings: ConsumerSettings) -> dict[Hashable, Limit]:
    """Return the limits of several slots together, by name; refuse names that are defined twice, and the total's."""
    total = settings.options.limit
    if total is not None and not isinstance(total, Limit):
        raise ConfigurationError(f"limit of a consumer must be a fairsched.Limit or None, got {total!r}")
    if total is not None and total.name is not None:
        raise ConfigurationError(
            f"limit of a consumer is of all its messages and has no name, got name={total.name!r}; name the limits of "
            "queues or tenants"
        )
    found: dict[Hashable, Limit] = {} if total is None else {JointName(None): total}
    for limit in settings.all_limits():
        if limit.name is not None and found.setdefault(JointName(limit.name), limit) != limit:
            raise ConfigurationError(
                f"limit {limit.name!r} must be the same wherever it is used, got {found[JointName(limit.name)]!r} and "
                f"{limit!r}"
            )
    return found


def _own_limits(slots: Mapping[Any, Queue | Tenant]) -> dict[Hashable, Limits | None]:
    """Return the limit of each slot that has one of its own, or says that it has none."""
    return {name: cast(Limits | None, one.limit or None) for name, one in slots.items() if one.limit is not None}


def _own_bands(slots: Mapping[Any, Queue | Tenant]) -> dict[Hashable, int]:
    """Return the band of each slot for which one is said."""
    return {name: one.band for name, one in slots.items() if one.band is not None}


def _refuse_of_queues(queues: Mapping[str, Queue]) -> None:
    """Raise ConfigurationError if a queue has an option that, with a `key`, only tenants have."""
    for option in ("limit", "band"):
        named = [name for name, queue in queues.items() if getattr(queue, option) is not None]
        if named:
            raise ConfigurationError(
                f"{option} of queue {named[0]!r} is for consumers without key=; with key=, use tenants="
            )


def _refuse_changing_windows(max_buffer_bytes: int | None, queues: Mapping[str, Queue]) -> None:
    """Raise ConfigurationError if the window of a queue must not change, and windows follow the sizes of messages."""
    for name, queue in queues.items():
        if not queue.has_fixed_window or max_buffer_bytes is None:
            continue
        if queue.needs_one_window:
            raise ConfigurationError(
                f"max_buffer_bytes={max_buffer_bytes} cannot bound queue {name!r}, a quorum queue with a single active "
                "consumer: it keeps its order only if its window never changes"
            )
        raise ConfigurationError(
            f"{'exclusive' if queue.exclusive else 'offset'} of queue {name!r} cannot be combined with "
            f"max_buffer_bytes={max_buffer_bytes}, which changes windows by another consumer of the queue; bound its "
            "messages with Queue(prefetch=N) alone"
        )


def _without(values: Mapping[_Name, _Value], names: Collection[str]) -> dict[_Name, _Value]:
    return {name: value for name, value in values.items() if name not in names}


def _windows(
    prefetch: Any, queues: Mapping[str, Queue], weights: Mapping[str, int], units: dict[str, float], workers: int
) -> dict[str, int]:
    """Return the window of each queue."""
    own = {name: queue.prefetch for name, queue in queues.items() if queue.prefetch is not None}
    if isinstance(prefetch, Mapping):
        return {**windows_for(prefetch, weights, units), **own}
    if prefetch == AUTO and own:
        raise ConfigurationError(f'prefetch="auto" is for all queues, but {", ".join(own)} has its own prefetch')
    found = start_windows(units, workers) if prefetch == AUTO else windows_for(prefetch, weights, units)
    return {**found, **{name: queue.own_window for name, queue in queues.items() if queue.own_window is not None}}


def _policies(queues: Mapping[str, Queue]) -> dict[str, OnError]:
    """Return what is said of failures for a queue alone."""
    return {name: queue.on_error for name, queue in queues.items() if queue.on_error is not None}


def _time_limits(everywhere: float | None, queues: Mapping[str, Queue]) -> dict[str, float]:
    """Return the seconds for which a handler may run, for each queue that has a limit."""
    limits = {name: everywhere if queue.time_limit is None else queue.time_limit for name, queue in queues.items()}
    return {name: limit for name, limit in limits.items() if limit}


def _retries(everywhere: Retry | None, queues: Mapping[str, Queue]) -> dict[str, Retry]:
    """Return what each queue is told of retries."""
    if everywhere is not None and not isinstance(everywhere, Retry):
        raise ConfigurationError(f"retry must be a fairsched.Retry or None, got {everywhere!r}")
    found = {}
    for name, queue in queues.items():
        retry = everywhere if queue.retry is None and queue.on_error is None and not queue.is_stream else queue.retry
        if retry:
            if retry.dead_letter is None and queue.dead_letter is not None:
                retry = replace(retry, dead_letter=queue.dead_letter)
            found[name] = retry
    _check_names(found, queues)
    return found


def _check_names(retries: Mapping[str, Retry], queues: Collection[str]) -> None:
    """Check that every queue that retries need can have its name, and is for nothing else."""
    waiting: dict[str, str] = {}
    for queue, retry in retries.items():
        for name in sorted({delay_queue(queue, delay) for delay in retry.all_delays()}):
            _check_name(name, queues)
            other = waiting.setdefault(name, queue)
            if other != queue:
                raise ConfigurationError(f"retries of queues {other!r} and {queue!r} both need queue {name!r}")
    for queue, retry in retries.items():
        dead = retry.dead_letters_of(queue)
        if dead is not None:
            _check_name(dead, queues)
            if dead in waiting:
                raise ConfigurationError(
                    f"dead_letter of queue {queue!r} must be another queue than {dead!r}, in which messages of queue "
                    f"{waiting[dead]!r} wait for their retry"
                )


def _check_name(name: str, queues: Collection[str]) -> None:
    if not is_short_string(name):
        raise ConfigurationError(
            f"retry needs a queue called {name!r}, but a queue name has at most {LONGEST} bytes of text"
        )
    if name in queues:
        raise ConfigurationError(f"retry needs queue {name!r} for itself, but it is to be consumed")


def _middleware(functions: Sequence[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    if not isinstance(functions, list | tuple) or not all(map(callable, functions)):
        raise ConfigurationError(f"middleware must be a list of functions, got {functions!r}")
    return tuple(functions)


def _check_quanta(quanta: Mapping[Hashable, int]) -> None:
    """Refuse what the engine would, before any of it is changed."""
    for name, quantum in quanta.items():
        if quantum > LARGEST_QUANTUM:
            raise ConfigurationError(f"weight of {name!r} is too large: its quantum would be {quantum}")


def _check_worker_queues(settings: ConsumerSettings) -> None:
    """Check that, with an ordering key, no worker is to take over for another."""
    priorities = sorted({pool.priority for pool in settings.pools}, reverse=True)
    if settings.ordering_key is not None and len(priorities) > 1:
        raise ConfigurationError(
            "ordering_key gives every worker a queue of its own, so none can have a higher priority than another; "
            f"workers must have one priority, got {', '.join(map(str, priorities))}"
        )
    if settings.worker_queues > 1 and settings.all_limits():
        raise ConfigurationError(
            f"a limit cannot be combined with ordering_key and workers={settings.workers}: each worker has its own "
            f"worker queue, and a {'queue' if settings.key is None else 'tenant'} cannot be limited across them"
        )


def _check_band(settings: ConsumerSettings, bands: Mapping[Hashable, int]) -> None:
    """Check that, with priorities of messages, no option needs another order, or accounts without priorities."""
    options = settings.options
    if settings.band is None:
        return
    if settings.ordering_key is not None:
        raise ConfigurationError(
            f"band={options.band!r} cannot be combined with ordering_key, or with lanes that keep their order: "
            "messages of a higher priority overtake others of the same key"
        )
    if options.subkey is not None:
        raise ConfigurationError(
            f"band={options.band!r} cannot be combined with subkey={options.subkey!r}: a subkey's messages keep their "
            "order"
        )
    for name in bands:
        slot = "queue" if settings.key is None else "tenant"
        raise ConfigurationError(
            f"band of {slot} {name!r} cannot be combined with band={options.band!r} of the consumer: the priority of "
            "each message decides when it is served"
        )


def _check_group_limits(settings: ConsumerSettings) -> None:
    """Check that limits of a group have one."""
    if settings.has_group_limits and settings.options.share_group is None:
        raise ConfigurationError(
            "a limit with scope='group' needs share_group, the name of the group whose processes count together, got "
            "share_group=None"
        )


def _target_delay(value: float | None, auto: bool) -> float | None:
    if auto:
        return TARGET_DELAY if value is None else value
    if value is not None:
        raise ConfigurationError(f'target_delay is for prefetch="auto", got {value!r} with another prefetch')
    return None
