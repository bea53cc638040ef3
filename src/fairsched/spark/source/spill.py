"""Rows that cannot be passed on yet, in a file of the task's own from the second piece on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa


class Spill:
    """Record batches of one schema, in order, of which no more than one is in memory.

    Notes
    -----
    The file has no name, and only its owner can read it. For one thread.
    """

    def __init__(self) -> None:
        self._first: pa.RecordBatch | None = None
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def __bool__(self) -> bool:
        return self._first is not None

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""
        if self._first is None:
            self._first = batch
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fairsched-")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Yield what was kept, and keep it no more."""
        first, file = self._first, self._file
        if self._writer is not None:
            self._writer.close()
        self._first = self._file = self._writer = None
        if first is not None:
            yield first
            del first
        if file is not None:
            with file:
                file.seek(0)
                yield from pa.ipc.open_stream(file)
