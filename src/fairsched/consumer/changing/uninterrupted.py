"""Calls that no exception of a signal handler or of a time limit can leave half done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def uninterrupted(call: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own, and return or raise what it does.

    Parameters
    ----------
    call : callable
        A function of a few steps that must all be done or none. It must not wait for this thread.

    Returns
    -------
    object
        Its result.

    Raises
    ------
    BaseException
        What the function raised; or what interrupted this thread, such as KeyboardInterrupt. Then the function either
        is not called at all, or is called and runs to its end.

    Notes
    -----
    Python runs signal handlers in the main thread, between any two instructions, and a time limit raises in the thread
    of its handler in the same way; a new thread gets neither. Takes about 0.1 ms. Safe from any thread.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="fairsched-change", daemon=True).start()
    return found.result()
