"""The article's world: one broker, one queue that never runs empty, one client."""

from __future__ import annotations

from typing import Any

from fairsched.simulator import Broker, ConsumerSpec, Queue, Scenario


def article(prefetch: int, delay: float, service: float, *, full: bool = True, **more: Any) -> Scenario:
    """Times in seconds. Figures are of 20 whole periods, after 3: everything repeats after 2n + s, or after s."""
    period = 2 * delay + service
    settled = 3 * max(period, prefetch * service)
    if "duration" not in more:
        more |= {"warmup": settled, "duration": settled + 20 * period}
    consumer = ConsumerSpec(name="client", prefetch=prefetch, service=service, full=full)
    return Scenario(brokers=[Broker(delay=delay)], queues=[Queue("orders")], consumers=[consumer], **more)


def ten_queues(consumer: ConsumerSpec, delay: float, rate: float | None = None, **more: Any) -> Scenario:
    """The article on fair consuming: quanta 4, 8, …, 40, messages of cost 4."""
    queues = [Queue(f"p{index}", quantum=4 * (index + 1), cost=4) for index in range(10)]
    return Scenario(brokers=[Broker(delay=delay, rate=rate)], queues=queues, consumers=[consumer], **more)
