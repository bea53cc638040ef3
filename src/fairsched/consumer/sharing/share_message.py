"""Messages of a share group: what a consumer publishes to the others, and the bounds of what it believes of theirs.

Any program that may write to the exchange can publish to it, by mistake as well. So a message is refused unless its
size, names, rates and times are possible.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fairsched.amqp.jsonbody import read_fields
from fairsched.errors import LONGEST_THROTTLE

#: Slots that a message names at most, in each of its two lists.
MOST_SLOTS = 2_000
#: Longest name of a slot, and of anything else, in characters.
LONGEST_NAME = 200
#: Longest message, in bytes: JSON may double the characters of a name, and a rate takes less than 30.
MOST_BYTES = MOST_SLOTS * (3 * (2 * LONGEST_NAME + 4) + 60) + 1_000
#: Highest rate of a slot by cost model, in cost per second: what 10^8 messages, 10^12 bytes, or 10^5 threads cost.
MOST_RATE = {"constant": 1e8, "bytes": 1e12, "time": 1e14, "function": 1e18}


class Claim(NamedTuple):
    """Statement of a consumer about itself: rates in cost per second, and the seconds for which they hold.

    `throttled` has slots that all consumers are to let take no turns, with seconds.
    """

    sender: str
    cost: str
    lasts: float
    rates: Mapping[str, float]
    wanted: Iterable[str]
    throttled: Mapping[str, float] = MappingProxyType({})


def slot_name(slot: Hashable) -> str:
    """Return the name of a slot in messages: its text, or the digest of a text that is too long."""
    name = ascii(slot)
    return name if len(name) <= LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()


def slot_of(name: str) -> Hashable:
    """Return the slot that has a name in messages.

    Raises
    ------
    ValueError
        If the name does not say it: the slot is no text, number or tuple of such, or its text is too long.
    """
    try:
        slot: Hashable = ast.literal_eval(name)
        hash(slot)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("the name does not say which slot it is") from None
    return slot


def encode(claim: Claim) -> bytes:
    """Return the message that says this, of at most `MOST_SLOTS` slots: those with the highest rates."""
    most = sorted(claim.rates, key=lambda name: -claim.rates[name])[:MOST_SLOTS]
    text = json.dumps({
        "from": claim.sender, "cost": claim.cost, "lasts": claim.lasts, "wanted": list(claim.wanted)[:MOST_SLOTS],
        "rates": {name: min(claim.rates[name], MOST_RATE[claim.cost]) for name in most},
        "throttled": dict(list(claim.throttled.items())[:MOST_SLOTS]),
    })  # fmt: skip
    return text.encode()


def decode(body: bytes) -> Claim:
    """Return what a message says.

    Raises
    ------
    ValueError
        If it is no such message, or says what cannot be; the text is short whatever the message is.
    """
    said = read_fields(body, MOST_BYTES)
    cost = _name(said.get("cost"), "cost")
    if cost not in MOST_RATE:
        raise ValueError(f"cost must be one of {sorted(MOST_RATE)}, got {cost[:20]!r}")
    rates, wanted, throttled = said.get("rates"), said.get("wanted"), said.get("throttled", {})
    if not isinstance(rates, dict) or not isinstance(wanted, list) or not isinstance(throttled, dict):
        raise ValueError("rates and throttled must be objects, and wanted a list")
    if max(len(rates), len(wanted), len(throttled)) > MOST_SLOTS:
        raise ValueError(f"it names more than {MOST_SLOTS} slots")
    return Claim(
        _name(said.get("from"), "from"),
        cost,
        _number(said.get("lasts"), "lasts", 1e9),
        {_name(name, "a slot"): _number(rate, "a rate", MOST_RATE[cost]) for name, rate in rates.items()},
        [_name(name, "a slot") for name in wanted],
        {_name(name, "a slot"): _number(seconds, "throttled", LONGEST_THROTTLE) for name, seconds in throttled.items()},
    )


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise ValueError(f"{what} must be a text of at most {LONGEST_NAME} characters")
    return value


def _number(value: Any, what: str, most: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:  # NaN is not
        raise ValueError(f"{what} must be a number from 0 to {most:g}")
    return float(value)
