"""Arrays of integers for the engine: checked, contiguous, with errors that name the value and the rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

AMOUNT_MAX = 2**62 - 1  # as in core/schedule/amount.pxd


def as_integers(values: ArrayLike, what: str, rule: str, low: int, high: int, *, copied: bool = True) -> NDArray[Any]:
    """Make a one-dimensional integer array whose values all lie in ``[low, high]``.

    A copy, since another thread may change the caller's array after it was checked. Without `copied`, the caller of
    this function must allow for that.

    Raises
    ------
    ValueError
        A value is no integer (NaN included), or the array has not one dimension.
    OverflowError
        An integer lies outside the range.
    """
    array = np.array(values) if copied else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{what} must be one-dimensional, got {array.ndim} dimensions")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        # Mixed or huge integers become float or object arrays: check the given values, not what numpy made of them.
        given: list[Any] = array.tolist() if isinstance(values, np.ndarray) else list(cast("Iterable[Any]", values))
        for value in given:
            if isinstance(value, (bool, np.bool_)) or not hasattr(type(value), "__index__"):
                raise ValueError(f"{what} must each be {rule}, got {value!r}")
        outside = [value for value in given if not low <= value <= high]
        if outside:
            raise OverflowError(f"{what} must each be {rule}, got {outside[0]}")
        return np.array(given, dtype=np.uint64 if high > AMOUNT_MAX else np.int64)
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise OverflowError(f"{what} must each be {rule}, got {value}")
    return array


def as_tokens(values: ArrayLike) -> NDArray[np.uint64]:
    """Make the contiguous array of tokens that the engine reads."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint64 and values.ndim == 1:
        return np.ascontiguousarray(values)  # every value is allowed
    array = as_integers(values, "tokens", "an integer from 0 to 2**64 - 1", 0, 2**64 - 1)
    return np.ascontiguousarray(array, dtype=np.uint64)


def as_costs(values: ArrayLike, size: int) -> NDArray[np.int64]:
    """Make the contiguous array of `size` costs that the engine reads."""
    array = as_integers(values, "costs", f"a positive integer of at most {AMOUNT_MAX}", -AMOUNT_MAX, AMOUNT_MAX)
    if array.size != size:
        raise ValueError(f"costs must have one value for each message: {size} messages, {array.size} costs")
    if size and array.min() <= 0:
        raise ValueError(f"costs must each be a positive integer, got {array.min()}")
    return np.ascontiguousarray(array, dtype=np.int64)


def as_moments(values: ArrayLike, what: str, size: int | None = None, least: int = -AMOUNT_MAX) -> NDArray[np.int64]:
    """Make the contiguous array of nanoseconds that the engine reads; with a `size`, a scalar is an array of one.

    The result may be the caller's own array, which may change after it was checked.
    """
    rule = "an integer number of nanoseconds within 2**62" if least else "an integer of 0 or more"
    if size is not None and np.ndim(values) == 0:
        values = cast("list[int]", [values])
        size = 1
    array = as_integers(values, what, rule, least, AMOUNT_MAX, copied=False)
    if size is not None and array.size != size:
        raise ValueError(f"{what} must be one value or one for each message: {size} messages, {array.size} values")
    return np.ascontiguousarray(array, dtype=np.int64)


def as_numbers(values: ArrayLike, what: str, size: int) -> NDArray[np.int64]:
    """Make the contiguous array of numbers of messages that the engine reads, as `as_moments` does."""
    return as_moments(values, what, size, least=0)
