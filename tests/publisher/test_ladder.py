"""Names, keys and arguments of the ladder against kombu's, and the rules for delays."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport import native_delayed_delivery as kombu
from pika.spec import BasicProperties

from fairsched.publisher.ladder import (
    DELIVERY,
    LEVELS,
    LONGEST_DELAY,
    Target,
    delayed_address,
    delayed_values,
    level_arguments,
    level_binding,
    level_name,
    outlet_binding,
    whole_delay,
)

names = st.text(max_size=60).filter(lambda text: max(text, default="") < "\ud800" or min(text) > "\udfff")


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic exchange routes a key by a binding key, by the rules of AMQP 0-9-1."""
    words = [r"[^.]*" if word == "*" else re.escape(word) for word in pattern.split(".") if word != "#"]
    rest = r"(\..*)?" if pattern.endswith(".#") else ""
    return re.fullmatch(r"\.".join(words) + rest, key, re.DOTALL) is not None


def test_names_are_those_of_kombu() -> None:
    assert [level_name(level) for level in range(LEVELS)] == [kombu.level_name(level) for level in range(28)]
    assert DELIVERY == kombu.CELERY_DELAYED_DELIVERY_EXCHANGE
    assert LEVELS == kombu.MAX_NUMBER_OF_BITS_TO_USE


@given(st.integers(1, LONGEST_DELAY))
def test_keys_are_those_of_kombu_and_lead_through_their_levels(seconds: int) -> None:
    target = Target("", "orders")
    exchange, key = delayed_address(seconds, target)
    assert key == kombu.calculate_routing_key(seconds, target.outlet)
    waited, level = 0, int(exchange.removeprefix("celery_delayed_"))
    assert seconds >> level == 1
    while level >= 0:  # a message goes one level down from the exchange and from the queue
        waits, passes = (matches(level_binding(level, digit), key) for digit in (1, 0))
        assert waits != passes
        waited += waits * level_arguments(level, "quorum")["x-message-ttl"]
        level -= 1
    assert waited == seconds * 1000
    assert matches(outlet_binding(target), key)


@given(names, names, names, names)
def test_an_outlet_takes_what_is_for_its_target(exchange: str, key: str, other: str, another: str) -> None:
    one, two = Target(exchange, key), Target(other, another)
    _, routing_key = delayed_address(5, two)
    assert matches(outlet_binding(one), routing_key) == (one == two)
    for word in ("*", "#", "."):
        assert word not in one.outlet


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(0, 0), (-0.0, 0), (0.001, 1), (1, 1), (1.25, 2), ("90s", 90), ("5min", 300), (LONGEST_DELAY, LONGEST_DELAY)],
)
def test_a_delay_is_rounded_up(delay: Any, expected: int) -> None:
    assert whole_delay(delay, None) == expected


def test_a_time_is_never_early() -> None:
    now = datetime.now(UTC)
    assert whole_delay(None, now - timedelta(days=1)) == 0
    found = whole_delay(None, now + timedelta(hours=1))
    assert (
        now + timedelta(hours=1) <= datetime.now(UTC) + timedelta(seconds=found) < now + timedelta(hours=1, seconds=9)
    )


@pytest.mark.parametrize(
    ("delay", "at", "kind", "text"),
    [
        (1, datetime.now(UTC), ValueError, "delay or at, got both"),
        (None, datetime(2030, 1, 1), ValueError, "aware datetime"),
        (None, "tomorrow", TypeError, "must be a datetime, got 'tomorrow'"),
        (-1, None, ValueError, "not negative, got -1"),
        (True, None, ValueError, "got True"),
        ("soon", None, ValueError, "got 'soon'"),
        (float("nan"), None, ValueError, "got nan"),
        (LONGEST_DELAY + 1, None, ValueError, r"366 days\), got 31622401"),
        (None, datetime(2300, 1, 1, tzinfo=UTC), ValueError, r"366 days\), got datetime"),
    ],
)
def test_a_bad_delay_names_the_rule(delay: Any, at: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        whole_delay(delay, at)


@pytest.mark.parametrize(
    ("exchange", "key", "kind", "text"),
    [
        ("", "", ValueError, "needs an exchange or the name of a queue, got ''"),
        ("", "amq.rabbitmq.reply-to.x", ValueError, "a direct reply cannot be delayed"),
        ("", "x" * 193, ValueError, "may have 192 bytes together"),
        (None, "x", TypeError, "exchange must be a str, got None"),
        ("", b"x", TypeError, "routing_key must be a str"),
        ("", "\ud800", ValueError, "routing_key must be text"),
    ],
)
def test_a_bad_target_names_the_rule(exchange: Any, key: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Target(exchange, key).check()


def test_the_longest_target_fits() -> None:
    target = Target("", "x" * 192)
    target.check()
    assert len(delayed_address(1, target)[1]) == 255


def test_what_would_end_or_copy_a_delayed_message_is_refused() -> None:
    for values in ({"expiration": 5}, {"headers": {"CC": ["a"]}}, {"headers": {"BCC": ["a"]}}):
        with pytest.raises(ValueError, match="a delayed message cannot have"):
            delayed_values(None, values)
        with pytest.raises(ValueError, match="a delayed message cannot have"):
            delayed_values(BasicProperties(**values), {})
    assert delayed_values(BasicProperties(expiration="5"), {"expiration": None}) == {"expiration": None}


def test_headers_of_deaths_do_not_count_as_a_circle() -> None:
    headers = {"a": 1, "x-death": [], "x-first-death-queue": "q", "x-last-death-reason": "expired"}
    assert delayed_values(BasicProperties(headers=headers), {}) == {"headers": {"a": 1}}
    assert "x-death" in headers
