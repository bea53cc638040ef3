"""Cost models: a message costs its slot one, its bytes, the time of its handler, or the result of a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.log_limit import LogLimit
from fairsched.delivery.handlers import check_plain, check_result
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Largest cost that is passed on; the engine counts in 64 bits and adds costs up.
LARGEST = 1 << 40
#: Estimates are kept for at most this many slots, or subkeys; beyond it they start anew from the common mean.
_REMEMBERED = 65_536


class ConstantCost:
    """Every message costs 1: shares are shares of messages."""

    #: Quantum of a slot of weight 1.
    unit = 1
    #: Whether the cost varies, so that it has to be given with each message.
    varies = False
    #: Whether handler time has to be reported back.
    measures = False
    #: Cost that a message is expected to have, for the arithmetic of windows.
    expected = 1.0

    def estimate(self, message: Message) -> int:
        """Return the cost charged when the message is queued."""
        return 1

    def correction(self, message: Message, elapsed: int) -> int:
        """Return what to add to the charge once the handler took `elapsed` nanoseconds."""
        return 0

    def handler_seconds(self, slot: Hashable) -> float | None:
        """Return the mean seconds that handlers lately took for messages of a slot, if this model measures them."""
        return None


class BytesCost(ConstantCost):
    """A message costs the bytes of its body, at least 1: shares are shares of volume."""

    unit = 1024
    varies = True
    expected = 1024.0

    def estimate(self, message: Message) -> int:
        """Return the length of the body."""
        return len(message.body) or 1


class TimeCost(ConstantCost):
    """A message costs the nanoseconds its handler takes: shares are shares of working time.

    Notes
    -----
    The time is known only afterwards, so a mean of the recent messages of the slot, or subkey, is charged first and the
    difference is settled when the handler returns (surplus round robin). `estimate` runs in the I/O thread and
    `correction` in any worker; they share one dict of numbers, in which a lost update costs a little precision and
    nothing else.
    """

    unit = 100_000
    varies = True
    measures = True
    expected = 20_000.0

    #: Weight of the newest measurement in the mean.
    _GAIN = 0.1

    def __init__(self, *, by_subkey: bool = False) -> None:
        self._by_subkey = by_subkey
        self._means: dict[Hashable, float] = {}
        self._common = 100_000.0

    def estimate(self, message: Message) -> int:
        """Return the mean of the slot's recent messages."""
        whose = (message.slot, message.subkey) if self._by_subkey else message.slot
        return max(1, int(self._means.get(whose, self._common)))

    def correction(self, message: Message, elapsed: int) -> int:
        """Learn from the measurement and return its difference from the charge."""
        measured = min(LARGEST, max(1, elapsed))
        means = self._means
        whose = (message.slot, message.subkey) if self._by_subkey else message.slot
        before = means.get(whose)
        if before is None and len(means) >= _REMEMBERED:
            means.clear()
        means[whose] = measured if before is None else before + self._GAIN * (measured - before)
        self._common += self._GAIN * (measured - self._common)
        return measured - message.cost

    def handler_seconds(self, slot: Hashable) -> float | None:
        """Return the mean of the slot's recent messages in seconds; None for a slot without, or with subkeys."""
        mean = None if self._by_subkey else self._means.get(slot)
        return None if mean is None else mean * 1e-9


class FunctionCost(ConstantCost):
    """A message costs what a function of it says.

    Parameters
    ----------
    function : callable
        Message to positive whole number. It runs in the I/O thread, so it must be quick and must not block. If it
        raises or returns anything else, the message costs 1, and that is logged once a minute for each queue.
    """

    varies = True

    def __init__(self, function: Callable[[Message], int]) -> None:
        self._function = function
        self._reports = LogLimit()

    def estimate(self, message: Message) -> int:
        """Return the function's answer, or 1 if it is not a possible cost."""
        try:
            found = self._function(message)
            if type(found) is not int:
                check_result(found, "cost")
            cost = int(found)
            if not 1 <= cost <= LARGEST:
                raise ValueError(f"cost must be from 1 to {LARGEST}, got {cost}")
        except Exception as error:
            if self._reports.due(message.queue):
                _log.error(
                    "cost function failed on a message of queue %r (%s); such messages cost 1",
                    message.queue, described(error), exc_info=shown(error),
                )  # fmt: skip
            return 1
        return cost


def cost_model(cost: str | Callable[[Message], int] | None, *, by_subkey: bool = False) -> ConstantCost:
    """Return the model for a ``cost=`` argument.

    Parameters
    ----------
    cost : "constant", None, "bytes", "time" or callable
        What a message is charged; None is "constant".
    by_subkey : bool
        Whether messages have subkeys, whose times are estimated one by one.

    Returns
    -------
    ConstantCost
        The model.

    Raises
    ------
    ConfigurationError
        If `cost` is none of these, or a coroutine function or a generator function.
    """
    if cost is None or cost == "constant":
        return ConstantCost()
    if cost == "bytes":
        return BytesCost()
    if cost == "time":
        return TimeCost(by_subkey=by_subkey)
    if callable(cost):
        check_plain(cost, "cost")
        return FunctionCost(cost)
    raise ConfigurationError(f"cost must be 'constant', 'bytes', 'time' or a function of the message, got {cost!r}")
