"""Columns that were made in C, as arrays of Arrow: pyarrow is an optional package, imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows, nulls, and the buffers: validity (None: all are there), offsets of 32 bits, data.
Column = tuple[int, int, tuple[bytes | None, bytes, bytes]]


def texts_or_numbers(kind: pa.DataType, column: Column) -> pa.Array:
    """Return a column of `fairsched._delivery` as Arrow has it: texts have offsets, numbers have not."""
    import pyarrow as pa

    rows, nulls, (there, offsets, data) = column
    parts = [there, data] if pa.types.is_primitive(kind) else [there, offsets, data]
    return pa.Array.from_buffers(kind, rows, [None if part is None else pa.py_buffer(part) for part in parts], nulls)
