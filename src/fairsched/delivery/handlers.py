"""Kinds of functions that users give: plain ones, whose call does the work, and coroutine or generator functions.

A call of a coroutine function or of a generator function runs nothing of it. Who acknowledged a message on its return
would lose the message, so such a function is refused when it is given, and what it returns is when a call returns it.
"""

from __future__ import annotations

import contextlib
import inspect
from functools import partial
from types import MethodType, WrapperDescriptorType
from typing import Any

from fairsched.errors import ConfigurationError

_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = "coroutine", "generator", "asynchronous generator"
#: Objects with `__call__` inside objects with `__call__` that are looked into.
_DEEPEST = 20


def check_plain(function: Any, what: str) -> None:
    """Refuse what is no function whose call does the work.

    Parameters
    ----------
    function : object
        As the user gave it.
    what : str
        What to call it in messages.

    Raises
    ------
    ConfigurationError
        It cannot be called, or it is a coroutine function or generator function, also behind `functools.partial`, as
        a method, or as the ``__call__`` of an object.

    Notes
    -----
    A decorator may run what it wraps, so only the outermost function counts: `check_result` sees what it returns.
    """
    kind = _kind(function, what)
    if kind:
        remedy = "write it without yield" if kind != _COROUTINE else "write it without async"
        if kind == _COROUTINE and what.startswith("handler"):
            remedy = "fairsched.aio.Consumer awaits such handlers"
        raise ConfigurationError(
            f"{what} must be a plain function, got the {kind} function {_name(function)}, of which a call runs "
            f"nothing; {remedy}"
        )


def is_coroutine_handler(handler: Any) -> bool:
    """Tell whether a handler for asyncio is a coroutine function; if not, it is a plain one.

    Parameters
    ----------
    handler : object
        As the user gave it.

    Returns
    -------
    bool
        Whether a call makes a coroutine.

    Raises
    ------
    ConfigurationError
        It cannot be called, or it is a generator function.
    """
    kind = _kind(handler, "handler")
    if kind in (_GENERATOR, _ASYNC_GENERATOR):
        raise ConfigurationError(
            f"handler must be a plain function or a coroutine function, got the {kind} function {_name(handler)}, of "
            "which a call runs nothing; write it without yield"
        )
    return kind == _COROUTINE


def check_result(result: object, what: str) -> None:
    """Refuse what a function returned in place of doing the work.

    Parameters
    ----------
    result : object
        Closed if it is refused and can be.
    what : str
        What to call the function in messages.

    Raises
    ------
    ConfigurationError
        It is a coroutine or another awaitable, or a generator.

    Notes
    -----
    O(1). To be called for results other than None, which nearly all are.
    """
    if inspect.isasyncgen(result):
        kind, remedy = _ASYNC_GENERATOR, "iterate over it"
    elif inspect.isawaitable(result):
        kind, remedy = _COROUTINE, "await it in a coroutine function, which takes fairsched.aio.Consumer"
    elif inspect.isgenerator(result):
        kind, remedy = _GENERATOR, "iterate over it"
    else:
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        with contextlib.suppress(Exception):  # one that began may object
            result.close()
    raise ConfigurationError(f"{what} returned the {kind} {_name(result)}, which nothing runs; {remedy}")


def _kind(function: Any, what: str) -> str:
    """Return which kind of function it is; empty for a plain one."""
    if not callable(function):
        raise ConfigurationError(f"{what} must be a function, got {function!r}")
    for _ in range(_DEEPEST):
        if isinstance(function, partial | MethodType):
            function = function.func if isinstance(function, partial) else function.__func__
            continue
        if inspect.iscoroutinefunction(function):
            return _COROUTINE
        if inspect.isasyncgenfunction(function):
            return _ASYNC_GENERATOR
        if inspect.isgeneratorfunction(function):
            # `types.coroutine` makes coroutine functions of generator functions.
            is_coroutine = function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE
            return _COROUTINE if is_coroutine else _GENERATOR
        if inspect.isroutine(function) or inspect.isclass(function):
            break
        function = type(function).__call__
        if isinstance(function, WrapperDescriptorType):
            break
    return ""


def _name(function: Any) -> str:
    """Name a function, or an object by its class: what it shows of itself may be long, or secret."""
    while isinstance(function, partial):
        function = function.func
    found = getattr(function, "__qualname__", None)
    return repr(found) if isinstance(found, str) else f"object of {type(function).__qualname__!r}"
