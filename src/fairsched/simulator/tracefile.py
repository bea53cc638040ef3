"""Read recorded arrivals from CSV or Parquet, one time per row."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairsched.errors import ConfigurationError

#: Names by which a column of times is recognized.
_NAMES = ("time", "timestamp")


def read_times(path: Path, column: str | None) -> NDArray[np.float64]:
    """Read times, in seconds from the first, ascending.

    Parameters
    ----------
    path : Path
        A file that ends in .csv or .parquet.
    column : str or None
        The column; None: the only one, or the one called "time" or "timestamp".

    Returns
    -------
    numpy.ndarray of float64
        The first is 0.0.

    Raises
    ------
    ConfigurationError
        The file cannot be read, has no such column, or has a value that is not a time.
    ModuleNotFoundError
        The file is Parquet and pyarrow is not installed.

    Notes
    -----
    O(rows log rows).
    """
    readers = {".csv": _from_csv, ".parquet": _from_parquet}
    if path.suffix.lower() not in readers:
        raise ConfigurationError(f"a trace must be a file that ends in .csv or .parquet, got {str(path)!r}")
    try:
        moments = readers[path.suffix.lower()](path, column)
    except OSError as error:
        raise ConfigurationError(f"file {path} cannot be read: {error.strerror or error}") from None
    if not np.isfinite(moments).all():
        raise ConfigurationError(f"file {path} has a time that is missing or not finite")
    moments.sort()
    return moments - moments[0] if moments.size else moments


def _choose(names: list[str], column: str | None, path: Path) -> str:
    if column is None:
        found = [name for name in names if name.lower() in _NAMES]
        if len(names) == 1 or len(found) == 1:
            return found[0] if found else names[0]
        raise ConfigurationError(f"file {path} has the columns {', '.join(names)}; choose one with column")
    if column not in names:
        raise ConfigurationError(f"file {path} has no column {column!r}; known: {', '.join(names)}")
    return column


def _from_csv(path: Path, column: str | None) -> NDArray[np.float64]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        head = next(rows, None)
        if head is None:
            raise ConfigurationError(f"file {path} is empty")
        place = head.index(_choose(head, column, path))
        return np.array([_moment(row, place, path, rows.line_num) for row in rows if row], dtype=np.float64)


def _moment(row: list[str], place: int, path: Path, line: int) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"line {line} of file {path} must have a number of seconds or an ISO 8601 timestamp, got {text!r}"
        ) from None
    # Only differences count, so times without a zone are taken as UTC.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _from_parquet(path: Path, column: str | None) -> NDArray[np.float64]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading {path} needs pyarrow: pip install pyarrow, or save the trace as CSV", name=error.name
        ) from None
    try:
        file = pq.ParquetFile(path)
        name = _choose(file.schema_arrow.names, column, path)
        data = file.read(columns=[name]).column(name)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"file {path} is not valid Parquet: {error}") from None
    if pa.types.is_timestamp(data.type):
        # As nanoseconds since the first: a double cannot hold nanoseconds since 1970 exactly.
        moments = data.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy()
        return np.asarray((moments - moments.min()) / 1e9 if moments.size else moments, dtype=np.float64)
    if not (pa.types.is_integer(data.type) or pa.types.is_floating(data.type)):
        raise ConfigurationError(f"column {name!r} of file {path} must have numbers or timestamps, got {data.type}")
    return np.array(data.to_numpy(), dtype=np.float64)
