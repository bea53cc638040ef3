"""Functions that a source of queues makes anew for each answer: they differ every time, and mean the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from fairsched.config.retry import Retry

if TYPE_CHECKING:
    from fairsched.config.queues import Queue


def with_first_functions(first: Queue, queue: Queue) -> Queue:
    """Return a queue with the functions of an earlier answer in place of those that the same code has made again.

    Parameters
    ----------
    first : Queue
        The queue as it is consumed.
    queue : Queue
        The queue in a later answer.

    Returns
    -------
    Queue
        Equal to `first` if nothing else differs.

    Notes
    -----
    O(1). Safe from any thread.
    """
    if _is_made_anew(first.on_error, queue.on_error):
        queue = replace(queue, on_error=first.on_error)
    if (
        isinstance(first.retry, Retry)
        and isinstance(queue.retry, Retry)
        and _is_made_anew(first.retry.on, queue.retry.on)
    ):
        queue = replace(queue, retry=replace(queue.retry, on=first.retry.on))
    return queue


def _is_made_anew(first: Any, other: Any) -> bool:
    return callable(first) and callable(other) and not isinstance(first, type) and _origin(first) is _origin(other)


def _origin(function: Any) -> object:
    """Return the code of a function, or the class of another object that can be called."""
    while isinstance(function, partial | MethodType):
        function = function.func if isinstance(function, partial) else function.__func__
    return getattr(function, "__code__", type(function))
