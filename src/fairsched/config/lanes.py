"""Lanes: the queues over which the messages of one name are spread, and which of them a tenant's messages go to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from fairsched.amqp._properties import PROPERTY_NAMES
from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.parameters import check_parameters
from fairsched.config.queues import Queue, as_queues, thawed
from fairsched.errors import ConfigurationError
from fairsched.routing._ring import jump_hash, xxh64

__all__ = ["Lanes", "as_lanes", "queues_and_lanes"]

#: More buckets than this take longer to declare than they help.
MOST_BUCKETS = 1024
#: Bytes that the names of lanes need beside the name: ".tenant.#" and 16 digits, rounded up.
_SUFFIX = 32
#: Arguments by which a queue would lose messages, or which the lanes set themselves.
_REFUSED = ("x-expires", "x-single-active-consumer")


@dataclass(frozen=True)
class Lanes:
    """One name, many queues: the messages of `name` are spread over lanes, so that no tenant waits for another.

    The messages of a tenant go to one of a fixed number of buckets, by consistent hash. A tenant that publishes much
    more than others gets a lane of its own: a queue that is declared when it is needed, and deleted when it has been
    empty for a while.

    Parameters
    ----------
    name : str
        The name; lanes are queues called ``NAME.bucket.0``, …, and ``NAME.tenant.TENANT``. At most 223 bytes.
    key : str
        What says whose a message is: ``"header:NAME"`` or ``"property:NAME"``. Messages without it belong to the tenant
        ``""``.
    buckets : int
        How many buckets, from 1 to 1024. All programs that use the lanes must say the same, as they must for `key` and
        `ordered`: one that differs from those before it is refused at its start.
    ordered : bool
        Whether the messages of a tenant are handled in order, one at a time, over all processes. Then a lane is
        consumed by one process at a time, and no tenant has a lane of its own.
    arguments : mapping, optional
        Arguments that all lanes are declared with, such as ``{"x-queue-type": "quorum"}``. All programs that use the
        lanes must say the same.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names it.

    Notes
    -----
    Immutable. Safe from any thread.

    A tenant's bucket is found by jump hash (Lamping and Veach, 2014) of the XXH64 of its name: with another number of
    buckets most tenants keep theirs.

    Examples
    --------
    >>> lanes = Lanes("orders", key="header:tenant")
    >>> lanes.bucket_of("acme")
    'orders.bucket.1'
    >>> lanes.own_lane_of("acme"), lanes.own_lane_of("a b/c")
    ('orders.tenant.acme', 'orders.tenant.a%20b%2Fc')
    """

    name: str
    _: KW_ONLY
    key: str
    buckets: int = 16
    ordered: bool = False
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not (self.name and is_short_string(self.name) and len(self.name.encode()) <= LONGEST - _SUFFIX):
            raise ConfigurationError(f"a name of lanes has 1 to {LONGEST - _SUFFIX} bytes of text, got {self.name!r}")
        source, _, what = self.key.partition(":") if isinstance(self.key, str) else ("", "", "")
        if not (source == "header" and what) and not (source == "property" and what in _PROPERTIES):
            raise ConfigurationError(
                f"key of lanes {self.name!r} must be 'header:NAME' or 'property:NAME', got {self.key!r}"
            )
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int) or not 1 <= self.buckets <= MOST_BUCKETS:
            raise ConfigurationError(
                f"buckets of lanes {self.name!r} must be a whole number from 1 to {MOST_BUCKETS}, got {self.buckets!r}"
            )
        if not isinstance(self.ordered, bool):
            raise ConfigurationError(f"ordered of lanes {self.name!r} must be True or False, got {self.ordered!r}")
        self._check_arguments()

    def _check_arguments(self) -> None:
        if self.arguments is None:
            return
        if not isinstance(self.arguments, Mapping) or not all(isinstance(name, str) for name in self.arguments):
            raise ConfigurationError(
                f"arguments of lanes {self.name!r} must be a mapping of names to values, got {self.arguments!r}"
            )
        for name in _REFUSED:
            if name in self.arguments:
                raise ConfigurationError(
                    f"arguments of lanes {self.name!r} cannot have {name}, which "
                    + ("deletes messages" if name == "x-expires" else "ordered=True sets")
                )
        if self.arguments.get("x-queue-type") == "stream":
            raise ConfigurationError(f"arguments of lanes {self.name!r}: a lane cannot be a stream")
        object.__setattr__(self, "arguments", FrozenMapping(self.arguments))

    def bucket_of(self, tenant: object) -> str:
        """Return the name of the bucket of a tenant. O(length of its name).

        Parameters
        ----------
        tenant : hashable
            As the consumer's ``key=`` returns it. Tenants that are equal have the same bucket.

        Returns
        -------
        str
            The name of a queue.
        """
        return f"{self.name}.bucket.{jump_hash(xxh64(octets(tenant)), self.buckets)}"

    def own_lane_of(self, tenant: object) -> str:
        """Return the name of the lane that a tenant has for itself while it publishes much. O(length of its name).

        Parameters
        ----------
        tenant : hashable
            As for `bucket_of`.

        Returns
        -------
        str
            The name of a queue. Text is quoted as in URLs; a name that would be too long becomes its hash.
        """
        encoded = octets(tenant)
        text = quote(encoded, safe="")
        if len(self.name.encode()) + len(text) > LONGEST - _SUFFIX:
            text = f"#{xxh64(encoded):016x}"
        return f"{self.name}.tenant.{text}"

    def bucket_of_own_lane(self, lane: str) -> str:
        """Return the bucket of the tenant that a lane belongs to; of a name that is a hash, any one. O(length)."""
        return self.bucket_of(unquote_to_bytes(lane.removeprefix(f"{self.name}.tenant.")))

    def is_own_lane(self, queue: str) -> bool:
        """Whether a queue is named as the lane of a tenant alone."""
        return queue.startswith(f"{self.name}.tenant.")

    def is_lane(self, queue: str) -> bool:
        """Whether a queue is named as a bucket of these lanes or as the lane of a tenant alone."""
        return self.is_own_lane(queue) or queue.startswith(f"{self.name}.bucket.")

    def reserves(self, queue: str) -> bool:
        """Whether a queue is a bucket, named as the lane of a tenant alone, or the registry. O(buckets)."""
        return self.is_own_lane(queue) or queue in self.bucket_names or queue == self.registry

    @property
    def registry(self) -> str:
        """Name of the exchange on which lanes are announced, and of the queue that remembers them."""
        return f"{self.name}.lanes"

    @property
    def layout(self) -> str:
        """Name of the exchange whose argument tells the programs that use the lanes whether they agree on them."""
        return f"{self.name}.layout"

    @property
    def relay_lock(self) -> str:
        """Name of the exclusive queue that the one relay of ordered lanes has."""
        return f"{self.name}.relay"

    @property
    def bucket_names(self) -> list[str]:
        """Names of the buckets."""
        return [f"{self.name}.bucket.{number}" for number in range(self.buckets)]

    def queue(self, name: str, weight: int = 1) -> Queue:
        """Return a lane as a queue to consume, which is declared if it does not exist."""
        arguments = thawed(self.arguments or {})
        if self.ordered:
            arguments["x-single-active-consumer"] = True
        return Queue(name, weight=weight, durable=True, arguments=arguments)


_PROPERTIES = frozenset(PROPERTY_NAMES) - {"headers"}

#: Parameters by which the table of a name is recognised as one of lanes: no `Queue` has them.
LANES_ALONE = frozenset({"key", "buckets", "ordered"})


def as_lanes(name: Any, value: Any) -> Lanes | None:
    """Return the lanes that an entry of a mapping of queues describes; None if it describes a queue.

    Parameters
    ----------
    name : str
        The name that the entry stands under.
    value : object
        `Lanes`, or a mapping of their parameters, which has a ``key``.

    Raises
    ------
    ConfigurationError
        If a parameter is missing, unknown or invalid, or the lanes have another name.
    """
    if isinstance(value, Lanes):
        if value.name != name:
            raise ConfigurationError(f"lanes {value.name!r} stand under another name, {name!r}")
        return value
    if not isinstance(value, Mapping) or LANES_ALONE.isdisjoint(value):
        return None
    check_parameters("lanes", name, value, [option.name for option in fields(Lanes) if option.name != "name"])
    if "key" not in value:
        raise ConfigurationError(f"lanes {name!r} need a key, 'header:NAME' or 'property:NAME', got {dict(value)!r}")
    return Lanes(name, **value)


def queues_and_lanes(queues: object, weight: int = 1) -> tuple[dict[str, Queue], tuple[Lanes, ...]]:
    """Convert the `queues` option of a consumer.

    Parameters
    ----------
    queues : Lanes, mapping, or collection of str, Queue and Lanes
        As for `as_queues`; and `Lanes`, alone or among the queues, or in a mapping the parameters of `Lanes`.
    weight : int
        Weight of each bucket.

    Returns
    -------
    (dict of str to Queue, tuple of Lanes)
        The queues by name, with the buckets of all lanes; and the lanes.

    Raises
    ------
    ConfigurationError
        If `queues` is something else, a value in it is invalid, or two entries name the same queue.

    Notes
    -----
    O(queues and buckets). Safe from any thread.
    """
    plain: object = queues
    found: list[Lanes] = []
    if isinstance(queues, Lanes):
        plain, found = [], [queues]
    elif isinstance(queues, Mapping):
        lanes = {name: as_lanes(name, value) for name, value in queues.items()}
        found = [one for one in lanes.values() if one is not None]
        plain = {name: value for name, value in queues.items() if lanes[name] is None}
    elif isinstance(queues, Collection) and not isinstance(queues, str | bytes):
        found = [one for one in queues if isinstance(one, Lanes)]
        plain = [one for one in queues if not isinstance(one, Lanes)]
    if not found:
        return as_queues(queues), ()
    named = as_queues(plain) if plain else {}
    for one in found:
        _add_buckets(named, one, weight)
    return named, tuple(found)


def _add_buckets(queues: dict[str, Queue], lanes: Lanes, weight: int) -> None:
    """Add the buckets of lanes to the queues, none of which may be reserved by the lanes."""
    for name in queues:
        if lanes.reserves(name):
            kind = "the registry" if name == lanes.registry else "one"
            raise ConfigurationError(f"queues must differ, but queue {name!r} is {kind} of lanes {lanes.name!r}")
    queues.update({name: lanes.queue(name, weight) for name in lanes.bucket_names})


def octets(tenant: object) -> bytes:
    """Return bytes that stand for a tenant: the same for values that are equal, which are one slot of a consumer."""
    if isinstance(tenant, str):
        return tenant.encode("utf-8", "surrogatepass")
    if isinstance(tenant, bytes | bytearray):
        return bytes(tenant)
    if isinstance(tenant, int) or (_is_finite(tenant) and tenant == int(tenant)):  # type: ignore[call-overload]
        return b"%d" % int(tenant)  # type: ignore[call-overload]
    return b"" if tenant is None else ascii(tenant).encode()


def _is_finite(tenant: object) -> bool:
    if isinstance(tenant, Decimal):
        return tenant.is_finite()  # a signalling NaN is no float
    return isinstance(tenant, float) and math.isfinite(tenant)
