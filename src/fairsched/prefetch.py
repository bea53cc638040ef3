"""Choose a prefetch: large enough to keep the client busy, and what it costs in latency.

Source: "Some queuing theory: throughput, latency and bandwidth" (RabbitMQ blog, 2012), in closed form. The broker
always has messages, the client handles one at a time and acks each, and the network delay and the service time are
constant. After the first round trip the pattern repeats, so the figures are exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

__all__ = ["Analysis", "analyse", "recommend"]

#: basic.qos carries the count in sixteen bits.
LARGEST_PREFETCH = 65_535
#: Relative rounding error of float input that is not counted as another message.
_ROUNDING = Fraction(1, 10**12)


class Analysis(NamedTuple):
    """Effects of a prefetch in the steady state; times in seconds.

    Attributes
    ----------
    prefetch : int
        P: unsettled messages that the broker may have sent.
    one_way_delay : float
        n: delay from the broker to the client, and back.
    service_time : float
        s: time that one message keeps the handler busy.
    utilisation : float
        Fraction of the time for which the handler is busy: min(1, P s / (2n + s)).
    throughput : float
        Messages per second: utilisation / s.
    waiting_ahead : int
        Whole messages in the buffer ahead of one that arrives, without the one being handled.
    whole_message_wait : float
        Their service time, which is how the article counts: waiting_ahead * s.
    residual_service : float
        Remaining service time of the message being handled at the arrival: exact_wait - whole_message_wait.
    exact_wait : float
        From arrival to start of handling: max(0, P s - (2n + s)).
    latency : float
        From leaving the broker to start of handling: n + exact_wait.
    buffer_share : float
        Fraction of that latency that is spent in the client's buffer; 0 if the latency is 0.
    cold_start_wait : float
        Wait of the last message of the first window, which arrives all at once: (P - 1) s.
    saturating : int
        The smallest prefetch with which the handler is always busy.
    """

    prefetch: int
    one_way_delay: float
    service_time: float
    utilisation: float
    throughput: float
    waiting_ahead: int
    whole_message_wait: float
    residual_service: float
    exact_wait: float
    latency: float
    buffer_share: float
    cold_start_wait: float
    saturating: int


def recommend(round_trip: float, service_time: float, *, headroom: float = 1.0) -> int:
    """Return the smallest prefetch that keeps a handler busy.

    Parameters
    ----------
    round_trip : float
        Seconds from sending an ack to receiving the message that replaces the acked one: twice the one-way delay,
        without the service time.
    service_time : float
        Seconds that one message keeps the handler busy. With several workers, the result is the prefetch per worker.
    headroom : float
        Factor of at least 1: 2 keeps the handler busy on a network half as fast, at the cost of more buffered messages.

    Returns
    -------
    int
        ceil((round_trip + service_time) / service_time * headroom). ``basic.qos`` allows at most 65535.

    Raises
    ------
    ValueError
        If a time is negative, infinite or not a number, the service time is zero, or the headroom is below 1.

    Notes
    -----
    O(1). Pure function: safe from any thread. Computed with exact fractions of the floats' decimal representations:
    a round trip of 0.1 and a service time of 0.004 give exactly 26.

    Examples
    --------
    >>> recommend(0.1, 0.004), recommend(0.2, 0.004), recommend(0.1, 0.004, headroom=1.5)
    (26, 51, 39)
    """
    trip = _fraction("round_trip", round_trip, least=0)
    service = _fraction("service_time", service_time, above=0)
    return _ceiling((trip + service) / service * _fraction("headroom", headroom, least=1))


def analyse(prefetch: int, one_way_delay: float, service_time: float) -> Analysis:
    """Compute what a prefetch does to utilisation and latency.

    Parameters
    ----------
    prefetch : int
        Unsettled messages that the broker may have sent, at least 1.
    one_way_delay : float
        Network delay in seconds from the broker to the client, and back.
    service_time : float
        Seconds that one message keeps the handler busy.

    Returns
    -------
    Analysis
        The steady state, with a broker that always has messages. There are two waits: `whole_message_wait` counts the
        whole messages ahead, as the article does; `exact_wait` adds the rest of the message being handled.

    Raises
    ------
    ValueError
        If the prefetch is not a whole number of at least 1 (0, unlimited, has no steady state: the whole queue moves to
        the client), a time is negative, infinite or not a number, or the service time is zero.

    Notes
    -----
    O(1). Pure function: safe from any thread. Correctly rounded, except that a prefetch within 1e-12 of a whole
    number counts as that number.

    Examples
    --------
    >>> slow = analyse(26, 0.05, 0.04)
    >>> slow.waiting_ahead, slow.whole_message_wait, slow.exact_wait
    (22, 0.88, 0.9)
    """
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 1:
        raise ValueError(
            f"prefetch must be a whole number of at least 1, got {prefetch!r} "
            "(0 is unlimited in AMQP: the whole queue would move to the client)"
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
        whole_message_wait=float(ahead * service),
        residual_service=float(max(Fraction(0), wait - ahead * service)),
        exact_wait=float(wait),
        latency=float(latency),
        buffer_share=float(wait / latency) if latency else 0.0,
        cold_start_wait=float((prefetch - 1) * service),
        saturating=_ceiling(cycle / service),
    )


def _fraction(what: str, value: float, *, least: int | None = None, above: int | None = None) -> Fraction:
    """Return a number's decimal representation as a fraction; refuse what is out of range."""
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
