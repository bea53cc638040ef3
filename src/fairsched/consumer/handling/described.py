"""Exceptions of handlers in the log: their classes may have methods and attributes that raise."""

from __future__ import annotations

from traceback import TracebackException
from types import TracebackType

#: The attributes as Python itself sets them, whatever a class makes of their names.
_name_of = type.__dict__["__name__"].__get__
_traceback_of = BaseException.__dict__["__traceback__"].__get__

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def class_of(error: BaseException) -> str:
    """Return the name of the class of an exception."""
    return str(_name_of(type(error)))


def described(error: BaseException) -> str:
    """Return class and text of an exception; the class alone if the text cannot be had."""
    name = class_of(error)
    try:
        return f"{name}: {error}"
    except Exception:
        return name


def shown(error: BaseException) -> _ExcInfo | None:
    """Return what `logging` takes as `exc_info`; None if the traceback cannot be formatted."""
    found = (type(error), error, _traceback_of(error))
    try:
        "".join(TracebackException(*found).format())
    except Exception:
        return None
    return found
