"""Which messages of a queue an operator means: ``header:tenant=acme``, ``property:type~^mail``."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fairsched.config.weight_rules import compiled
from fairsched.consumer.keys import key_function
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

__all__ = ["Condition"]


class Condition:
    """A header or property, and the value that it must have.

    Parameters
    ----------
    text : str
        ``SOURCE=VALUE`` for exactly this value, or ``SOURCE~REGEX`` for a value in which the regular expression is
        found, and which is not empty. SOURCE is ``header:NAME`` or ``property:NAME``; the first ``=`` or ``~`` ends it.

    Raises
    ------
    ConfigurationError
        If `text` is neither, the property does not exist, or the expression is invalid.

    Notes
    -----
    Values are compared as text: numbers in decimal, booleans as ``true`` and ``false``. A message without the header
    has the value ``""``. Immutable. Safe from any thread.

    Examples
    --------
    >>> Condition("header:tenant=acme")
    Condition('header:tenant=acme')
    """

    def __init__(self, text: str) -> None:
        self._text = text
        found = re.match(r"([^=~]*)([=~])(.*)", text, re.DOTALL)
        if found is None:
            raise ConfigurationError(
                f"a condition must be such as header:tenant=acme, property:type=mail, or header:x-exception~^Timeout "
                f"with a regular expression, got {text!r}"
            )
        source, kind, wanted = found.groups()
        self._value_of = key_function(source, f"the source of condition {text!r}")
        self._matches: Callable[[str], object] = (
            wanted.__eq__ if kind == "=" else compiled(wanted, f"what follows ~ in condition {text!r}").search
        )

    def __repr__(self) -> str:
        return f"Condition({self._text!r})"

    def __call__(self, message: Message) -> bool:
        """Return whether a message is meant. O(length of its properties), and what the expression costs."""
        return bool(self._matches(_text_of(self._value_of(message))))


def _text_of(value: Hashable) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
