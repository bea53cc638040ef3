"""Numbers put into a fair queue, as its stress tests do it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fairsched import FairQueue


def put_numbers(
    fair: FairQueue, me: int, count: int, chance: random.Random, subkeys: int = 0, priorities: int = 0
) -> Iterator[None]:
    """Put numbers into a slot of one's own, singly or in batches; something else may be done after each put.

    With subkeys, or priorities, each number has one that goes by it.
    """
    number = 0
    while number < count:
        size = min(chance.randrange(1, 6), count - number)
        if priorities:
            numbers = range(number, number + size)
            fair.put_many(me, numbers, priorities=[one % priorities for one in numbers])
        elif size == 1 and subkeys:
            fair.put(me, number, subkey=number % subkeys)
        elif subkeys:
            numbers = range(number, number + size)
            fair.put_many(me, numbers, subkeys=[one % subkeys for one in numbers])
        elif size == 1:
            fair.put(me, number)
        else:
            fair.put_many(me, range(number, number + size))
        number += size
        yield
