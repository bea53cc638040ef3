"""How many messages to have in a client: what keeps it busy, and what that costs in latency.

Source: "Some queuing theory: throughput, latency and bandwidth" (RabbitMQ blog, 2012), in closed form. A broker that
always has messages, a client that handles one at a time and acks each, a delay each way and a service time that stay
the same: then after the first round trip everything repeats, and the figures below are exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

__all__ = ["Analysis", "analyse", "recommend"]

#: Sums of floats miss a whole number by their rounding; so little is no message more.
_ROUNDING = Fraction(1, 10**12)


class Analysis(NamedTuple):
    """What a prefetch does, in the steady state; times in seconds.

    Attributes
    ----------
    prefetch : int
        Unsettled messages that the broker may have sent.
    one_way_delay : float
        From the broker to the client, and back.
    service_time : float
        For which one message keeps the handler busy.
    utilisation : float
        Part of the time for which the handler is busy: min(1, P s / (2n + s)).
    throughput : float
        Messages a second: utilisation / s.
    waiting_ahead : int
        Whole messages in the buffer before one that arrives, without the one being handled.
    seed_wait : float
        Their service, which is how the article counts: waiting_ahead * s.
    residual_service : float
        What is left, at that moment, of the message being handled: exact_wait - seed_wait.
    exact_wait : float
        From arrival to start of handling: max(0, P s - (2n + s)).
    latency : float
        From leaving the broker to start of handling: n + exact_wait.
    buffer_share : float
        Part of that latency that is spent in the client's buffer; 0 when there is no latency.
    cold_start_wait : float
        Wait of the last message of the first window, which arrives all at once: (P - 1) s.
    saturating : int
        The least prefetch with which the handler is always busy.
    """

    prefetch: int
    one_way_delay: float
    service_time: float
    utilisation: float
    throughput: float
    waiting_ahead: int
    seed_wait: float
    residual_service: float
    exact_wait: float
    latency: float
    buffer_share: float
    cold_start_wait: float
    saturating: int


def recommend(round_trip: float, service_time: float, *, headroom: float = 1.0) -> int:
    """Return the least prefetch that keeps a handler busy.

    Parameters
    ----------
    round_trip : float
        Seconds from sending an ack to receiving the message that replaces the acked one: twice the one-way delay,
        without the service time.
    service_time : float
        Seconds that one message keeps the handler busy. With several workers the result is what
        each of them needs.
    headroom : float
        At least 1; 2 keeps the handler busy on a network half as fast, at the price of a buffer on this one.

    Returns
    -------
    int
        ceil((round_trip + service_time) / service_time * headroom). The sixteen bits of ``basic.qos`` end at 65535.

    Raises
    ------
    ValueError
        If a time is negative, infinite or not a number, the service time is zero, or the headroom is below 1.

    Notes
    -----
    O(1). Pure function: safe from any thread. Computed with fractions, of the decimals that the floats are shown as:
    a round trip of 0.1 and a service time of 0.004 make exactly 26.

    Examples
    --------
    >>> recommend(0.1, 0.004), recommend(0.2, 0.004), recommend(0.1, 0.004, headroom=1.5)
    (26, 51, 39)
    """
    trip = _fraction("round_trip", round_trip, least=0)
    service = _fraction("service_time", service_time, above=0)
    return _ceiling((trip + service) / service * _fraction("headroom", headroom, least=1))


def analyse(prefetch: int, one_way_delay: float, service_time: float) -> Analysis:
    """Say what a prefetch does to utilisation and latency.

    Parameters
    ----------
    prefetch : int
        Unsettled messages that the broker may have sent, at least 1.
    one_way_delay : float
        Seconds from the broker to the client, and as many back.
    service_time : float
        Seconds that one message keeps the handler busy.

    Returns
    -------
    Analysis
        The steady state, with a broker that always has messages. Both waits: the article counts whole messages
        ahead, the exact one also what is left of the message being handled.

    Raises
    ------
    ValueError
        If the prefetch is not a whole number of at least 1 (0, unlimited, has no steady state: all of the queue moves
        into the client), a time is negative, infinite or not a number, or the service time is zero.

    Notes
    -----
    O(1). Pure function: safe from any thread. Correctly rounded, except that a prefetch within 1e-12 of a whole
    number counts as that number.

    Examples
    --------
    >>> slow = analyse(26, 0.05, 0.04)
    >>> slow.waiting_ahead, slow.seed_wait, slow.exact_wait
    (22, 0.88, 0.9)
    """
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 1:
        raise ValueError(
            f"prefetch must be a whole number of at least 1, got {prefetch!r} "
            "(0 would mean unlimited in AMQP: the whole queue moves into the client)"
        )
    delay = _fraction("one_way_delay", one_way_delay, least=0)
    service = _fraction("service_time", service_time, above=0)
    cycle = 2 * delay + service
    utilisation = min(Fraction(1), prefetch * service / cycle)
    wait = max(Fraction(0), prefetch * service - cycle)
    ahead = _floor(wait / service)
    latency = delay + wait
    return Analysis(
        prefetch=prefetch,
        one_way_delay=float(one_way_delay),
        service_time=float(service_time),
        utilisation=float(utilisation),
        throughput=float(utilisation / service),
        waiting_ahead=ahead,
        seed_wait=float(ahead * service),
        residual_service=float(max(Fraction(0), wait - ahead * service)),
        exact_wait=float(wait),
        latency=float(latency),
        buffer_share=float(wait / latency) if latency else 0.0,
        cold_start_wait=float((prefetch - 1) * service),
        saturating=_ceiling(cycle / service),
    )


def _fraction(what: str, value: float, *, least: int | None = None, above: int | None = None) -> Fraction:
    """Return the decimal that a number is shown as, or say what is allowed."""
    allowed = f"a number of at least {least}" if least is not None else f"a number above {above}"
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or (least is not None and number < least) or (above is not None and number <= above):
        raise ValueError(f"{what} must be {allowed}, got {value!r}")
    return Fraction(repr(number))


def _ceiling(value: Fraction) -> int:
    return math.ceil(value * (1 - _ROUNDING))


def _floor(value: Fraction) -> int:
    return math.floor(value * (1 + _ROUNDING))
