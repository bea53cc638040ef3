"""Whose message is it: the ``key=`` and ``ordering_key=`` of a consumer, from a header, a property or a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.consumer.message import Message

_log = logging.getLogger(__name__)

#: The key of messages that carry no key.
NOBODY = ""

#: Properties of a message that can serve as a key.
PROPERTIES = frozenset(
    {
        "app_id",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    }
)

Key = Callable[["Message"], Hashable]


def key_function(spec: str | Callable[[Message], object], option: str = "key") -> Key:
    """key_function(spec, option="key")
    --

    Return the function that names a message's tenant, or the sequence it belongs to.

    Parameters
    ----------
    spec : str or callable
        ``"header:NAME"``, ``"property:NAME"`` or a function of the message.
    option : str
        What to call it in messages.

    Returns
    -------
    callable
        Message to hashable; a missing key gives ``""``. It never raises: an exception of the user's function is
        logged once and the message counts as nobody's.

    Raises
    ------
    ConfigurationError
        If `spec` is neither form, or names a property that messages do not have.

    Notes
    -----
    The function runs in the I/O thread for every message, so it must be quick and must not block.
    """
    if callable(spec):
        return _Guarded(spec, option)
    source, _, name = str(spec).partition(":")
    if name and source == "header":
        return lambda message: _hashable(_header(message, name))
    if name and source == "property":
        if name not in PROPERTIES:
            raise ConfigurationError(f"{option} {spec!r}: no such property; there are {', '.join(sorted(PROPERTIES))}")
        return lambda message: _hashable(getattr(message.properties, name, None))
    raise ConfigurationError(
        f"{option} must be 'header:NAME', 'property:NAME' or a function of the message, got {spec!r}"
    )


def _header(message: Message, name: str) -> object:
    headers = message.properties.headers
    return headers.get(name) if headers else None


def _hashable(value: object) -> Hashable:
    """Return a value that can be a key: tables and lists, which a header may hold, become their text."""
    if value is None:
        return NOBODY
    return repr(value) if isinstance(value, list | dict | bytearray) else value


class _Guarded:
    """A user's key function that cannot stop the I/O thread."""

    __slots__ = ("_function", "_option", "_reported")

    def __init__(self, function: Callable[[Message], object], option: str) -> None:
        self._function = function
        self._option = option
        self._reported = False

    def __call__(self, message: Message) -> Hashable:
        try:
            key = _hashable(self._function(message))
            hash(key)
        except Exception:
            if not self._reported:
                self._reported = True
                _log.exception(
                    "%s function failed on a message of queue %r; such messages get no key", self._option, message.queue
                )
            return NOBODY
        return key
