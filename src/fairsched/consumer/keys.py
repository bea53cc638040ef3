"""Tenants and ordering keys: ``key=``, ``subkey=`` and ``ordering_key=``, by header, property or function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fairsched.amqp.properties import PROPERTY_NAMES
from fairsched.config.keyvalue import NO_KEY, hashable
from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.log_limit import LogLimit
from fairsched.delivery._delivery import HeaderKey
from fairsched.delivery.handlers import check_plain, check_result
from fairsched.errors import ConfigurationError, DecodingError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Properties of a message that can serve as a key.
PROPERTIES = frozenset(PROPERTY_NAMES) - {"headers"}

Key = Callable[["Message"], Hashable]

#: What most keys are.
_ORDINARY = (str, bytes, int)


def key_function(spec: str | Callable[[Message], object], option: str = "key") -> Key:
    """Return the function that names a message's tenant, or the sequence it belongs to.

    Parameters
    ----------
    spec : str or callable
        ``"header:NAME"``, ``"property:NAME"`` or a function of the message.
    option : str
        What to call it in messages.

    Returns
    -------
    callable
        Message to hashable; a missing key gives ``""``. It never raises: an exception of the user's function, and
        properties that cannot be decoded, are logged once a minute for each queue, and the message gets the key ``""``.

    Raises
    ------
    ConfigurationError
        If `spec` is none of these, a coroutine function or a generator function, or names a property that messages do
        not have.

    Notes
    -----
    The function runs in the I/O thread for every message, so it must be quick and must not block.
    """
    if callable(spec):
        check_plain(spec, option)
        return _Guarded(spec, option)
    source, _, name = str(spec).partition(":")
    if name and source == "header":
        plain = _Guarded(lambda message: _header(message, name), option)
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ConfigurationError(f"{option} {spec!r}: the name of a header must be encodable as UTF-8")
        # What is no UTF-8 in a name is read as this character, so that several names may be meant.
        return plain if "\ufffd" in name else HeaderKey(name, plain)
    if name and source == "property":
        if name not in PROPERTIES:
            raise ConfigurationError(f"{option} {spec!r}: no such property; there are {', '.join(sorted(PROPERTIES))}")
        return _Guarded(lambda message: getattr(message.properties, name, None), option)
    raise ConfigurationError(
        f"{option} must be 'header:NAME', 'property:NAME' or a function of the message, got {spec!r}"
    )


def _header(message: Message, name: str) -> object:
    headers = message.properties.headers
    return headers.get(name) if headers else None


class _Guarded:
    """A key function that cannot stop the I/O thread."""

    __slots__ = ("_function", "_option", "_reports")

    def __init__(self, function: Callable[[Message], object], option: str) -> None:
        self._function = function
        self._option = option
        self._reports = LogLimit()

    def __call__(self, message: Message) -> Hashable:
        try:
            key = hashable(self._function(message))
            if not isinstance(key, _ORDINARY):
                # Coroutines can be hashed, too: each message would be a tenant of its own.
                check_result(key, self._option)
            hash(key)
        except DecodingError as error:
            if self._reports.due(message.queue):
                _log.error("%s of a message of queue %r: %s; it gets none", self._option, message.queue, error)
            return NO_KEY
        except Exception as error:
            if self._reports.due(message.queue):
                _log.error(
                    "%s function failed on a message of queue %r (%s); such messages get no key",
                    self._option, message.queue, described(error), exc_info=shown(error),
                )  # fmt: skip
            return NO_KEY
        return key
