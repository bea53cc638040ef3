"""Decoding bodies: what ``message.data`` is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched.consumer.handling.described import class_of, described
from fairsched.delivery.handlers import check_plain
from fairsched.errors import UndecodableBody

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

#: Errors whose text says where a body is wrong, and has nothing of it but a byte.
_PLAIN = (json.JSONDecodeError, UnicodeDecodeError)


class Decoder:
    """Decodes the body of a message.

    Parameters
    ----------
    decode : "json" or callable
        ``decode(body)`` returns what the bytes stand for, or raises.

    Raises
    ------
    ConfigurationError
        If it is a coroutine function or a generator function.

    Notes
    -----
    Safe from any thread if the callable is.
    """

    def __init__(self, decode: str | Callable[[bytes], Any]) -> None:
        if callable(decode):
            check_plain(decode, "decode")
        self._decode = decode if callable(decode) else json.loads

    def __call__(self, message: Message) -> Any:
        """Return what the body stands for; raise `UndecodableBody` if it cannot be decoded."""
        try:
            return self._decode(message.body)
        except MemoryError:
            raise  # which says more of this process than of the message
        except Exception as error:
            # What else an error says may be the body, and this goes to the log.
            text = described(error) if issubclass(type(error), _PLAIN) else class_of(error)
            raise UndecodableBody(message, text) from error
