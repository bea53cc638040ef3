"""Constructors that take the arguments of another function: what a consumer takes is said once, by `make_settings`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

_Self = TypeVar("_Self")
_Made = TypeVar("_Made")
_Arguments = ParamSpec("_Arguments")


def made_by(
    make: Callable[_Arguments, _Made],
) -> Callable[[Callable[[_Self, _Made], None]], Callable[Concatenate[_Self, _Arguments], None]]:
    """Decorate an ``__init__`` that takes what `make` returns, to take what `make` takes.

    Parameters
    ----------
    make : callable
        Called with the arguments of the constructor.

    Returns
    -------
    callable
        The decorator. Type checkers, `inspect.signature` and ``help()`` see the parameters of `make`.

    Raises
    ------
    TypeError
        By the constructor, for arguments that `make` does not have.

    Examples
    --------
    >>> class Clock:
    ...     @made_by(lambda hours, minutes=0: 60 * hours + minutes)
    ...     def __init__(self, time):
    ...         self.time = time
    >>> Clock(2, minutes=5).time
    125
    >>> inspect.signature(Clock)
    <Signature (hours, minutes=0) -> None>
    """

    def decorate(init: Callable[[_Self, _Made], None]) -> Callable[Concatenate[_Self, _Arguments], None]:
        signature = inspect.signature(make)

        @wraps(init)
        def constructor(self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            signature.bind(*args, **kwargs)  # what it refuses is not blamed on a function nobody called
            init(self, make(*args, **kwargs))

        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        constructor.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect looks for it
            parameters=[itself, *signature.parameters.values()], return_annotation=None
        )
        return constructor

    return decorate
