"""Arrival processes of queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from fairsched.errors import ConfigurationError
from fairsched.simulator import values
from fairsched.simulator.tracefile import read_times

__all__ = ["Arrivals"]

#: The fields that each kind has.
FIELDS: dict[str, tuple[str, ...]] = {
    "backlogged": (),
    "none": (),
    "constant": ("rate",),
    "poisson": ("rate",),
    "bursts": ("rate", "on", "off", "random"),
    "trace": ("times",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process.

    Parameters
    ----------
    kind : {"backlogged", "none", "constant", "poisson", "bursts", "trace"}
        Never empty; only the initial depth; evenly spaced; Poisson; bursts and pauses; recorded times.
    rate : float
        Messages per second; for bursts, the rate within a burst.
    on, off : float or str
        Length of a burst and of the pause after it, in seconds.
    random : bool
        Bursts and pauses have exponentially distributed lengths and Poisson arrivals; otherwise both are constant.
    times : bytes
        Times of a trace: nanoseconds, ascending, as native int64; made by `trace`.

    Raises
    ------
    ConfigurationError
        A value is not allowed, or does not belong to the kind.

    Notes
    -----
    Immutable, hashable and picklable. The first message of a constant process arrives one interval after the start.

    Examples
    --------
    >>> Arrivals.trace([0.5, 1.25]).kind
    'trace'
    """

    kind: str = "backlogged"
    rate: float = 0.0
    on: float = 0.0
    off: float = 0.0
    random: bool = False
    times: bytes = b""

    def __post_init__(self) -> None:
        values.choice(self.kind, "the kind of arrivals", FIELDS)
        for field, empty in (("rate", 0.0), ("on", 0.0), ("off", 0.0), ("random", False), ("times", b"")):
            if field not in FIELDS[self.kind] and getattr(self, field) != empty:
                has = ", ".join(FIELDS[self.kind]) or "no fields"
                raise ConfigurationError(f"arrivals of kind {self.kind!r} have no {field}; they have {has}")
        if "rate" in FIELDS[self.kind]:
            object.__setattr__(self, "rate", values.rate(self.rate, "rate of arrivals"))
        if self.kind == "bursts":
            object.__setattr__(self, "on", values.seconds(self.on, "on of arrivals", positive=True))
            object.__setattr__(self, "off", values.seconds(self.off, "off of arrivals"))
            values.flag(self.random, "random of arrivals")
        if self.kind == "bursts" and not self.random and self.on * self.rate < 1:
            raise ConfigurationError(
                f"a burst of {self.on:g} s at {self.rate:g} per second has no message; on * rate must be at least 1"
            )
        if not isinstance(self.times, bytes) or len(self.times) % 8:
            raise ConfigurationError("times of arrivals must be packed by Arrivals.trace")

    @classmethod
    def backlogged(cls) -> Self:
        """Keep the queue from ever running empty."""
        return cls(kind="backlogged")

    @classmethod
    def none(cls) -> Self:
        """Add nothing to the messages there at the start."""
        return cls(kind="none")

    @classmethod
    def constant(cls, rate: float) -> Self:
        """`rate` messages per second, evenly spaced."""
        return cls(kind="constant", rate=rate)

    @classmethod
    def poisson(cls, rate: float) -> Self:
        """Poisson arrivals, `rate` messages per second on average."""
        return cls(kind="poisson", rate=rate)

    @classmethod
    def bursts(cls, rate: float, on: float | str, off: float | str, *, random: bool = True) -> Self:
        """`rate` messages per second for `on` seconds, then none for `off` seconds, and so on."""
        return cls(kind="bursts", rate=rate, on=on, off=off, random=random)  # type: ignore[arg-type]

    @classmethod
    def trace(cls, times: ArrayLike) -> Self:
        """Messages at the given times.

        Parameters
        ----------
        times : array-like of float, shape (n,)
            Seconds from the start, ascending, not negative. Stored as eight bytes each.

        Returns
        -------
        Arrivals
            Of kind "trace".

        Raises
        ------
        ConfigurationError
            A time is negative, not finite, or earlier than its predecessor.
        """
        moments = np.asarray(times, dtype=np.float64)
        if moments.ndim != 1:
            raise ConfigurationError(f"times of arrivals must be one-dimensional, got {moments.ndim} dimensions")
        wrong = np.flatnonzero(~((moments >= 0.0) & (moments <= values.LONGEST)))
        if wrong.size:
            raise ConfigurationError(
                f"times of arrivals must be from 0 to {values.LONGEST:g} seconds, got {float(moments[wrong[0]])!r}"
            )
        falls = np.flatnonzero(np.diff(moments) < 0)
        if falls.size:
            before, after = moments[falls[0] : falls[0] + 2].tolist()
            raise ConfigurationError(f"times of arrivals must ascend, got {after!r} after {before!r}")
        return cls(kind="trace", times=np.rint(moments * 1e9).astype(np.int64).tobytes())

    @classmethod
    def from_file(cls, path: str | Path, column: str | None = None) -> Self:
        """Messages at the times in a CSV or Parquet file, one per row.

        Parameters
        ----------
        path : path
            ``.csv`` (seconds, or ISO 8601 timestamps) or ``.parquet`` (numbers of seconds, or timestamps). Parquet
            requires pyarrow.
        column : str, optional
            The column to read; by default the only column, or the one called "time" or "timestamp".

        Returns
        -------
        Arrivals
            Of kind "trace", shifted so that the first message arrives at 0.

        Raises
        ------
        ConfigurationError
            The file cannot be read or parsed.
        ModuleNotFoundError
            The file is Parquet and pyarrow is not installed.

        Notes
        -----
        O(rows). Rows need not be in order.
        """
        return cls.trace(read_times(Path(path), column))

    @classmethod
    def of(cls, value: object, directory: Path | None = None) -> Self:
        """Convert a table, or the name of a kind without required fields, to arrivals.

        Parameters
        ----------
        value : Arrivals, str or mapping
            Returned as is; "backlogged" or "none"; or the fields. A trace has `times`, or `path` and maybe `column`.
        directory : Path, optional
            Directory for a relative `path`; the current one by default.

        Returns
        -------
        Arrivals
            The arrival process.

        Raises
        ------
        ConfigurationError
            The value is of another type, or a field is not allowed.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(kind=value)
        table = values.fields_of(value, "arrivals", ("kind", "rate", "on", "off", "random", "times", "path", "column"))
        if table.get("kind") != "trace":
            for key in ("path", "column"):
                if key in table:
                    raise ConfigurationError(f"arrivals of kind {table.get('kind', 'backlogged')!r} have no {key}")
            return cls(**table)
        if ("times" in table) == ("path" in table):
            raise ConfigurationError("a trace of arrivals has either times or a path")
        if "path" in table:
            path = Path(values.name(table["path"], "path of arrivals"))
            return cls.from_file((directory or Path()) / path, table.get("column"))
        times = table["times"]
        if isinstance(times, bytes):
            return cls(kind="trace", times=times)
        if not isinstance(times, Iterable) or isinstance(times, str | Mapping):
            raise ConfigurationError(f"times of arrivals must be a list of seconds, got {times!r}")
        return cls.trace([values.seconds(time, "times of arrivals") for time in times])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of this kind; times in seconds."""
        table = {"kind": self.kind} | {field: getattr(self, field) for field in FIELDS[self.kind]}
        if self.kind == "trace":
            table["times"] = (np.frombuffer(self.times, dtype=np.int64) / 1e9).tolist()
        return table
