"""Priorities of messages: ``band=``, by header, property or function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.log_limit import LogLimit
from fairsched.delivery._delivery import MessagePriority
from fairsched.delivery.handlers import check_plain, check_result
from fairsched.errors import ConfigurationError, DecodingError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: The highest priority, which is served first; larger values count as this one.
HIGHEST = 9

#: The priority of a message without one, and of one whose value is no priority.
LOWEST = 0

#: The only property that is a priority.
_PROPERTY = "property:priority"


def band_function(spec: str | Callable[[Message], object]) -> Callable[[Message], int]:
    """Return the function that finds a message's priority, from 0 to 9.

    Parameters
    ----------
    spec : str or callable
        ``"property:priority"``, ``"header:NAME"`` or a function of the message.

    Returns
    -------
    callable
        Message to priority. It never raises: values above 9 are 9, a missing value is 0. Anything else, an exception of
        the user's function, and properties that cannot be decoded give 0, which is logged once a minute for each queue.

    Raises
    ------
    ConfigurationError
        If `spec` is none of these, or a coroutine function or a generator function.

    Notes
    -----
    The function runs in the I/O thread for every message, so it must be quick and must not block.
    """
    if callable(spec):
        check_plain(spec, "band")
        return _Guarded(spec)
    source, _, name = str(spec).partition(":")
    if spec == _PROPERTY:
        return MessagePriority(None, _Guarded(lambda message: message.properties.priority))
    if name and source == "header":
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ConfigurationError(f"band {spec!r}: the name of a header must be encodable as UTF-8")
        plain = _Guarded(lambda message: (message.properties.headers or {}).get(name))
        # Invalid UTF-8 in a name is read as this character, so that several names may be meant.
        return plain if "\ufffd" in name else MessagePriority(name, plain)
    raise ConfigurationError(f"band must be {_PROPERTY!r}, 'header:NAME' or a function of the message, got {spec!r}")


class _Guarded:
    """A function from a message to its priority that cannot stop the I/O thread."""

    __slots__ = ("_function", "_reports")

    def __init__(self, function: Callable[[Message], object]) -> None:
        self._function = function
        self._reports = LogLimit()

    def __call__(self, message: Message) -> int:
        try:
            found = self._function(message)
            if found is None:
                return LOWEST
            # Not the arithmetic of a subclass, which may run any code.
            number = int.__add__(found, 0) if isinstance(found, int) and not isinstance(found, bool) else -1
            if number >= LOWEST:
                return min(number, HIGHEST)
            check_result(found, "band")
            if self._reports.due(message.queue):
                # Its kind alone: the log shows no headers.
                kind = "a negative one" if type(found) is int else f"a value of type {type(found).__name__}"
                _log.warning(
                    "band of a message of queue %r must be a whole number from 0 to 9, got %s; such messages have the "
                    "lowest priority, 0", message.queue, kind,
                )  # fmt: skip
        except DecodingError as error:
            if self._reports.due(message.queue):
                _log.error(
                    "band of a message of queue %r: %s; the message has the lowest priority, 0", message.queue, error
                )
        except Exception as error:
            if self._reports.due(message.queue):
                _log.error(
                    "band function failed on a message of queue %r (%s); such messages have the lowest priority, 0",
                    message.queue, described(error), exc_info=shown(error),
                )  # fmt: skip
        return LOWEST
