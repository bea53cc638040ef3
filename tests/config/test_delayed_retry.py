"""Which delays a queue makes itself: against RabbitMQ's formula written out, and what is not allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import ConfigurationError, Queue, Retry
from fairsched.config.delayed_retry import obstacle

milliseconds = st.integers(1, 86_400_000)


def by_the_broker(arguments: dict[str, Any], failures: int) -> int:
    """The milliseconds for which RabbitMQ delays a message: `calculate_ready_at` of rabbit_fifo.erl."""
    return min(arguments["x-delayed-retry-min"] * failures, arguments["x-delayed-retry-max"])


@given(milliseconds, milliseconds, st.integers(2, 40))
def test_only_equal_delays_are_left_to_a_queue(one: int, other: int, attempts: int) -> None:
    first, longest = sorted((one, other))
    retry = Retry(attempts, backoff=(first / 1000, longest / 1000), jitter=False)
    arguments = {"x-delayed-retry-min": first, "x-delayed-retry-max": longest}
    equal = all(
        by_the_broker(arguments, failed) == round(1000 * retry.delay(failed)) for failed in range(1, retry.max_attempts)
    )
    assert equal == (attempts <= 3 or longest <= 3 * first)
    if equal:
        found = retry.queue_arguments
        assert {name: found[name] for name in arguments} == arguments
        assert obstacle(found, retry) is None
    else:
        with pytest.raises(ConfigurationError, match="no queue can make the delays"):
            retry.queue_arguments  # noqa: B018


@given(milliseconds)
def test_a_constant_delay_is_left_to_a_queue(delay: int) -> None:
    retry = Retry(1000, backoff=delay / 1000, jitter=False)
    assert retry.queue_arguments == {
        "x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-min": delay,
        "x-delayed-retry-max": delay, "x-delivery-limit": 1_000_000,
    }  # fmt: skip
    Queue("orders", arguments=retry.queue_arguments, retry=retry)


def test_jitter_is_not() -> None:
    with pytest.raises(ConfigurationError, match=r"no random delays, so jitter must be False, got True"):
        Retry(backoff=10).queue_arguments  # noqa: B018


DELAYED = Retry(5, backoff=(10, 30), jitter=False).queue_arguments


@pytest.mark.parametrize(
    ("changes", "retry", "reason"),
    [
        ({}, Retry(5, backoff=(10, 30), jitter=False), None),
        ({"x-delayed-retry-type": "all"}, Retry(5, backoff=(10, 30), jitter=False), None),
        ({"x-delayed-retry-type": "returned"}, Retry(5, backoff=(10, 30), jitter=False), ""),
        ({"x-delayed-retry-type": "disabled"}, Retry(5, backoff=(10, 30), jitter=False), ""),
        ({}, Retry(1), ""),
        ({}, Retry(5, backoff=(10, 30)), "jitter must be False"),
        ({}, Retry(5, backoff=(10, 29), jitter=False), "after attempt 3 a queue waits 30000 ms"),
        (
            {"x-delayed-retry-min": 9_999},
            Retry(5, backoff=(10, 30), jitter=False),
            "after attempt 1 a queue waits 9999",
        ),
        ({"x-delivery-limit": -1}, Retry(5, backoff=(10, 30), jitter=False), None),
        ({"x-delivery-limit": 5}, Retry(5, backoff=(10, 30), jitter=False), None),
        ({"x-delivery-limit": 4}, Retry(5, backoff=(10, 30), jitter=False), "must be at least max_attempts, 5, got 4"),
        ({"x-single-active-consumer": True}, Retry(5, backoff=(10, 30), jitter=False), "x-single-active-consumer"),
    ],
)
def test_what_keeps_a_queue_from_it(changes: dict[str, Any], retry: Retry, reason: str | None) -> None:
    found = obstacle({**DELAYED, **changes}, retry)
    if not reason:
        assert found == reason
    else:
        assert found is not None
        assert reason in found


def test_the_usual_delivery_limit_counts() -> None:
    retry = Retry(21, backoff=10, jitter=False)
    arguments = {name: value for name, value in retry.queue_arguments.items() if name != "x-delivery-limit"}
    assert obstacle(arguments, retry) == "x-delivery-limit must be at least max_attempts, 21, got 20"
    assert obstacle(arguments, Retry(20, backoff=10, jitter=False)) is None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"x-queue-type": "classic"}, "x-delayed-retry-type of queue 'q' needs x-queue-type='quorum', got 'classic'"),
        ({"x-queue-type": "stream"}, "needs x-queue-type='quorum', got 'stream'"),
        ({"x-delayed-retry-type": "faled"}, "must be one of failed, returned, all, disabled, got 'faled'"),
        ({"x-delayed-retry-type": None}, "must be one of failed, returned, all, disabled, got None"),
        (
            {"x-delayed-retry-min": 0},
            "x-delayed-retry-min of queue 'q' must be a whole number of milliseconds from 1, got 0",
        ),
        ({"x-delayed-retry-min": 1.5}, "from 1, got 1.5"),
        ({"x-delayed-retry-min": True}, "from 1, got True"),
        ({"x-delayed-retry-max": "1"}, "x-delayed-retry-max of queue 'q' must be a whole number of milliseconds"),
        (
            {"x-delayed-retry-max": 9_999},
            "x-delayed-retry-max of queue 'q' must be at least x-delayed-retry-min, 10000",
        ),
    ],
)
def test_arguments_that_a_broker_would_ignore(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Queue("q", arguments={**DELAYED, **changes})
    assert error in str(caught.value)


def test_a_delay_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"x-delayed-retry-min of queue 'q' must be .*, got None"):
        Queue("q", arguments={"x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-max": 5})
    with pytest.raises(ConfigurationError, match=r"x-delayed-retry-type of queue 'q' must be one of .*, got None"):
        Queue("q", arguments={"x-delayed-retry-min": 5})
    Queue("q", arguments={"x-delayed-retry-type": "disabled"})  # and not where it would not be used
