"""Makes a session that shows a difference as small as it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from support.differences.operations import Operation, Session


def shrink(session: Session, shows: Callable[[Session], Session | None]) -> Session:
    """Return a small session that still shows the difference.

    `shows` returns a session that shows it, perhaps a shorter one, or None.
    """
    while True:
        smaller = without_operations(session, shows)
        smaller = with_simpler_operations(smaller, shows)
        if smaller == session:
            return session
        session = smaller


def without_operations(session: Session, shows: Callable[[Session], Session | None]) -> Session:
    """Remove operations, first many at a time."""
    size = max(len(session) // 2, 1)
    while size:
        place = 0
        while place < len(session):
            shorter = shows(session[:place] + session[place + size :])
            if shorter is None:
                place += size
            else:
                session = shorter
        size //= 2
    return session


def with_simpler_operations(session: Session, shows: Callable[[Session], Session | None]) -> Session:
    for place in range(len(session)):
        for simpler in simplified(session[place]):
            if place < len(session) and (found := shows([*session[:place], simpler, *session[place + 1 :]])):
                session = found
                return with_simpler_operations(session, shows)
    return session


def simplified(operation: Operation) -> Iterator[Operation]:
    """Return operations that are a little simpler."""
    if operation.on:
        yield replace(operation, on=0)
        if operation.on == 3:
            yield replace(operation, on=2)
    for one in fields(operation)[1:]:
        value = getattr(operation, one.name)
        default: Any = one.default if one.default_factory is MISSING else one.default_factory()
        if value != default:
            yield from (replace(operation, **{one.name: simpler}) for simpler in simpler_values(value, default))


def simpler_values(value: Any, default: Any) -> Iterator[Any]:
    yield default
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {other: one for other, one in value.items() if other != key}
            if isinstance(inner, dict | list) and inner:
                for simpler in simpler_values(inner, type(inner)()):
                    yield {**value, key: simpler}
    elif isinstance(value, list):
        for place in range(len(value)):
            yield value[:place] + value[place + 1 :]
    elif isinstance(value, int) and not isinstance(value, bool) and value > 2:
        yield value - 1
