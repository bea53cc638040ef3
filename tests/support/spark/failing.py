"""Queries that are to fail, and what they say then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.spark.queries import Rows, query
from support.waiting import eventually


def failure(frame: Any, checkpoint: Path, why: str, rows: Rows | None = None) -> str:
    """Run a query until it fails, and return what it says."""
    with query(frame, checkpoint, rows or Rows()) as running:
        return failure_of(running, why)


def failure_of(running: Any, why: str) -> str:
    """Wait until a running query fails, and return what it says."""
    eventually(lambda: running.exception() is not None, 120)
    said = str(running.exception())
    assert re.search(why, said), said
    return said
