"""Tenants of a consumer with a `key`, with the options of each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal

from fairsched.config.parameters import check_parameters
from fairsched.config.weights import check_weight, is_weight
from fairsched.errors import ConfigurationError
from fairsched.scheduling.bands import DEFAULT_BAND, LAST_BAND, is_band
from fairsched.scheduling.limit import Limit, checked_limit

__all__ = ["OTHERS", "Tenant", "as_tenants", "weights_of"]

#: The name that stands for all tenants that are not named.
OTHERS = "*"


@dataclass(frozen=True)
class Tenant:
    """Weight, limit and band of a tenant of a consumer with a `key`.

    Parameters
    ----------
    weight : int, optional
        The tenant's weight, at least 1. By default that of ``"*"``, which is 1 by default.
    limit : Limit or sequence of Limit, or False, optional
        How many messages of the tenant are handled at a time, and how fast; False: no limit. By default that of
        ``"*"``, which has no limit by default. Two limits if one has a name and one has none: both hold.
    band : int, optional
        The tenant's strict band, from 0 to 7; 4 by default. While a message of a tenant of one band is buffered, no
        messages of later bands are handed to a handler, for as long as that lasts. Not for ``"*"``.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names it.

    Notes
    -----
    Immutable. Safe from any thread.

    Examples
    --------
    >>> tenants = {"acme": 10, "alarms": Tenant(band=0, limit=Limit(8)), "*": Tenant(limit=Limit(4))}
    """

    _: KW_ONLY
    weight: int | None = None
    limit: Limit | Sequence[Limit] | Literal[False] | None = None
    band: int | None = None

    def __post_init__(self) -> None:
        weight, band = self.weight, self.band
        if weight is not None and not is_weight(weight):
            raise ConfigurationError(f"weight of a tenant must be a whole number of at least 1, got {weight!r}")
        object.__setattr__(self, "limit", checked_limit(self.limit, "a tenant"))
        if band is not None and not is_band(band):
            raise ConfigurationError(
                f"band of a tenant must be a whole number from 0 (served first) to {LAST_BAND}, got {band!r}"
            )


def as_tenants(tenants: object) -> tuple[dict[Hashable, Tenant], Tenant]:
    """Convert the `tenants` option.

    Parameters
    ----------
    tenants : mapping or None
        By name of a tenant: its weight, a `Tenant`, or a mapping of the parameters of `Tenant`. The name ``"*"`` stands
        for all other tenants.

    Returns
    -------
    (dict, Tenant)
        The named tenants, and the one that stands for all others; each has a weight.

    Raises
    ------
    ConfigurationError
        If `tenants` is something else, or a value in it is invalid; the message names the tenant.

    Notes
    -----
    O(tenants). Safe from any thread.
    """
    if tenants is None:
        tenants = {}
    if not isinstance(tenants, Mapping):
        raise ConfigurationError(f"tenants must be a mapping of names to weights or Tenants, got {tenants!r}")
    found = {name: _tenant(name, value) for name, value in tenants.items()}
    others = found.pop(OTHERS, Tenant())
    if others.band is not None:
        raise ConfigurationError(
            f"band of tenant {OTHERS!r} must be None, got {others.band!r}: tenants without one have band {DEFAULT_BAND}"
        )
    others = replace(others, weight=others.weight or 1)
    return {
        name: tenant if tenant.weight is not None else replace(tenant, weight=others.weight)
        for name, tenant in found.items()
    }, others


def weights_of(tenants: Mapping[Hashable, Tenant]) -> dict[Any, int]:
    """Return the weight of each tenant that `as_tenants` returned."""
    return {name: tenant.weight or 1 for name, tenant in tenants.items()}


def _tenant(name: Any, value: Any) -> Tenant:
    if isinstance(value, Tenant):
        return value
    if not isinstance(value, Mapping):
        check_weight(name, value)
        return Tenant(weight=value)
    known = [option.name for option in fields(Tenant)]
    check_parameters("tenant", name, value, known)
    try:
        return Tenant(**value)
    except ConfigurationError as error:
        raise ConfigurationError(f"tenant {name!r}: {error}") from None
