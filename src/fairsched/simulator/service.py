"""The service time of a message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fairsched.errors import ConfigurationError
from fairsched.simulator import values

__all__ = ["Service"]

#: The fields that each kind has.
FIELDS = {
    "constant": ("mean",),
    "exponential": ("mean",),
    "uniform": ("low", "high"),
    "lognormal": ("mean", "cv"),
}

#: Up to this ratio of standard deviation to mean, lognormal times stay finite for the longest simulation.
_WIDEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A distribution of service times.

    Parameters
    ----------
    kind : {"constant", "exponential", "uniform", "lognormal"}
        The distribution.
    mean : float or str
        Mean in seconds; not for "uniform".
    low, high : float or str
        Bounds of "uniform", in seconds.
    cv : float
        Coefficient of variation of "lognormal", standard deviation over mean: 3 has a long tail.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or does not belong to the kind.

    Notes
    -----
    Immutable, hashable and picklable. Times are rounded to nanoseconds.

    Examples
    --------
    >>> Service.constant("4ms").mean
    0.004
    >>> Service.of({"kind": "uniform", "low": "1ms", "high": "3ms"}).average
    0.002
    """

    kind: str = "constant"
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    cv: float = 0.0

    def __post_init__(self) -> None:
        values.choice(self.kind, "the kind of a service", FIELDS)
        for field in ("mean", "low", "high", "cv"):
            if field not in FIELDS[self.kind] and getattr(self, field) != 0.0:
                raise ConfigurationError(
                    f"a service of kind {self.kind!r} has no {field}; it has {', '.join(FIELDS[self.kind])}"
                )
        if self.kind == "uniform":
            low = values.seconds(self.low, "low of a service")
            high = values.seconds(self.high, "high of a service", positive=True)
            if low > high:
                raise ConfigurationError(f"low of a service must be at most its high, {high!r}, got {low!r}")
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)
            return
        object.__setattr__(self, "mean", values.seconds(self.mean, "mean of a service", positive=True))
        if self.kind == "lognormal":
            object.__setattr__(self, "cv", values.number(self.cv, "cv of a service", _WIDEST))

    @classmethod
    def constant(cls, time: float | str) -> Self:
        """Every message takes `time` seconds."""
        return cls(kind="constant", mean=time)  # type: ignore[arg-type]  # converted, if it is text

    @classmethod
    def exponential(cls, mean: float | str) -> Self:
        """Exponentially distributed, `mean` seconds on average."""
        return cls(kind="exponential", mean=mean)  # type: ignore[arg-type]

    @classmethod
    def uniform(cls, low: float | str, high: float | str) -> Self:
        """Uniformly distributed from `low` to `high` seconds."""
        return cls(kind="uniform", low=low, high=high)  # type: ignore[arg-type]

    @classmethod
    def lognormal(cls, mean: float | str, cv: float) -> Self:
        """Lognormal: `mean` seconds on average, with a standard deviation of `cv` times the mean."""
        return cls(kind="lognormal", mean=mean, cv=cv)  # type: ignore[arg-type]

    @classmethod
    def of(cls, value: object) -> Self:
        """Convert a duration (constant) or a table to a service time.

        Parameters
        ----------
        value : Service, float, str or mapping
            Returned as is; seconds or text such as "4ms"; or the fields, with `kind` "constant" by default.

        Returns
        -------
        Service
            The distribution.

        Raises
        ------
        ConfigurationError
            The value is of another type, or a field is not allowed.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls(**values.fields_of(value, "a service", ("kind", "mean", "low", "high", "cv")))
        return cls.constant(values.seconds(value, "a service", positive=True))

    @property
    def average(self) -> float:
        """Mean service time in seconds, for every kind."""
        return (self.low + self.high) / 2 if self.kind == "uniform" else self.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of this kind."""
        return {"kind": self.kind} | {field: getattr(self, field) for field in FIELDS[self.kind]}

    def numbers(self) -> tuple[float, float]:
        """Return the engine's two parameters: nanoseconds, or mean and standard deviation of the logarithm."""
        if self.kind == "uniform":
            return self.low * 1e9, self.high * 1e9
        if self.kind == "lognormal":
            variance = math.log1p(self.cv * self.cv)
            return math.log(self.mean * 1e9) - variance / 2, math.sqrt(variance)
        return self.mean * 1e9, 0.0
