"""Recorded arrivals from Parquet; here, because the wheels are tested without pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairsched.errors import ConfigurationError
from fairsched.simulator import Arrivals


def test_a_trace_from_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "time": pa.array([1_500_000_000_000_000_500, 1_500_000_000_000_000_000, 1_500_000_002_000_000_000]).cast(
                pa.timestamp("ns")
            ),
            "seconds": [10.5, 10.0, 12.0],
            "text": ["a", "b", "c"],
        }
    )
    pq.write_table(table, tmp_path / "trace.parquet")
    assert Arrivals.from_file(tmp_path / "trace.parquet") == Arrivals.trace([0, 0.0000005, 2])
    assert Arrivals.from_file(tmp_path / "trace.parquet", "seconds") == Arrivals.trace([0, 0.5, 2])
    with pytest.raises(ConfigurationError, match="must have numbers or timestamps, got string"):
        Arrivals.from_file(tmp_path / "trace.parquet", "text")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match="is not valid Parquet"):
        Arrivals.from_file(tmp_path / "bad.parquet")
