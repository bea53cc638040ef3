"""RabbitMQ's placement: bindings, renumbering, what is hashed, errors, distribution."""

from __future__ import annotations

import datetime as dt
import random
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched import ConfigurationError
from fairsched.routing import MISSING, ConsistentHashExchange, RabbitMQHash
from fairsched.routing._ring import phash2, rabbitmq_bucket
from fairsched.routing.bindingkey import weight_of

# The grammar of binding keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "weight"), [("1", 1), ("10", 10), ("+5", 5), ("007", 7), ("10000", 10_000), ("+0010000", 10_000)]
)
def test_weights(key: str, weight: int) -> None:
    assert weight_of(key) == weight


@pytest.mark.parametrize(
    "key",
    ["", " 5", "5 ", "5\n", "1_000", "1e3", "0x10", "\uff15", "\u0665", "not-a-number", "+", "-", "+-5", "--5", "1.0"],
)
def test_keys_that_are_no_integers(key: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        RabbitMQHash([("q", key)])
    assert str(error.value) == f"The binding key must be an integer: {key}"


@pytest.mark.parametrize("key", ["0", "-0", "+0", "000", "-1", "-500000000", "-" + "9" * 10_000])
def test_keys_below_one(key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^The binding key must be greater than 0$"):
        weight_of(key)


@pytest.mark.parametrize("key", ["10001", "500000000", "9" * 10_000])
def test_keys_above_the_largest(key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^The binding key must not exceed 10000$"):
        RabbitMQHash([("q", key)])


def test_keys_of_another_type() -> None:
    for key in (10, b"10", None):
        with pytest.raises(ConfigurationError, match="must be an integer"):
            RabbitMQHash([("q", key)])  # type: ignore[list-item]


def test_brokers_before_the_limit() -> None:
    assert RabbitMQHash([("q", "500000000")], max_weight=None).buckets == 500_000_000
    with pytest.raises(ConfigurationError, match="more than 2147483647 buckets"):
        RabbitMQHash([("q", "2147483647"), ("r", "1")], max_weight=None)


# Buckets ---------------------------------------------------------------------------------------------------------


def blocks(exchange: RabbitMQHash) -> list[str]:
    """Queue of each bucket, found with integer headers, whose buckets are known."""
    size = exchange.buckets
    found: dict[int, str | None] = {}
    key = 0
    while len(found) < size:
        found.setdefault(rabbitmq_bucket(key, size), exchange.route(header=key))
        key += 1
    return [str(found[bucket]) for bucket in range(size)]


def test_one_queue() -> None:
    exchange = RabbitMQHash([("q", "1")])
    assert (exchange.buckets, exchange.route("any")) == (1, "q")
    exchange.delete_queue("q")
    assert (exchange.buckets, exchange.route("any"), exchange.bindings) == (0, None, ())


def test_deleting_queues_closes_the_gaps() -> None:
    exchange = RabbitMQHash([("a", "3"), ("b", "3"), ("c", "3")])
    assert blocks(exchange) == [*"aaabbbccc"]
    exchange.delete_queue("a")
    assert blocks(exchange) == [*"bbbccc"]
    exchange.bind("a", "2")
    assert blocks(exchange) == [*"bbbcccaa"]
    exchange.delete_queue("c")
    assert blocks(exchange) == [*"bbbaa"]
    exchange.delete_queue("b")
    exchange.delete_queue("a")
    assert exchange.buckets == 0


@pytest.mark.parametrize("weight", [3, 50, 34, 100, 268, 1937])
def test_six_queues_go_with_their_connection(weight: int) -> None:
    exchange = RabbitMQHash([(f"q{number}", str(weight)) for number in range(6)])
    assert exchange.buckets == 6 * weight
    for number in range(6):
        exchange.delete_queue(f"q{number}")
    assert exchange.buckets == 0


def test_unbinding_one_by_one() -> None:
    exchange = RabbitMQHash([(f"q{number}", "2") for number in range(6)])
    sizes = []
    for number in range(6):
        exchange.unbind(f"q{number}", "2")
        sizes.append(exchange.buckets)
    assert sizes == [10, 8, 6, 4, 2, 0]
    exchange.delete_queue("q0")
    assert exchange.buckets == 0


def test_another_key_for_a_bound_queue_is_ignored() -> None:
    exchange = RabbitMQHash([("q1", "2"), ("q1", "3")])
    assert exchange.buckets == 2
    exchange.bind("q2", "4")
    assert exchange.buckets == 6
    exchange.delete_queue("q1")
    assert exchange.buckets == 4


def test_unbinding_an_ignored_binding_takes_the_buckets() -> None:
    exchange = RabbitMQHash([("q1", "2"), ("q1", "3"), ("q2", "4")])
    exchange.unbind("q1", "3")
    assert blocks(exchange) == ["q2"] * 4
    # The first binding is still there, so binding it again changes nothing; with a new key it counts.
    exchange.bind("q1", "2")
    assert exchange.buckets == 4
    exchange.bind("q1", "5")
    assert exchange.buckets == 9
    exchange.unbind("q2", "4")
    assert blocks(exchange) == ["q1"] * 5


def test_unbinding_what_is_not_bound() -> None:
    exchange = RabbitMQHash([("q1", "2")])
    exchange.unbind("q1", "3")
    exchange.unbind("q2", "2")
    exchange.delete_queue("q3")
    assert exchange.buckets == 2
    assert exchange.bindings == (("q1", "2"),)


def test_renumbering_moves_as_much_as_reported() -> None:
    """Ten equal queues: the removal of the first moves nearly every key, of the last a tenth."""
    keys = [f"key-{number}" for number in range(20_000)]
    moved = []
    for leaving in (0, 4, 8, 9):
        exchange = RabbitMQHash([(f"q{number}", "1") for number in range(10)])
        before = [exchange.route(key) for key in keys]
        exchange.delete_queue(f"q{leaving}")
        moved.append(sum(exchange.route(key) != old for key, old in zip(keys, before, strict=True)) / len(keys))
    assert moved == pytest.approx([0.988, 0.591, 0.189, 0.1], abs=0.015)


# What is hashed --------------------------------------------------------------------------------------------------

FOUR = [("q0", "1"), ("q1", "1"), ("q2", "2"), ("q3", "2")]
BUCKETS = ["q0", "q1", "q2", "q2", "q3", "q3"]


def expected(hashed: int) -> str:
    return BUCKETS[rabbitmq_bucket(hashed, 6)]


def test_routing_keys_and_properties_are_binaries() -> None:
    exchange = RabbitMQHash(FOUR)
    for value in ("", "0", "hello", "user-42", "\u00fc"):
        assert exchange.route(value) == exchange.route(value.encode()) == exchange.route(property=value)
        assert exchange.route(value) == exchange.route(header=value) == expected(phash2(value))


def test_integer_headers_are_hashes_themselves() -> None:
    exchange = RabbitMQHash(FOUR)
    for value in (0, 1, 2, 42, 10**6, -1, -(2**63), 2**63 - 1):
        assert exchange.route(header=value) == expected(value)
    assert exchange.route(header=1 + 2**21) == exchange.route(header=1)
    with pytest.raises(OverflowError):
        exchange.route(header=2**63)


def test_other_headers() -> None:
    exchange = RabbitMQHash(FOUR)
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
    seconds = int(moment.timestamp())
    assert exchange.route(header=True) == expected(phash2(True))
    assert exchange.route(header=1.5) == expected(phash2(1.5))
    assert exchange.route(header=moment) == expected(seconds * 1000)
    for value in ({}, [1], object()):
        with pytest.raises(TypeError):
            exchange.route(header=value)


def test_timestamps_are_their_decimal_seconds() -> None:
    exchange = RabbitMQHash(FOUR)
    seconds = 1_700_000_000
    zone = dt.timezone(dt.timedelta(hours=5))
    for value in (
        seconds, str(seconds), dt.datetime.fromtimestamp(seconds, dt.UTC), dt.datetime.fromtimestamp(seconds, zone),
        dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None),
    ):  # fmt: skip
        assert exchange.route(property=value) == expected(phash2(str(seconds)))
    with pytest.raises(TypeError, match="a property must be str, bytes, int or datetime, got"):
        exchange.route(property=1.5)


def test_missing_values_are_one_constant() -> None:
    exchange = RabbitMQHash(FOUR)
    assert repr(MISSING) == "MISSING"
    assert exchange.route(header=MISSING) == exchange.route()
    assert exchange.route() == exchange.route(header=None) == exchange.route(header=[]) == expected(phash2(None))


def test_typed_headers_of_older_brokers() -> None:
    exchange = RabbitMQHash(FOUR, typed_headers=True)
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    for value, tag, hashed in (
        ("1", "longstr", "1"), (b"1", "binary", "1"), (1, "signedint", 1), (-(2**31), "signedint", -(2**31)),
        (2**31, "long", 2**31), (True, "bool", True), (1.5, "double", 1.5), (None, "void", None),
        (moment, "timestamp", int(moment.timestamp())),
    ):  # fmt: skip
        assert exchange.route(header=value) == expected(phash2(hashed, tag=tag))
    assert exchange.route() == expected(phash2(None))
    assert exchange.route("1") == expected(phash2("1"))
    with pytest.raises(TypeError, match="a header to hash must be"):
        exchange.route(header={})


def test_one_value_at_a_time() -> None:
    exchange = RabbitMQHash(FOUR)
    for values in ({"header": 1, "property": "x"}, {"routing_key": "x", "header": 1}):
        with pytest.raises(TypeError, match="hashes one of"):
            exchange.route(**values)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a routing key must be str or bytes, got 5"):
        exchange.route(5)  # type: ignore[arg-type]


# The exchange ----------------------------------------------------------------------------------------------------


def test_the_exchange_hashes_what_it_was_told_to() -> None:
    message = SimpleNamespace(message_id="m", correlation_id="c", timestamp=7, headers={"account": "h"})
    plain = RabbitMQHash(FOUR)
    for options, value in (
        ({}, "key"), ({"hash_header": "account"}, "h"), ({"hash_property": "message_id"}, "m"),
        ({"hash_property": "correlation_id"}, "c"), ({"hash_property": "timestamp"}, "7"),
    ):  # fmt: skip
        exchange = ConsistentHashExchange(FOUR, **options)  # type: ignore[arg-type]
        assert exchange.route("key", message) == plain.route(value)
    exchange = ConsistentHashExchange(FOUR, hash_header="account")
    assert exchange.route("key", message, headers={"account": "other"}) == plain.route("other")


@pytest.mark.parametrize("typed", [False, True])
def test_messages_without_a_value_go_to_one_queue(typed: bool) -> None:
    missing = RabbitMQHash(FOUR).route()
    header = ConsistentHashExchange(FOUR, hash_header="account", typed_headers=typed)
    for headers in (None, {}, {"other": 1}):
        assert header.route("any", SimpleNamespace(headers=headers)) == missing
    assert header.route("any") == missing
    for name in ("message_id", "correlation_id", "timestamp"):
        by_property = ConsistentHashExchange(FOUR, hash_property=name)
        assert by_property.route("any") == by_property.route("any", SimpleNamespace(**{name: None})) == missing


def test_the_exchange_keeps_its_bindings() -> None:
    exchange = ConsistentHashExchange()
    assert exchange.route("x") is None
    exchange.bind("a", "1")
    exchange.bind("b", "1")
    assert {exchange.route(str(number)) for number in range(50)} == {"a", "b"}
    exchange.unbind("a", "1")
    assert exchange.route("x") == "b"
    exchange.delete_queue("b")
    assert exchange.route("x") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hash_header": "h", "hash_property": "nonsense"}, "hash-header and hash-property are mutually exclusive"),
        ({"hash_header": "h", "hash_property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
        ({"hash_property": "app_id"}, "Unsupported property: app_id"),
        ({"bindings": [("q", "-1")]}, "The binding key must be greater than 0"),
        ({"bindings": [("q", "x")]}, "The binding key must be an integer: x"),
        ({"bindings": [("q", "500000000")]}, "The binding key must not exceed 10000"),
    ],
)
def test_errors_in_the_words_of_the_broker(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        ConsistentHashExchange(**options)
    assert str(error.value) == says


# Distribution ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hash_header": "hashme"},
        *({"hash_property": name} for name in ("message_id", "correlation_id", "timestamp")),
    ],
    ids=lambda options: next(iter(options.values()), "routing key"),
)
def test_distribution(options: dict[str, str]) -> None:
    """150 000 values over weights 1, 1, 2, 2: chi-squared with three degrees of freedom, p = 1e-6, of fixed keys."""
    exchange = ConsistentHashExchange(FOUR, **options)  # type: ignore[arg-type]
    values = random.Random(20260)
    counts = dict.fromkeys(("q0", "q1", "q2", "q3"), 0)
    for _ in range(150_000):
        value = str(values.randint(1, 10_000_000))
        message = SimpleNamespace(
            message_id=value, correlation_id=value, timestamp=int(value), headers={"hashme": value}
        )
        counts[str(exchange.route(value, message))] += 1
    ideal = {"q0": 25_000, "q1": 25_000, "q2": 50_000, "q3": 50_000}
    assert sum(counts.values()) == 150_000
    assert sum((counts[queue] - ideal[queue]) ** 2 / ideal[queue] for queue in ideal) < 30.66
