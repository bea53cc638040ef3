"""The ladder of queues in which messages wait at the broker until they are due: its names, keys and arguments.

Level n is an exchange and a queue in which a message waits for 2**n seconds. The routing key of a delayed message
begins with its delay in binary, one word per digit, the highest first. At the exchange of level n, a 1 leads to the
level's queue, and a 0 to the next exchange. What expires in the queue goes to the next exchange, too, and after level
0 to the delivery exchange. All messages of a queue wait equally long, so none that is due stands behind one that is
not.

Names, arguments and keys are those of Celery's native delayed delivery, so that both use one ladder. Celery binds
queues to the delivery exchange by the rest of the routing key; then exchange and routing key of the message are lost,
and direct exchanges do not work. Here the rest is a single word that names an outlet: a queue, bound to the delivery
exchange, whose messages expire at once and are dead-lettered to the message's own exchange with its own routing key.

Source: kombu, `kombu/transport/native_delayed_delivery.py`; RabbitMQ, "Time-To-Live and Expiration", "Dead Letter
Exchanges", "Quorum Queues" (at-least-once dead lettering, which requires the overflow behaviour reject-publish).
Complexity: O(levels). Thread safety: pure functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from fairsched.amqp.properties import DEATH_HEADERS
from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.config.durations import parse_duration
from fairsched.publisher.calls import DIRECT_REPLY

if TYPE_CHECKING:
    from pika.spec import BasicProperties

#: Number of levels.
LEVELS = 28
#: Begins the names of all levels, and the name of the delivery exchange.
PREFIX = "celery_delayed_"
#: The exchange after the last level.
DELIVERY = "celery_delayed_delivery"
#: Longest delay in seconds: a leap year.
LONGEST_DELAY = 366 * 86_400
#: The beginning of an outlet's name.
_OUTLET = "later:"
#: Bytes of a routing key that are not the name of an outlet: digits and dots.
_DIGITS = 2 * LEVELS
#: Headers that route a message to more queues.
_COPIES = ("CC", "BCC")


class Target(NamedTuple):
    """Destination of delayed messages: an exchange and a routing key."""

    exchange: str
    routing_key: str

    @property
    def outlet(self) -> str:
        """Name of the queue from which the broker passes messages on: one word, different for every target."""
        return f"{_OUTLET}{_word(self.exchange)}:{_word(self.routing_key)}"

    def check(self) -> None:
        """Raise TypeError or ValueError if messages for this target cannot be delayed."""
        for what, text in (("exchange", self.exchange), ("routing_key", self.routing_key)):
            if not isinstance(text, str):
                raise TypeError(f"{what} must be a str, got {text!r}")
            if not is_short_string(text):
                raise ValueError(f"{what} must be text of at most {LONGEST} bytes, got {text!r}")
        if not self.exchange and not self.routing_key:
            raise ValueError("a delayed message needs an exchange or the name of a queue, got ''")
        if not self.exchange and self.routing_key.startswith(DIRECT_REPLY):
            raise ValueError(f"a direct reply cannot be delayed, got routing_key {self.routing_key!r}")
        if len(self.outlet) > LONGEST - _DIGITS:
            raise ValueError(
                f"exchange and routing_key of a delayed message may have {LONGEST - _DIGITS - len(_OUTLET) - 1} bytes "
                f"together (other characters than letters, digits, _, - and ~ count three times), got "
                f"{self.exchange!r} and {self.routing_key!r}"
            )


def _word(text: str) -> str:
    """Return a name without dots, colons and wildcards."""
    return quote(text, safe="").replace(".", "%2E")


def level_name(level: int) -> str:
    """Return the name of a level's exchange, which is also that of its queue."""
    return f"{PREFIX}{level}"


def is_of_ladder(name: str) -> bool:
    """Return whether a name is that of an exchange of the ladder."""
    return name.startswith(PREFIX)


def next_exchange(level: int) -> str:
    """Return the exchange to which messages go after a level."""
    return level_name(level - 1) if level else DELIVERY


def level_arguments(level: int, queue_type: str) -> dict[str, Any]:
    """Return the arguments of a level's queue, quorum or classic."""
    arguments: dict[str, Any] = {
        "x-queue-type": queue_type,
        "x-overflow": "reject-publish",
        "x-message-ttl": 1000 << level,
        "x-dead-letter-exchange": next_exchange(level),
    }
    if queue_type == "quorum":
        arguments["x-dead-letter-strategy"] = "at-least-once"
    return arguments


def level_binding(level: int, digit: int) -> str:
    """Return the binding key at a level's exchange for messages that wait at this level (1), or do not (0)."""
    return "*." * (LEVELS - 1 - level) + f"{digit}.#"


def outlet_arguments(target: Target) -> dict[str, Any]:
    """Return the arguments of an outlet."""
    return {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-message-ttl": 0,
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": target.exchange,
        "x-dead-letter-routing-key": target.routing_key,
    }


def outlet_binding(target: Target) -> str:
    """Return the key that binds an outlet to the delivery exchange: any digits, and its name."""
    return "*." * LEVELS + target.outlet


def delayed_address(seconds: int, target: Target) -> tuple[str, str]:
    """Return exchange and routing key with which a message is published that is due in so many whole seconds.

    Celery publishes every message to the highest exchange. That of the first level at which the message waits has the
    same effect, and the broker routes it once instead of up to 28 times.
    """
    digits = ".".join(f"{seconds:0{LEVELS}b}")
    return level_name(seconds.bit_length() - 1), f"{digits}.{target.outlet}"


def whole_delay(delay: float | str | None, at: datetime | None) -> int:
    """Return the delay in whole seconds, rounded up so that no message is early; 0: it is due.

    Raises
    ------
    TypeError, ValueError
        Both are given; a delay is no duration, or longer than 366 days; `at` is not an aware datetime.
    """
    if delay is not None and at is not None:
        raise ValueError(f"give delay or at, got both: delay {delay!r} and at {at!r}")
    if at is None:
        assert delay is not None
        seconds = parse_duration(delay)
    elif not isinstance(at, datetime):
        raise TypeError(f"at must be a datetime, got {at!r}")
    elif at.utcoffset() is None:
        raise ValueError(f"at must be an aware datetime, such as datetime.now(UTC), got {at!r}")
    else:
        seconds = at.timestamp() - time.time()
    if seconds > LONGEST_DELAY:
        raise ValueError(f"a message may be delayed by up to {LONGEST_DELAY} seconds (366 days), got {delay or at!r}")
    return max(0, math.ceil(seconds))


def delayed_values(properties: BasicProperties | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the properties of a delayed message, and return those that are given, without the headers of old deaths.

    Raises
    ------
    ValueError
        The message has an expiration, which would end its delay early; or it is to be copied to other queues.
    """
    values = dict(given)
    expiration = values["expiration"] if "expiration" in values else getattr(properties, "expiration", None)
    if expiration is not None:
        raise ValueError(
            f"a delayed message cannot have an expiration, which would end the delay early, got {expiration!r}; give "
            "its queue a time to live (x-message-ttl)"
        )
    headers = values["headers"] if "headers" in values else getattr(properties, "headers", None)
    if isinstance(headers, Mapping):
        for name in _COPIES:
            if name in headers:
                raise ValueError(
                    f"a delayed message cannot have the header {name}, got {headers[name]!r}; publish it once per queue"
                )
        # The next delay leads to the same queues.
        if any(name in headers for name in DEATH_HEADERS):
            values["headers"] = {name: value for name, value in headers.items() if name not in DEATH_HEADERS}
    return values
