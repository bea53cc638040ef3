"""How long a message keeps a worker busy."""

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

#: With a deviation this many times the mean, a lognormal still has finite quantiles in a century.
_WIDEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A distribution of service times.

    Parameters
    ----------
    kind : {"constant", "exponential", "uniform", "lognormal"}
        Its shape.
    mean : float or str
        Seconds; not for a uniform one.
    low, high : float or str
        The ends of a uniform one, in seconds.
    cv : float
        Standard deviation over mean of a lognormal one: 0.5 is tame, 3 has a long tail.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or does not belong to the kind.

    Notes
    -----
    Immutable, hashable and picklable. What is drawn is rounded to nanoseconds.

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
        """Each takes `time` seconds."""
        return cls(kind="constant", mean=time)  # type: ignore[arg-type]  # converted, if it is text

    @classmethod
    def exponential(cls, mean: float | str) -> Self:
        """Without memory: `mean` seconds on average."""
        return cls(kind="exponential", mean=mean)  # type: ignore[arg-type]

    @classmethod
    def uniform(cls, low: float | str, high: float | str) -> Self:
        """Anything from `low` to `high` seconds."""
        return cls(kind="uniform", low=low, high=high)  # type: ignore[arg-type]

    @classmethod
    def lognormal(cls, mean: float | str, cv: float) -> Self:
        """Mostly short and sometimes long: `mean` seconds on average, `cv` times that the standard deviation."""
        return cls(kind="lognormal", mean=mean, cv=cv)  # type: ignore[arg-type]

    @classmethod
    def of(cls, value: object) -> Self:
        """Make a service out of a duration (constant) or a table.

        Parameters
        ----------
        value : Service, float, str or mapping
            Itself; seconds or text such as "4ms"; the fields, `kind` "constant" if left out.

        Returns
        -------
        Service
            It.

        Raises
        ------
        ConfigurationError
            It is none of these, or a field is not allowed.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls(**values.fields_of(value, "a service", ("kind", "mean", "low", "high", "cv")))
        return cls.constant(values.seconds(value, "a service", positive=True))

    @property
    def average(self) -> float:
        """Mean service time in seconds, whatever the kind."""
        return (self.low + self.high) / 2 if self.kind == "uniform" else self.mean

    def to_dict(self) -> dict[str, Any]:
        """List the fields that the kind has."""
        return {"kind": self.kind} | {field: getattr(self, field) for field in FIELDS[self.kind]}

    def numbers(self) -> tuple[float, float]:
        """Return the two parameters that the engine knows: nanoseconds, or mean and deviation of the logarithm."""
        if self.kind == "uniform":
            return self.low * 1e9, self.high * 1e9
        if self.kind == "lognormal":
            variance = math.log1p(self.cv * self.cv)
            return math.log(self.mean * 1e9) - variance / 2, math.sqrt(variance)
        return self.mean * 1e9, 0.0
