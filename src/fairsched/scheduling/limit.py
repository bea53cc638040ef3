"""Limits of tenants and queues: how many of their messages are in hand at a time, and how fast they are handed out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fairsched.errors import ConfigurationError

__all__ = ["JointName", "Limit", "Limits", "checked_limit", "own_and_named"]

#: Seconds in the units of a rate.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_MOST = 2**31 - 1
_FASTEST = 1e9
#: A whole bucket fills in so many seconds at most.
_LONGEST = 365 * 86_400.0
#: Longest name, in characters.
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Limit:
    """Bound on how many messages of a tenant or queue are handled at a time, and how fast.

    Parameters
    ----------
    concurrency : int, optional
        Maximum number of messages in hand: handed out, but not yet settled.
    rate : float or str, optional
        Messages per second in the long run, at most 1e9; or text such as ``"10/s"``, ``"100/m"`` or ``"5/h"``.
    burst : int, optional
        With `rate`: messages that may be handed out at once after a pause. By default 1, so that messages are evenly
        spaced.
    scope : "process" or "group"
        What counts together: the messages of one process, or those of all processes whose consumers have the same
        ``share_group``.
    name : str, optional
        Queues or tenants whose limits have the same name are limited together: it is one limit. By default each queue
        or tenant is limited by itself. A name has at most 100 characters.

    Raises
    ------
    ConfigurationError
        If a value is invalid, or neither `concurrency` nor `rate` is given.

    Notes
    -----
    The rate is enforced by a token bucket: in any t seconds, at most burst + rate · t messages are handed out.

    Immutable. Safe from any thread.

    Examples
    --------
    >>> Limit(4)
    Limit(concurrency=4, rate=None, burst=None, scope='process', name=None)
    >>> Limit(rate="120/m", burst=10).per_second
    2.0
    """

    concurrency: int | None = None
    _: KW_ONLY
    rate: float | str | None = None
    burst: int | None = None
    scope: Literal["process", "group"] = "process"
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "burst"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= _MOST):
                raise ConfigurationError(f"{name} of a limit must be a whole number from 1 to {_MOST}, got {value!r}")
        if self.scope not in ("process", "group"):
            raise ConfigurationError(f"scope of a limit must be 'process' or 'group', got {self.scope!r}")
        if self.name is not None and not (isinstance(self.name, str) and 1 <= len(self.name) <= _LONGEST_NAME):
            raise ConfigurationError(
                f"name of a limit must be text of 1 to {_LONGEST_NAME} characters, got {self.name!r}"
            )
        if self.concurrency is None and self.rate is None:
            raise ConfigurationError("a limit needs a concurrency or a rate, got neither")
        if self.rate is None:
            if self.burst is not None:
                raise ConfigurationError(f"burst of a limit needs a rate, got burst={self.burst!r} alone")
            return
        rate = self.per_second
        if rate is None or not 0 < rate <= _FASTEST:
            raise ConfigurationError(
                f"rate of a limit must be a number of messages a second, more than 0 and at most {_FASTEST:g}, or text "
                f"such as 10/s, 100/m or 5/h, got {self.rate!r}"
            )
        if (self.burst or 1) / rate > _LONGEST:
            raise ConfigurationError(
                f"burst of a limit must be at most what its rate brings in a year, got burst={self.burst or 1} with "
                f"rate={self.rate!r}"
            )

    @property
    def per_second(self) -> float | None:
        """The rate in messages per second; None without a rate."""
        rate, seconds = self.rate, 1.0
        if isinstance(rate, str):
            number, _, unit = rate.partition("/")
            seconds = _UNITS.get(unit.strip().lower() if _ else "s", math.nan)
            try:
                rate = float(number)
            except ValueError:
                return math.nan
        if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool)):
            return math.nan
        try:
            return None if rate is None else float(rate) / seconds
        except OverflowError:  # a whole number beyond all floats
            return math.inf

    @property
    def interval_ns(self) -> int:
        """Nanoseconds until a token is replaced, rounded up; 0 without a rate."""
        rate = self.per_second
        return 0 if rate is None else math.ceil(1e9 / rate)


#: The limits of a slot: one, or one without a name and one with a name.
Limits = Limit | tuple[Limit, ...]


@dataclass(frozen=True, repr=False)
class JointName:
    """Name of a limit of several slots together, among the names of slots; None: of all slots.

    Not a text, so that no slot has the same name.
    """

    name: str | None

    def __str__(self) -> str:
        """Return the limit in words."""
        return "the total limit" if self.name is None else f"limit {self.name!r}"

    __repr__ = __str__


def checked_limit(limit: object, whose: str) -> Limits | Literal[False] | None:
    """Return the option `limit` of a queue or tenant, as what cannot change.

    Raises
    ------
    ConfigurationError
        If it is neither a limit, nor one without and one with a name, nor False or None.
    """
    if limit is None or limit is False:
        return False if limit is False else None
    try:
        found = tuple(one for one in own_and_named(limit) if one is not None)
    except ValueError as error:
        raise ConfigurationError(f"limit of {whose} must be a fairsched.Limit, two of them or False: {error}") from None
    return found[0] if len(found) == 1 else found or False


def own_and_named(limit: object) -> tuple[Limit | None, Limit | None]:
    """Return the limit that a slot has by itself, and the one that it has together with others.

    Parameters
    ----------
    limit : Limit, sequence of Limit, or None

    Raises
    ------
    ValueError
        If there are others than these, several without a name, or several with one.
    """
    given = () if limit is None else tuple(limit) if isinstance(limit, Sequence) else (limit,)
    for one in given:
        if not isinstance(one, Limit):
            raise ValueError(f"limit must be a fairsched.Limit or None, got {one!r}")
    own, named = [one for one in given if one.name is None], [one for one in given if one.name is not None]
    for several, what in ((own, "without a name"), (named, "with a name")):
        if len(several) > 1:
            raise ValueError(f"limit must have at most one Limit {what}, got {several[0]!r} and {several[1]!r}")
    return own[0] if own else None, named[0] if named else None
