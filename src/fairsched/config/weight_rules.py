"""Weights by rule: those of queues that nobody can list beforehand, by patterns of their names or by a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.weights import check_weight
from fairsched.errors import ConfigurationError

#: The name that stands for all other queues.
OTHERS = "*"


def compiled(pattern: object, what: str) -> re.Pattern[str]:
    """Return a regular expression; raise ConfigurationError, which names `what` it is for, if it is none."""
    try:
        if not isinstance(pattern, str) or not pattern:
            raise re.error("it must be text that is not empty")
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"{what} must be a regular expression, got {pattern!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class WeightRules:
    """Rules for the weights of queues.

    Parameters
    ----------
    rules : mapping of str to int, or callable
        Regular expressions with weights, of which the first one that is found in the name of a queue counts; ``"*"``
        has the weight of all other queues, 1 by default. Or a function that returns the weight of a queue by its name.

    Raises
    ------
    ConfigurationError
        If a rule is invalid; the message names it.

    Notes
    -----
    Immutable. Safe from any thread, if the function is.
    """

    rules: Mapping[str, int] | Callable[[str], int]

    def __post_init__(self) -> None:
        if callable(self.rules):
            return
        if not isinstance(self.rules, Mapping):
            raise ConfigurationError(
                f"weights must be a mapping of regular expressions to weights, or a function, got {self.rules!r}"
            )
        for pattern, weight in self.rules.items():
            if pattern != OTHERS:
                compiled(pattern, "a name in weights")
            check_weight(pattern, weight)
        object.__setattr__(self, "rules", FrozenMapping(self.rules))

    def weight_of(self, name: str) -> int:
        """Return the weight of a queue; raise ConfigurationError if a function returns none. O(rules)."""
        rules = self.rules
        weight: Any
        if callable(rules):
            weight = rules(name)
            check_weight(name, weight)
        else:
            matching = (weight for rule, weight in rules.items() if rule != OTHERS and re.search(rule, name))
            weight = next(matching, rules.get(OTHERS, 1))
        return int(weight)
