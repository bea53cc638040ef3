"""Every timeout has the same rule: a number of seconds, 0 or more, infinity included; None waits without end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import re
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import Broker, ConfigurationError, Consumer, FairQueue, Publisher, PublishFailed, aio  # fmt: skip
from fairsched._core import checked_timeout
from fairsched.amqp._publishing import PublishWindow
from fairsched.cli.broker import Session
from fairsched.pullqueue import PullQueue, Target  # fmt: skip

RULE = "must be a number of seconds, 0 or more"
LONG = [None, math.inf, 1e9, 1e10, 1e300, 2**63, 10**400, Decimal("1e400"), Fraction(10**12)]
NEGATIVE = [math.nan, -1, -0.001, -math.inf, -(10**400), Decimal("-1")]
NO_NUMBER = ["5", b"1", [], 1j, object()]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        with Session(made.url) as session:
            session.declare("timeouts", {})
        yield made


@pytest.fixture
def waits() -> dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]:
    """Calls that have to wait, with a timeout of their own; and what ends each."""
    fair, full, more = FairQueue({"a": 1}), FairQueue({"a": 1}, maxsize=1), FairQueue({"a": 1}, maxsize=1)
    jobs, stopped = PullQueue(), PullQueue(overflow="flow", max_depth=1)
    subscription, target, draining = jobs.subscribe(), Target([jobs.subscribe()]), stopped.subscribe()
    full.put("a", 0)
    more.put("a", 0)
    stopped.put(0)
    window = PublishWindow(10, 1000, lambda: None)
    confirmation = window.put("", "timeouts", b"", b"", True)
    assert confirmation is not None
    return {
        "FairQueue.get": (lambda timeout: fair.get(timeout=timeout), lambda: fair.put("a", 1)),
        "FairQueue.get_many": (lambda timeout: fair.get_many(2, timeout=timeout), lambda: fair.put("a", 1)),
        "FairQueue.put": (lambda timeout: full.put("a", 1, timeout=timeout), full.get),
        "FairQueue.put_many": (lambda timeout: more.put_many("a", [1], timeout=timeout), more.get),
        "Subscription.get": (subscription.get, lambda: jobs.put(1)),
        "Target.get": (target.get, lambda: list(map(jobs.put, (1, 2)))),
        "PullQueue.put": (lambda timeout: stopped.put(1, timeout=timeout), lambda: draining.get().ack()),
        "Confirmation.result": (confirmation.result, lambda: window.close(PublishFailed("closed"))),
    }


CALLS = (
    "FairQueue.get", "FairQueue.get_many", "FairQueue.put", "FairQueue.put_many", "Subscription.get", "Target.get",
    "PullQueue.put", "Confirmation.result",
)  # fmt: skip


@pytest.mark.parametrize("timeout", LONG)
@pytest.mark.parametrize("call", CALLS)
def test_a_long_timeout_is_waited_for(call: str, timeout: Any, waits: dict[str, Any]) -> None:
    wait, end = waits[call]
    ending = threading.Timer(0.02, end)
    ending.start()
    with pytest.raises(PublishFailed, match="closed") if call == "Confirmation.result" else contextlib.nullcontext():
        wait(timeout)
    ending.join()


@pytest.mark.parametrize("timeout", NEGATIVE)
@pytest.mark.parametrize("call", CALLS)
def test_a_negative_timeout_is_refused(call: str, timeout: Any, waits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^timeout {RULE}, got {re.escape(repr(timeout))}$"):
        waits[call][0](timeout)


@pytest.mark.parametrize("timeout", NO_NUMBER)
@pytest.mark.parametrize("call", CALLS)
def test_a_timeout_that_is_no_number_is_refused(call: str, timeout: Any, waits: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^timeout {RULE}, got {re.escape(repr(timeout))}$"):
        waits[call][0](timeout)


@pytest.mark.parametrize("call", CALLS)
def test_a_timeout_of_0_is_over_at_once(call: str, waits: dict[str, Any]) -> None:
    with pytest.raises((queue.Empty, queue.Full, TimeoutError)):
        waits[call][0](0)


@pytest.mark.parametrize("timeout", [*NEGATIVE, *NO_NUMBER])
def test_a_flush_has_the_same_rule(timeout: Any, broker: Broker) -> None:
    with Publisher(broker.url) as publisher:
        publisher.publish(b"", "timeouts")
        with pytest.raises((TypeError, ValueError), match=f"^timeout {RULE}, got {re.escape(repr(timeout))}$"):
            publisher.flush(timeout)
        long: Any
        for long in LONG:
            publisher.publish(b"", "timeouts")
            publisher.flush(long)


@pytest.mark.parametrize("timeout", [math.inf, 1e10, 1e300, 2**63, 10**400])
def test_options_may_be_as_long(timeout: Any, broker: Broker) -> None:
    """A timeout longer than any wait of a thread does not end the start by an OverflowError, nor the stop."""
    options: dict[str, Any] = {"connect_timeout": timeout, "shutdown_timeout": timeout}
    with Publisher(broker.url, connect_timeout=timeout, confirm_timeout=timeout) as publisher:
        publisher.publish(b"", "timeouts").result(timeout)
    with Consumer(broker.url, ["timeouts"], **options) as consumer:
        for message in consumer:
            message.ack()
            consumer.stop()

    async def use_both() -> None:
        async with aio.Publisher(broker.url, connect_timeout=timeout, confirm_timeout=timeout) as published:
            await (await published.publish(b"", "timeouts"))
            await published.flush()
        async with aio.Consumer(broker.url, ["timeouts"], **options) as consumed:
            async for message in consumed:
                message.ack()
                consumed.stop()

    asyncio.run(use_both())


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", True, None])
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (Publisher, "connect_timeout"), (Publisher, "confirm_timeout"), (aio.Publisher, "connect_timeout"),
        (aio.Publisher, "confirm_timeout"),
    ],
)  # fmt: skip
def test_options_of_a_publisher_name_the_rule(kind: Any, option: str, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a positive number of seconds, got"):
        kind("amqp://127.0.0.1", **{option: timeout})


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", True, None])
@pytest.mark.parametrize("kind", [Consumer, aio.Consumer])
@pytest.mark.parametrize("option", ["connect_timeout", "shutdown_timeout"])
def test_options_of_a_consumer_name_the_rule(kind: Any, option: str, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a number of seconds, .*, got"):
        kind("amqp://127.0.0.1", ["q"], **{option: timeout})


@pytest.mark.parametrize("timeout", [None, math.inf, 1e10, 1e300, 10**400, 0, 5])
def test_the_broker_takes_any_consumer_timeout(timeout: Any) -> None:
    with Broker(consumer_timeout=timeout) as broker, Publisher(broker.url), Session(broker.url) as session:
        session.declare("timeouts", {})


@pytest.mark.parametrize("timeout", [math.nan, -1, "5"])
def test_the_broker_names_the_rule(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^consumer_timeout {RULE}, got {timeout!r}$"):
        Broker(consumer_timeout=timeout)


@given(st.one_of(st.none(), st.floats(), st.integers(), st.fractions(), st.decimals()))
def test_a_number_is_a_timeout_if_it_is_not_negative(value: Any) -> None:
    if value is None or (not _is_nan(value) and value >= 0):
        seconds = checked_timeout(value)
        assert seconds == (math.inf if value is None else _as_float(value))
    else:
        with pytest.raises(ValueError, match=f"^timeout {RULE}"):
            checked_timeout(value)


def _is_nan(value: Any) -> bool:
    return value.is_nan() if isinstance(value, Decimal) else value != value


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
