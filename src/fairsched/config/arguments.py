"""Constructors that take the arguments of another function or class: the options of a consumer are written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from fairsched.config.consumer_options import did_you_mean

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
        A function or a class, called with the arguments of the constructor.

    Returns
    -------
    callable
        The decorator. Type checkers, `inspect.signature` and ``help()`` see the parameters of `make`, and what it says
        about them.

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
            check_names(kwargs, signature.parameters)
            signature.bind(*args, **kwargs)  # raises TypeError in the name of this class, not of `make`
            init(self, make(*args, **kwargs))

        # A dataclass documents its parameters itself, a constructor made here those of what it calls.
        written = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
        constructor.__doc__ = init.__doc__ or written.__doc__ or make.__doc__
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        constructor.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect looks for it
            parameters=[itself, *signature.parameters.values()], return_annotation=None
        )
        return constructor

    return decorate


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keyword arguments that do not exist, as Python does, with the name that was probably meant.

    Parameters
    ----------
    given, known : iterable of str
        Names.

    Raises
    ------
    TypeError
        For the first that is not known.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"got an unexpected keyword argument {name!r}: {did_you_mean(name, known)}")
