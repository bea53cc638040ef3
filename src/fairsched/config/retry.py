"""Retries: how often a message is attempted, and how long it waits between attempts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.config.delayed_retry import arguments_of
from fairsched.delivery.handlers import check_plain
from fairsched.errors import ConfigurationError

__all__ = ["On", "Retry"]

#: Exceptions that are retried. Any stands for Message: this module needs no pika.
On = type[Exception] | tuple[type[Exception], ...] | Callable[[Any, Exception], bool]

#: Seconds: what a queue can be told, with its own time to live added, is 49 days.
_LONGEST = 30 * 86_400.0
_SHORTEST = 0.001
_MOST_ATTEMPTS = 1000
#: With jitter, a delay is one of so many equal steps of its second half: a queue is needed for each.
_STEPS = 4
#: Queue for messages that failed for the last time.
DEAD_LETTER = "{queue}.dead-letter"


@dataclass(frozen=True)
class Retry:
    """Rule for messages whose handler raised: when they are retried, and where they go after the last attempt.

    Parameters
    ----------
    max_attempts : int
        Maximum number of handler calls for one message, from 1 to 1000.
    backoff : float or tuple of float
        The first and the longest delay in seconds, from 0.001 s to 30 days: the delay before the second attempt is the
        first, and it doubles with each attempt up to the longest. A single number: the delay is always the same.
    jitter : bool
        Whether each delay is a random choice of 5, 6, 7 or 8 eighths of it, so that messages that failed together are
        not retried together.
    on : exception class, tuple of exception classes or callable
        Which failures are retried: exception classes, or a callable that gets ``(message, exception)`` and returns
        whether to retry. Other failures are dead-lettered at once.
    dead_letter : str, False or None
        Name of the queue for messages whose last attempt failed; ``{queue}`` in it stands for the name of the message's
        queue. The queue is declared durable if it does not exist. None: the dead-letter queue of the `Queue`, otherwise
        ``{queue}.dead-letter``. False: the message is rejected, so that the broker dead-letters it by the queue's own
        settings, without the reason, or drops it.

    Raises
    ------
    ConfigurationError
        If a value is invalid.

    Notes
    -----
    Immutable. Safe from any thread.

    Examples
    --------
    >>> retry = Retry(max_attempts=5, backoff=(1, 5), jitter=False)
    >>> [retry.delays(attempt) for attempt in range(1, 5)]
    [(1.0,), (2.0,), (4.0,), (5.0,)]
    """

    max_attempts: int = 5
    _: KW_ONLY
    backoff: float | tuple[float, float] = (1.0, 300.0)
    jitter: bool = True
    on: On = Exception
    dead_letter: str | Literal[False] | None = None

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= _MOST_ATTEMPTS:
            raise ConfigurationError(
                f"max_attempts must be a whole number from 1 to {_MOST_ATTEMPTS}, got {attempts!r}"
            )
        object.__setattr__(self, "backoff", _checked_backoff(self.backoff))
        if not isinstance(self.jitter, bool):
            raise ConfigurationError(f"jitter must be True or False, got {self.jitter!r}")
        _check_on(self.on)
        _check_dead_letter(self.dead_letter)

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the longest delay, in seconds."""
        return self.backoff if isinstance(self.backoff, tuple) else (self.backoff, self.backoff)

    @property
    def queue_arguments(self) -> dict[str, Any]:
        """The arguments of a quorum queue that, from RabbitMQ 4.3 on, makes these delays itself, without copies.

        Declared with them, by `Queue(arguments=)`, the queue also counts the attempts. Other brokers ignore them.

        Raises
        ------
        ConfigurationError
            No queue makes these delays: `jitter` must be False, and the longest delay at most three times the first, or
            `max_attempts` at most 3.

        Notes
        -----
        A new dict each time. O(attempts). Safe from any thread.

        Examples
        --------
        >>> Retry(max_attempts=5, backoff=(10, 30), jitter=False).queue_arguments["x-delayed-retry-max"]
        30000
        """
        return arguments_of(self)

    def delays(self, attempt: int) -> tuple[float, ...]:
        """Return the possible delays after a failed attempt, all equally likely.

        Parameters
        ----------
        attempt : int
            Number of the failed attempt, from 1.

        Returns
        -------
        tuple of float
            Seconds, ascending, each a whole number of milliseconds.
        """
        first, longest = self.bounds
        delay = min(longest, math.ldexp(first, min(attempt - 1, 64)))
        if not self.jitter:
            return (_rounded(delay),)
        eighth = delay / (2 * _STEPS)
        return tuple(sorted({_rounded(eighth * (_STEPS + step)) for step in range(1, _STEPS + 1)}))

    def all_delays(self) -> set[float]:
        """Return the possible delays after any attempt: a few dozen at most, since they double."""
        found: set[float] = set()
        for attempt in range(1, min(self.max_attempts, 64)):
            found.update(self.delays(attempt))
        return found

    def delay(self, attempt: int) -> float:
        """Return the delay in seconds after a failed attempt: one of `delays`."""
        return random.choice(self.delays(attempt))

    def wants(self, message: Any, error: Exception) -> bool:
        """Return whether a failure is to be retried; an exception of the callable propagates."""
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return bool(self.on(message, error))

    def dead_letters_of(self, queue: str) -> str | None:
        """Return the name of the dead-letter queue of a queue; None: the broker decides where dead letters go."""
        if self.dead_letter is False:
            return None
        return (DEAD_LETTER if self.dead_letter is None else self.dead_letter).replace("{queue}", queue)


def _rounded(seconds: float) -> float:
    return max(1, round(seconds * 1000)) / 1000


def _checked_backoff(value: Any) -> float | tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2:
        first, longest = map(_seconds, value)
        if first is not None and longest is not None and first <= longest:
            return first, longest
    elif (seconds := _seconds(value)) is not None:
        return seconds
    raise ConfigurationError(
        "backoff must be a number of seconds, or two: the first delay and the longest, from "
        f"{_SHORTEST} to {_LONGEST:.0f} (30 days), got {value!r}"
    )


def _seconds(value: Any) -> float | None:
    """Return a delay, or None if it is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and _SHORTEST <= value <= _LONGEST else None


def _check_on(on: Any) -> None:
    classes = on if isinstance(on, tuple) else (on,)
    if isinstance(on, tuple | type):
        if not classes or not all(isinstance(one, type) and issubclass(one, Exception) for one in classes):
            raise ConfigurationError(
                "on must be an exception class, a tuple of them or a function of message and exception, "
                f"and only what derives from Exception is a failure, got {on!r}"
            )
        return
    check_plain(on, "on")


def _check_dead_letter(name: Any) -> None:
    if name is not None and name is not False and not (name and is_short_string(name)):
        raise ConfigurationError(
            f"dead_letter must be the name of a queue (1 to {LONGEST} bytes of text), None for '{{queue}}.dead-letter' "
            f"and False for the dead-letter exchange of the queue, got {name!r}"
        )
