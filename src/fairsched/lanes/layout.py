"""The layout of lanes at the broker: whether all programs have the same buckets, key and order.

The first program that uses lanes declares an exchange for them, which no message is published to. Its argument
``alternate-exchange`` is the layout: of all arguments of an exchange, this is the one that the broker compares when
another program declares the exchange, and it refuses a difference. The exchange is durable, so a consumer is compared
with a producer that has ended, too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched.errors import ConfigurationError, RequestRefused

if TYPE_CHECKING:
    from fairsched.amqp.session import Session
    from fairsched.config.lanes import Lanes

__all__ = ["disagreement", "layout_problem", "layout_request"]

_REFUSED = re.compile(r"inequivalent arg 'alternate-exchange' for exchange '")
#: The layout of other programs, in the words of RabbitMQ 3 and 4. A text of the broker has 255 bytes at most: its end
#: may be missing.
_CURRENT = r"but current is (?:the value )?'{}/(\d+)/((?:header|property):.*?)(/ordered)?'(?: of type '|[^']*$)"


class _Layout(NamedTuple):
    """The properties of lanes on which all programs must agree."""

    buckets: str
    key: str
    ordered: str = "False"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


def layout_request(lanes: Lanes) -> dict[str, Any]:
    """Return the arguments of ``exchange.declare`` that declare the layout of lanes. O(length of their name).

    Parameters
    ----------
    lanes : Lanes
        The lanes.

    Returns
    -------
    dict
        Arguments by name, as pika's channels take them.
    """
    # It begins with the name of the exchange, to which a user of the lanes may write; and is short, since the broker
    # quotes it twice.
    text = f"{lanes.layout}/{lanes.buckets}/{lanes.key}" + ("/ordered" if lanes.ordered else "")
    return {
        "exchange": lanes.layout,
        "exchange_type": "direct",
        "durable": True,
        "arguments": {"alternate-exchange": text},
    }


def disagreement(lanes: Lanes, refusal: str) -> ConfigurationError | None:
    """Return the error if a refusal says that another program uses the lanes differently.

    Parameters
    ----------
    lanes : Lanes
        The lanes.
    refusal : str
        Text with which the broker refused `layout_request`.

    Returns
    -------
    ConfigurationError or None
        None: the refusal has another reason, such as a missing permission.

    Notes
    -----
    O(length). Safe from any thread.
    """
    if _REFUSED.search(refusal) is None:
        return None
    here = _Layout(str(lanes.buckets), repr(lanes.key), str(lanes.ordered))
    there = _other_layout(refusal, lanes)
    return ConfigurationError(
        f"lanes {lanes.name!r} have {here} here, but other programs use them with "
        + (f"{there}" if there else f"other values ({refusal})")
        + ". Give all programs the same; to change it for all of them, stop them, empty the lanes, and delete the "
        f"exchange {lanes.layout!r}"
    )


def layout_problem(session: Session, lanes: Lanes) -> ConfigurationError | None:
    """Ask the broker whether other programs use lanes differently.

    Parameters
    ----------
    session : Session
        A connection of this thread.
    lanes : Lanes
        The lanes.

    Returns
    -------
    ConfigurationError or None
        As from `disagreement`.

    Raises
    ------
    ConnectionFailed
        If the connection is lost.

    Notes
    -----
    Opens a channel, since a refusal costs it. Three round trips. For the thread of the session.
    """
    channel = session.channel()
    try:
        session.call([partial(channel.exchange_declare, **layout_request(lanes))], f"layout of lanes {lanes.name}")
    except RequestRefused as error:
        session.recover()
        return disagreement(lanes, str(error))
    session.close_channel(channel)
    return None


def _other_layout(refusal: str, lanes: Lanes) -> _Layout | None:
    """Return the layout that the broker has; None if the text does not say it."""
    found = re.search(_CURRENT.format(re.escape(lanes.layout)), refusal, re.DOTALL)
    return found and _Layout(found[1], repr(found[2]), str(bool(found[3])))
