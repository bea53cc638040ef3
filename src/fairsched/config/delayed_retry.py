"""Delayed retry: quorum queues of RabbitMQ 4.3 that make the delays of a `Retry` themselves, by their arguments.

The queue delays a message that failed n times by n times the shortest delay, up to the longest. A `Retry` doubles its
delays instead, and may vary them at random. So only some can be left to the queue: see `arguments_of`.

Source: RabbitMQ 4.3, "Quorum Queues", section "Delayed Retries"; ``calculate_ready_at`` in rabbit_fifo.erl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fairsched.errors import ConfigurationError

__all__ = ["DELAYS_RETURNS", "Rule", "arguments_of", "check_arguments", "obstacle"]

#: Arguments of a queue: which of the messages that come back are delayed, and for how many milliseconds.
TYPE, SHORTEST, LONGEST = "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"
_TYPES = ("failed", "returned", "all", "disabled")
#: Those that delay what is returned without having failed; and what has failed.
DELAYS_RETURNS, _DELAYS_FAILURES = ("returned", "all"), ("failed", "all")

#: Argument of a queue: how often it counts a failed delivery before it drops or dead-letters the message itself.
_LIMIT = "x-delivery-limit"
#: That of RabbitMQ, if there is no argument; and a limit that is never reached, which RabbitMQ 3.10 accepts, too.
_USUAL_LIMIT, _NO_LIMIT = 20, 1_000_000


class Rule(Protocol):
    """The part of `fairsched.Retry` that says how long a message waits."""

    @property
    def max_attempts(self) -> int:
        """Maximum number of handler calls."""

    @property
    def jitter(self) -> bool:
        """Whether delays are random."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the longest delay, in seconds."""

    def delays(self, attempt: int) -> tuple[float, ...]:
        """Return the possible delays after a failed attempt, in seconds."""


def check_arguments(queue: str, arguments: Mapping[str, Any]) -> None:
    """Check what the arguments of a queue say of delays: RabbitMQ accepts any value, and then delays nothing.

    Parameters
    ----------
    queue : str
        Its name, for the error.
    arguments : mapping
        Its arguments.

    Raises
    ------
    ConfigurationError
        If one of ``x-delayed-retry-type``, ``-min`` and ``-max`` is invalid, or is missing beside the others, or the
        queue is no quorum queue by its ``x-queue-type``.

    Notes
    -----
    O(1). Safe from any thread.
    """
    given = [name for name in (TYPE, SHORTEST, LONGEST) if name in arguments]
    if not given:
        return
    kind = arguments.get("x-queue-type", "quorum")  # which may be the default of the virtual host
    if kind != "quorum":
        raise ConfigurationError(f"{given[0]} of queue {queue!r} needs x-queue-type='quorum', got {kind!r}")
    if arguments.get(TYPE) not in _TYPES:
        raise ConfigurationError(
            f"{TYPE} of queue {queue!r} must be one of {', '.join(_TYPES)}, got {arguments.get(TYPE)!r}"
        )
    if SHORTEST in arguments or arguments[TYPE] != "disabled":
        _check_delay(queue, SHORTEST, arguments.get(SHORTEST))
    if LONGEST in arguments:
        _check_delay(queue, LONGEST, arguments[LONGEST])
    if LONGEST in arguments and SHORTEST in arguments and arguments[LONGEST] < arguments[SHORTEST]:
        raise ConfigurationError(
            f"{LONGEST} of queue {queue!r} must be at least {SHORTEST}, {arguments[SHORTEST]!r}, "
            f"got {arguments[LONGEST]!r}"
        )


def _check_delay(queue: str, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(
            f"{name} of queue {queue!r} must be a whole number of milliseconds from 1, got {value!r}"
        )


def arguments_of(retry: Rule) -> dict[str, Any]:
    """Return the arguments of a quorum queue that makes the delays of a retry rule itself.

    Parameters
    ----------
    retry : Rule
        The rule.

    Returns
    -------
    dict
        With the type of the queue. It has a delivery limit that is never reached, since the rule counts.

    Raises
    ------
    ConfigurationError
        If no queue makes these delays.

    Notes
    -----
    O(attempts). Safe from any thread.
    """
    shortest, longest = _bounds(retry)
    reason = _unlike(retry, shortest, longest)
    if reason is not None:
        raise ConfigurationError(f"no queue can make the delays of {retry!r}: {reason}")
    return {"x-queue-type": "quorum", TYPE: "failed", SHORTEST: shortest, LONGEST: longest, _LIMIT: _NO_LIMIT}


def obstacle(arguments: Mapping[str, Any], retry: Rule) -> str | None:
    """Say why a queue with these arguments cannot make the delays of a retry rule; None: it can, from RabbitMQ 4.3 on.

    An empty text: it is not meant to. O(attempts). Safe from any thread.
    """
    kind = arguments.get(TYPE)
    if kind not in _DELAYS_FAILURES or retry.max_attempts == 1:
        return ""
    if arguments.get("x-single-active-consumer") is True:
        return "with x-single-active-consumer, messages that it takes back when its consumer leaves would be delayed"
    limit = arguments.get(_LIMIT, _USUAL_LIMIT)
    if isinstance(limit, int) and 0 <= limit < retry.max_attempts:
        return f"{_LIMIT} must be at least max_attempts, {retry.max_attempts}, got {limit!r}"
    shortest = arguments[SHORTEST]
    return _unlike(retry, shortest, arguments.get(LONGEST, shortest))


def _bounds(retry: Rule) -> tuple[int, int]:
    """Return the shortest and the longest delay in milliseconds, as a queue has them."""
    first, longest = retry.bounds
    return max(1, round(first * 1000)), max(1, round(longest * 1000))


def _unlike(retry: Rule, shortest: int, longest: int) -> str | None:
    """Say how the delays of a queue differ from those of a rule; None: they are the same."""
    if retry.jitter:
        return "a queue has no random delays, so jitter must be False, got True"
    for attempt in range(1, min(retry.max_attempts, 64)):
        wanted, made = round(retry.delays(attempt)[0] * 1000), min(shortest * attempt, longest)
        if wanted != made:
            return (
                f"after attempt {attempt} a queue waits {made} ms, {attempt} times its first delay up to the longest, "
                f"and this rule {wanted} ms; they agree if the longest delay is at most three times "
                "the first, or max_attempts is at most 3"
            )
    return None
