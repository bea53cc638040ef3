"""Messages that wait here longer than goes together with what the broker allows."""

from __future__ import annotations

import logging

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually

from fairsched.consumer.prefetch import control

#: Seconds of a handler.
SERVICE = 0.04
#: Seconds after which a connection counts as one that lasts, instead of five; and for how long those of the test last.
TRIAL, LIFE = 1.5, 2.0


def limited(broker: Node, new_queue: Declare) -> tuple[str, str]:
    """A quorum queue whose messages may be delivered three times, with 300 in it, and where it sends the others."""
    dead = new_queue("dead")
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 2,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    queue = new_queue("limited", arguments=arguments)
    broker.publish(queue, numbered(300), delivery_mode=2)
    return queue, dead


@pytest.mark.parametrize(
    ("prefetch", "warns"),
    [
        pytest.param(None, True, marks=pytest.mark.rabbitmq("a header with the count of deliveries")),
        (5, False),
    ],
)
def test_a_queue_that_counts_deliveries_is_warned_about(
    broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture, prefetch: int | None, warns: bool
) -> None:
    queue, _ = limited(broker, new_queue)
    with broker.connect() as channel:  # and closed again: each message was delivered once for nothing
        taken = []

        def all_taken() -> bool:
            # A quorum queue has a message once its log is written: before that it says that it is empty.
            while channel.basic_get(queue)[0] is not None:
                taken.append(queue)
            return len(taken) == 300

        eventually(all_taken)
    eventually(lambda: broker.count(queue) == 300)
    with caplog.at_level(logging.WARNING), Running(broker.url, [queue], SERVICE, prefetch=prefetch) as running:
        eventually(lambda: running.acked > 3)
        running.consumer.stop(now=True)
    said = [record.getMessage() for record in caplog.records if "counts deliveries" in record.getMessage()]
    assert len(said) == warns
    assert all(repr(queue) in line and 'or use prefetch="auto"' in line for line in said)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("prefetch", [None, "auto"])
def test_what_was_never_handled_does_not_reach_the_delivery_limit(
    broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch, prefetch: str | None
) -> None:
    """Four connections that last a while each, and a limit of two: nothing is dead-lettered that no handler saw."""
    monkeypatch.setattr(control, "TRIAL", TRIAL)
    queue, dead = limited(broker, new_queue)
    with (
        Proxy(broker.port) as proxy,
        Running(behind(proxy, broker.url), [queue], SERVICE, prefetch=prefetch) as running,
    ):
        for _ in range(4):
            mark = len(running.processed) + int(LIFE / SERVICE)
            eventually(lambda mark=mark: len(running.processed) >= mark)
            proxy.cut()
        eventually(lambda: len(running.processed) == 300, 60)
        eventually(lambda: broker.count(queue) == 0)
    assert broker.count(dead) <= 4  # those that were handled, and cut off before they were acknowledged
