"""Numbers put into a fair queue, as its stress tests do it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fairsched import FairQueue


def put_numbers(fair: FairQueue, me: int, count: int, chance: random.Random) -> Iterator[None]:
    """Put numbers into a slot of one's own, singly or in batches; something else may be done after each put."""
    number = 0
    while number < count:
        size = min(chance.randrange(1, 6), count - number)
        if size == 1:
            fair.put(me, number)
        else:
            fair.put_many(me, range(number, number + size))
        number += size
        yield
