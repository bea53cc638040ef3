"""Arithmetic of prefetch windows under weighted fairness.

A queue whose messages all sit at the broker when its turn comes loses that turn, so shares flatten towards equal.
They do not as long as every queue's window covers what it is served while one replacement travels:

    P_i >= u_i * (1 + ceil(RTT / round)),   round = sum(u) * service

where u_i is the number of messages queue i is served in a round and service is the time one of them takes.
The windows are given in proportion to the weights, so that they run dry together if they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fairsched.config.weights import split
from fairsched.errors import ConfigurationError
from fairsched.prefetch import LARGEST_PREFETCH, recommend

#: Round trip that the default windows are made for, in seconds.
ASSUMED_ROUND_TRIP = 1e-3
#: Handler time that the default windows are made for, in seconds.
ASSUMED_SERVICE = 20e-6
#: The default windows add up to at least this many messages. Throughput has its knee at 100 to 250 messages on one
#: machine; twice that lets settlements travel in larger groups (ten queues, 20 us handler: 26 k msg/s against 18 k).
LEAST_TOTAL = 500
#: But to this many for each queue, up to `MOST_TOTAL` in all, where that is more: a hundred queues cost hardly more
#: processor time a message than five then, and three times as much with five messages each.
EACH, MOST_TOTAL = 20, 5_000
#: Once it is known how long handlers take, the default windows of a new connection hold so many seconds of work, or
#: what `measured_windows` finds necessary if that is more: what is lost with a connection counts as delivered, handled
#: or not.
HELD_WORK = 1.0
#: A measured window is so many times what keeps the workers busy, since times vary.
HEADROOM = 1.25
#: With an ordering key a measured window is this many messages for each worker at least: it cannot be known whose they
#: are, and with n of them in w worker queues about n / (n + w - 1) of the workers have one.
EACH_WORKER_QUEUE = 8


def needed(units: Mapping[str, float], round_trip: float, service: float) -> dict[str, int]:
    """Return the smallest windows at which shares do not flatten.

    Parameters
    ----------
    units : mapping
        Messages per round, per queue: quantum divided by mean cost.
    round_trip : float
        Seconds from an acknowledgement to the delivery that replaces it.
    service : float
        Seconds that one message occupies the worker pool.

    Returns
    -------
    dict
        Window per queue, at most `LARGEST_PREFETCH`.

    Notes
    -----
    O(n). Pure.
    """
    turn = sum(units.values()) * service
    rounds = 1 + (math.ceil(round_trip / turn) if turn > 0 else LARGEST_PREFETCH)
    return {name: min(LARGEST_PREFETCH, math.ceil(unit * rounds)) for name, unit in units.items()}


def default_windows(units: Mapping[str, float]) -> dict[str, int]:
    """Return the windows used when the user names none.

    Parameters
    ----------
    units : mapping
        Messages per round, per queue.

    Returns
    -------
    dict
        What `needed` asks for at `ASSUMED_ROUND_TRIP` and `ASSUMED_SERVICE`, scaled up in proportion until the
        total reaches `LEAST_TOTAL`, or `EACH` for every queue but no more than `MOST_TOTAL`.

    Notes
    -----
    O(n). Pure.
    """
    whole = sum(units.values())
    return {name: default_window(unit, whole, len(units)) for name, unit in units.items()}


def default_window(unit: float, whole: float, queues: int) -> int:
    """Return the default window of one queue.

    Parameters
    ----------
    unit, whole : float
        Messages per round, of the queue and of all queues.
    queues : int
        Number of queues.

    Returns
    -------
    int
        What `default_windows` returns for it.

    Notes
    -----
    O(1). Pure.
    """
    turn = whole * ASSUMED_SERVICE
    least = math.ceil(unit * (1 + math.ceil(ASSUMED_ROUND_TRIP / turn)))
    total = max(LEAST_TOTAL, min(MOST_TOTAL, EACH * queues))
    return min(LARGEST_PREFETCH, max(least, math.ceil(total * unit / whole)))


def busying(round_trip: float, pace: float, workers: int, headroom: float = 1.0) -> int:
    """Return how many unsettled messages keep all workers busy.

    Parameters
    ----------
    round_trip : float
        Seconds from a settlement to its refill.
    pace : float
        Seconds that one message occupies the worker pool.
    workers : int
        How many work side by side: each takes `workers` times as long for a message.
    headroom : float
        So many times as many.

    Returns
    -------
    int
        At least `workers`.

    Notes
    -----
    A message is replaced when it is done, `round_trip` and `workers` paces after it was begun; one is begun each pace.

    O(1). Pure.
    """
    return recommend(round_trip + (workers - 1) * pace, pace, headroom=headroom)


def measured_windows(
    windows: Mapping[str, int],
    units: Mapping[str, float],
    round_trip: float | None,
    service: float,
    workers: int = 1,
    worker_queues: int = 1,
) -> dict[str, int]:
    """Return the windows that replace the default ones when it is known how long handlers take.

    Parameters
    ----------
    windows : mapping
        The default windows, which these do not exceed.
    units : mapping
        Messages per round, per queue.
    round_trip : float or None
        Measured, in seconds; None: not known, and taken to be `ASSUMED_ROUND_TRIP`.
    service : float
        Seconds that one message occupies the worker pool, as measured.
    workers : int
        How many work side by side: each takes `workers` times as long for a message.
    worker_queues : int
        How many of them serve only keys of their own; 1: none.

    Returns
    -------
    dict
        Window per queue: its part of `HELD_WORK`, or what keeps all workers busy if only this queue has messages, or
        what `needed` asks for.

    Notes
    -----
    O(n). Pure.
    """
    pace, trip = max(service, ASSUMED_SERVICE), ASSUMED_ROUND_TRIP if round_trip is None else round_trip
    least, whole = needed(units, trip, pace), sum(units.values())
    # Of many queues one alone may have messages: a part of this would leave workers without any.
    alone = busying(trip, pace, workers, HEADROOM)
    if worker_queues > 1:
        alone = max(alone, EACH_WORKER_QUEUE * worker_queues)
    return {
        name: min(window, max(least[name], alone, math.ceil(HELD_WORK / pace * units[name] / whole)))
        for name, window in windows.items()
    }


def windows_for(
    prefetch: int | str | Mapping[str, int] | None, weights: Mapping[str, int], units: Mapping[str, float]
) -> dict[str, int]:
    """Return every queue's window for a ``prefetch=`` argument.

    Parameters
    ----------
    prefetch : int, str, mapping or None
        A total, a window per queue, or the default; no text is allowed here.
    weights : mapping
        Weight per queue.
    units : mapping
        Messages per round, per queue.

    Returns
    -------
    dict
        Window per queue.

    Raises
    ------
    ConfigurationError
        If a window is not a whole number between 1 and 65535, or a queue is missing or unknown.

    Notes
    -----
    O(n log n). Pure.
    """
    if prefetch is None:
        return default_windows(units)
    if isinstance(prefetch, Mapping):
        odd = sorted(map(str, set(prefetch) ^ set(weights)))
        if odd:
            raise ConfigurationError(f"prefetch must name every queue and no other; it differs in {', '.join(odd)}")
        return {name: _window(prefetch[name], f"prefetch of {name!r}", LARGEST_PREFETCH) for name in weights}
    return split(_window(prefetch, "prefetch", LARGEST_PREFETCH * len(weights)), weights)


def shortfall(windows: Mapping[str, int], units: Mapping[str, float], round_trip: float, service: float) -> str | None:
    """Return the arithmetic by which shares will flatten, or None if they will not.

    Parameters
    ----------
    windows : mapping
        Window per queue.
    units : mapping
        Messages per round, per queue.
    round_trip, service : float
        Measured, in seconds.

    Returns
    -------
    str or None
        One sentence naming the queue that falls shortest, with the numbers.

    Notes
    -----
    O(n). Pure.
    """
    least = needed(units, round_trip, service)
    short = [name for name in windows if windows[name] < least[name]]
    if not short:
        return None
    worst = max(short, key=lambda name: least[name] / windows[name])
    turn = sum(units.values()) * service
    return (
        f"{len(short)} of {len(windows)} queues have too small a window: {worst!r} has {windows[worst]} and needs "
        f"{units[worst]:g} * (1 + ceil({round_trip * 1e3:.3g} ms / {turn * 1e3:.3g} ms)) = {least[worst]} "
        f"(messages per round, round trip, {sum(units.values()):g} messages per round at {service * 1e6:.3g} us each)"
    )


def _window(value: object, what: str, largest: int) -> int:
    """Return `value` if it is a possible window, else say why it is not."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise ConfigurationError(
            f"{what} must be a whole number from 1 to {largest}, got {value!r} "
            "(0 would mean unlimited in AMQP, which empties the queue into this process)"
        )
    return value
