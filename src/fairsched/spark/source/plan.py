"""The shares of the next batch: integer weighted max-min shares of queues, and which partition reads them.

Shares: the level L at which sum(min(depth, L * quantum)) is the batch is found exactly (water-filling: Bertsekas and
Gallager, "Data Networks", 1992, section 6.5.2). What a queue is due is fractional; what is left over after rounding
down goes to the queues whose next whole message is due soonest (earliest deadline first, as in Baruah, Cohen, Plaxton
and Varvel, "Proportionate Progress", Algorithmica 15, 1996), and the difference is carried. With constant quanta
and backlogged queues no queue is ever a message ahead or behind.

Pure functions of integers: safe from any thread, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: A partition more pays if it has so many messages, or bytes: Spark's Python worker takes 30 to 60 ms for each, and an
#: unbroken row of bytes is read in segments anyway. And no more of them than this, unless the user says so.
_MESSAGES, _BYTES, _PARTITIONS = 25_000, 32 << 20, 8
#: Parts of a message in which what is carried is counted: integers, because offsets are compared as JSON text.
SCALE = 1 << 40


def allocate(
    depths: Mapping[str, int], quanta: Mapping[str, int], limit: int | None, carried: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Divide a batch among queues in proportion to their quanta, giving none more than it has.

    Parameters
    ----------
    depths : mapping of str to int
        Messages that are ready, by queue.
    quanta : mapping of str to int
        Weights of the same queues, positive.
    limit : int or None
        Most messages in all; None for all there are.
    carried : mapping of str to int
        The second result of the previous call: what each queue is still due, in 1/`SCALE` of a message.

    Returns
    -------
    shares : dict of str to int
        Messages, by queue; their sum is min(limit, sum of depths). Queues without a share are left out.
    carried : dict of str to int
        For the next call. A queue that is emptied keeps a debt and forfeits credit.

    Notes
    -----
    O(n log n) in the number of queues, O(n) more for each message by which rounding misses the sum.
    """
    total = sum(depths.values()) if limit is None else min(limit, sum(depths.values()))
    due = _due(depths, quanta, total)
    wanted = {name: due[name] + carried.get(name, 0) for name in depths}
    shares = {name: min(depths[name], max(0, wanted[name] // SCALE)) for name in depths}
    _settle_rounding(shares, wanted, due, depths, total)
    kept = {}
    for name, share in shares.items():
        rest = min(wanted[name] - share * SCALE, 0 if share == depths[name] else SCALE)
        kept[name] = max(rest, -SCALE)
    return {name: share for name, share in shares.items() if share}, {n: rest for n, rest in kept.items() if rest}


def _due(depths: Mapping[str, int], quanta: Mapping[str, int], total: int) -> dict[str, int]:
    """Return what each queue is due, in 1/SCALE of a message; the sum is `total` messages but for rounding down."""
    due = {}
    left, weight = total * SCALE, sum(quanta[name] for name, depth in depths.items() if depth)
    # From the queue that is satisfied at the lowest level: it has all it wants, or none after it has.
    for name in sorted(depths, key=lambda name: depths[name] / quanta[name]):
        if not depths[name]:
            due[name] = 0
            continue
        due[name] = min(depths[name] * SCALE, left * quanta[name] // weight)
        left -= due[name]
        weight -= quanta[name]
    return due


def _settle_rounding(
    shares: dict[str, int], wanted: Mapping[str, int], due: Mapping[str, int], depths: Mapping[str, int], total: int
) -> None:
    """Give out, or take back, what rounding left, a message a queue at a time."""
    missing = total - sum(shares.values())
    while missing > 0:
        takers = [name for name in shares if shares[name] < depths[name]]
        takers.sort(key=lambda name: _deadline(wanted[name] - shares[name] * SCALE, due[name], name))
        for name in takers[:missing]:
            shares[name] += 1
        missing -= min(missing, len(takers))
    while missing < 0:
        givers = sorted((name for name in shares if shares[name]), key=lambda n: (wanted[n] - shares[n] * SCALE, n))
        for name in givers[:-missing]:
            shares[name] -= 1
        missing += min(-missing, len(givers))


def _deadline(rest: int, due: int, name: str) -> tuple[bool, int, int, str]:
    """Order of the queues that may get one more message: by the batches until the part they are due is overdue."""
    return rest <= 0, -((rest - SCALE) // max(1, due)), -due, name


def assign(
    shares: Mapping[str, int], partitions: int, assignment: str = "affinity", most: int | None = None
) -> list[dict[str, int]]:
    """Divide shares among partitions.

    Parameters
    ----------
    shares : mapping of str to int
        Messages, by queue.
    partitions : int
        At most so many partitions.
    assignment : str
        ``"affinity"``: a queue belongs to one partition. ``"split"``: every partition reads a part of every queue,
        which is even, but breaks the order within a queue. ``"split-large"``: only queues whose share is more than
        twice the mean of the partitions are split.
    most : int or None
        Messages of a partition; one with more is cut into several, which may cut a queue.

    Returns
    -------
    list of dict
        Shares of each partition; none is empty.

    Notes
    -----
    O(n log n + n * partitions). Largest share first onto the partition that has least (Graham, 1969).
    """
    pieces: list[tuple[int, str]] = []
    mean = sum(shares.values()) / max(1, partitions)
    for name, share in shares.items():
        is_split = assignment == "split" or (assignment == "split-large" and share > 2 * mean)
        count = min(partitions, share) if is_split else 1
        pieces += [(share * (k + 1) // count - share * k // count, name) for k in range(count)]
    loads = [0] * partitions
    parts: list[dict[str, int]] = [{} for _ in range(partitions)]
    for size, name in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        # A piece of a queue that the partition has already would be no split.
        index = min(range(partitions), key=lambda k: (name in parts[k], loads[k], k))
        parts[index][name] = parts[index].get(name, 0) + size
        loads[index] += size
    found = [part for part in parts if part]
    return found if most is None else [piece for part in found for piece in _cut(part, most)]


def partitions_worth(shares: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Return the number of partitions to divide a batch among, if the user has not said how many.

    Parameters
    ----------
    shares : mapping of str to int
        Messages, by queue.
    sizes : mapping of str to int
        Mean size of a queue's messages in bytes, where it is known.

    Returns
    -------
    int
        At least one.
    """
    total = sum(share * sizes.get(name, 0) for name, share in shares.items())
    return max(1, min(_PARTITIONS, max(-(-sum(shares.values()) // _MESSAGES), -(-total // _BYTES))))


def _cut(part: Mapping[str, int], most: int) -> list[dict[str, int]]:
    """Cut a partition, queue after queue, into the fewest pieces of at most so many messages, as even as may be."""
    total = sum(part.values())
    count = -(-total // most)
    ends = [total * (k + 1) // count for k in range(count)]
    pieces: list[dict[str, int]] = [{} for _ in ends]
    place = begin = 0
    for name, share in part.items():
        end = begin + share
        while begin < end:
            upto = min(end, ends[place])
            if upto > begin:
                pieces[place][name] = upto - begin
            begin = upto
            place += begin == ends[place]
    return pieces


def bounded_by_bytes(
    limit: int | None, most_bytes: int | None, sizes: Mapping[str, int], quanta: Mapping[str, int], busy: Sequence[str]
) -> int | None:
    """Return the most messages of a batch so that it is expected to stay within a number of bytes.

    Parameters
    ----------
    limit : int or None
        Most messages.
    most_bytes : int or None
        Most bytes of bodies.
    sizes : mapping of str to int
        Mean size of a queue's messages in bytes, where it is known.
    quanta : mapping of str to int
        Weights.
    busy : sequence of str
        Queues that have messages.

    Returns
    -------
    int or None
        At least one.
    """
    known = [name for name in busy if name in sizes]
    if most_bytes is None or not known:
        return limit
    weight = sum(quanta[name] for name in known)
    mean = max(1, sum(quanta[name] * sizes[name] for name in known) // weight)
    count = max(1, most_bytes // mean)
    return count if limit is None else min(limit, count)


def divided(budget: int, parts: Sequence[Mapping[str, int]], sizes: Mapping[str, int]) -> list[int]:
    """Divide the bytes of a batch among its partitions, by what each of them is expected to read.

    Parameters
    ----------
    budget : int
        Most bytes in all; 0 for no bound.
    parts : sequence of mapping
        Messages by queue, for each partition.
    sizes : mapping of str to int
        Mean size of a queue's messages in bytes, where it is known.

    Returns
    -------
    list of int
        At least 1 each, or 0 where there is no bound.
    """
    usual = max(1, sum(sizes.values()) // max(1, len(sizes)))
    expected = [sum(share * max(1, sizes.get(name, usual)) for name, share in part.items()) for part in parts]
    return [max(1, budget * one // sum(expected)) if budget else 0 for one in expected]
