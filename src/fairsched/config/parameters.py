"""Queues, lanes and tenants given as mappings of their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fairsched.errors import ConfigurationError

__all__ = ["check_parameters"]


def check_parameters(kind: str, name: object, given: Iterable[object], known: Collection[str], hint: str = "") -> None:
    """Raise ConfigurationError for the first parameter of a queue, lanes or a tenant that does not exist."""
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"unknown {unknown!r} of {kind} {name!r}; there are {', '.join(known)}{hint}")
