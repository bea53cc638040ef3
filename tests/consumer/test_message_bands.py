"""Priorities of messages by `band`: what is one, what counts as the lowest, and what is logged."""

from __future__ import annotations

import logging
import struct
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties
from support.wiretables import SIZES, Encoded, field, packed, table

from fairsched import ConfigurationError, Consumer, Limit, Queue, Tenant
from fairsched.config.lanes import Lanes
from fairsched.consumer.message_bands import band_function
from fairsched.consumer.settings import ConsumerSettings
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel, FakeConsumer

URL = "amqp://127.0.0.1:9"


def message(**properties: Any) -> Any:
    return FakeConsumer().put(b"", queue="jobs", **properties)


def received(properties: BasicProperties) -> Message:
    """Make a message as it comes from the connection: its properties are octets."""
    return Message(b"", 7, False, b"", pika.frame.Header(1, 0, properties).marshal()[7:-1], FakeChannel("jobs"))


class Hostile(int):
    """A number whose arithmetic and comparisons raise."""

    def refuse(self, *_: object) -> Any:
        raise RuntimeError("used")

    __add__ = __radd__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __int__ = __index__ = __bool__ = refuse
    __hash__ = int.__hash__


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Level(IntEnum):
    LOW = 2


@pytest.mark.parametrize(("value", "expected"), [(None, 0), (0, 0), (5, 5), (9, 9), (10, 9), (255, 9)])
def test_the_property(value: int | None, expected: int) -> None:
    assert band_function("property:priority")(message(priority=value)) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, 0),
        ({}, 0),
        ({"other": 4}, 0),
        ({"rank": 0}, 0),
        ({"rank": 7}, 7),
        ({"rank": 10**12}, 9),
        ({"rank": None}, 0),
    ],
)
def test_a_header(headers: dict[str, Any] | None, expected: int, caplog: pytest.LogCaptureFixture) -> None:
    assert band_function("header:rank")(message(headers=headers)) == expected
    assert not caplog.records


@pytest.mark.parametrize("value", [-1, True, "7", 3.0, [1], {"a": 1}, Decimal(3), b"1"])
def test_what_is_no_priority_is_the_lowest_and_logged_once(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    band = band_function("header:rank")
    for _ in range(3):
        assert band(message(headers={"rank": value})) == 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    kind = "a negative one" if value == -1 else f"a value of type {type(value).__name__}"
    assert f"queue 'jobs' must be a whole number from 0 to 9, got {kind}; such" in record.getMessage()


@pytest.mark.parametrize(("value", "expected"), [(3, 3), (Level.LOW, 2), (Hostile(6), 6), (Hostile(60), 9), (None, 0)])
def test_a_function_of_the_message(value: Any, expected: int, caplog: pytest.LogCaptureFixture) -> None:
    found = band_function(lambda _message: value)(message(priority=8))
    assert (type(found), found) == (int, expected)
    assert not caplog.records


@pytest.mark.parametrize("value", [Unprintable(), "x" * 10_000, Hostile(-1)])
def test_whatever_a_function_returns(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert band_function(lambda _message: value)(message()) == 0
    assert len(caplog.text) < 1000


def test_a_function_that_raises_does_not_stop_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    band = band_function(lambda found: found.properties.headers["missing"])
    assert [band(message()), band(message())] == [0, 0]
    (record,) = caplog.records
    assert "band function failed on a message of queue 'jobs' (TypeError: " in record.getMessage()


@given(
    value=st.one_of(
        st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 255)).filter(lambda pair: pair != ("b", 255)),
        st.tuples(st.sampled_from("sIl"), st.integers(-9, 9)),
        st.tuples(st.sampled_from("lL"), st.sampled_from([2**63 - 1, 2**40])),
        st.tuples(st.just("t"), st.booleans()),
        st.tuples(st.just("S"), st.binary(max_size=3)),
        st.tuples(st.just("A"), st.just([("B", 3)])),
        st.just(("V", None)),
    ).filter(lambda pair: pair[0] != "b" or pair[1] < 128),
    others=st.lists(st.sampled_from([b"ran", b"ranks", b"rank"]), max_size=2),
)
def test_the_value_of_a_header_means_the_same_decoded_or_not(value: tuple[str, Any], others: list[bytes]) -> None:
    """The compiled look at the octets agrees with the decoded headers, for every type of field."""
    kind, content = value
    fields = [field(name, b"B", b"\7") for name in others]
    headers = table(*fields, field(b"rank", kind.encode(), packed(kind, content)))
    one = received(Encoded(headers, priority=200))
    by_function = band_function(lambda found: found.properties.headers.get("rank"))
    assert band_function("header:rank")(one) == by_function(one)
    assert band_function("property:priority")(one) == 9


@pytest.mark.parametrize(("priority", "expected"), [(None, 0), (0, 0), (4, 4), (9, 9), (255, 9)])
def test_the_property_as_it_is_received(priority: int | None, expected: int) -> None:
    one = received(BasicProperties(priority=priority, headers={"a": "b"}))
    assert band_function("property:priority")(one) == expected
    assert band_function("header:rank")(one) == 0


@pytest.mark.parametrize("spec", ["property:priority", "header:rank", lambda one: one.properties.priority])
def test_properties_that_cannot_be_decoded(spec: Any, caplog: pytest.LogCaptureFixture) -> None:
    broken = Message(b"", 7, False, b"", struct.pack(">HxxQH", 60, 4, 1), FakeChannel("gold"))
    assert [band_function(spec)(broken) for _ in range(3)] == [0] * 3
    assert "band of a message of queue 'gold': the properties cannot be decoded" in caplog.text


@pytest.mark.parametrize("spec", ["priority", "header:", "property:app_id", "queue", 3, "header:\ud800"])
def test_refused_bands(spec: Any) -> None:
    with pytest.raises(ConfigurationError, match="band "):
        Consumer(URL, ["q"], band=spec)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ordering_key": "header:account"}, "cannot be combined with ordering_key"),
        (
            {"subkey": "header:user"},
            "cannot be combined with subkey='header:user': a subkey's messages keep their order",
        ),
        (
            {"key": "header:t", "tenants": {"a": Tenant(band=0)}},
            "band of tenant 'a' cannot be combined with band='prop",
        ),
        ({"queues": [Queue("gold", band=0)]}, "band of queue 'gold' cannot be combined with band='property:priority'"),
        ({"queues": Lanes("q", key="header:t", ordered=True)}, "or with lanes that keep their order"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        ConsumerSettings(URL, **{"queues": ["q"], "band": "property:priority", **options})


def test_a_queue_that_is_added_has_no_band_of_its_own() -> None:
    settings = ConsumerSettings(URL, ["q"], band="property:priority")
    with pytest.raises(ConfigurationError, match="band of queue 'gold' cannot be combined"):
        settings.with_queues({"gold": Queue("gold", band=1)})
    assert settings.with_queues({"gold": Queue("gold", limit=Limit(1))}).band is settings.band
