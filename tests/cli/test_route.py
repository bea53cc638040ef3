"""``fairsched route``: keys to queues, on a ring and as RabbitMQ does."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from fairsched import HashRing, RabbitMQHash
from fairsched.cli.group import cli

BINDINGS = ("--binding", "q0=10", "--binding", "q1=20")


def route(*arguments: str, text: str | None = None) -> Any:
    return CliRunner().invoke(cli, ["route", *arguments], input=text)


def lines(keys: list[str], place: Any) -> str:
    return "".join(f"{key}\t{place(key)}\n" for key in keys)


def test_on_the_ring() -> None:
    keys = ["user-42", "user-43", "", "\u00fc"]
    result = route(*BINDINGS, *keys)
    assert (result.exit_code, result.stdout) == (0, lines(keys, HashRing({"q0": 10, "q1": 20}).route))


def test_on_another_ring() -> None:
    keys = [f"key-{number}" for number in range(50)]
    result = route(*BINDINGS, "--points", "8", "--seed", "42", *keys)
    ring = HashRing({"q0": 10, "q1": 20}, points_per_weight=8, seed=42)
    assert (result.exit_code, result.stdout) == (0, lines(keys, ring.route))


def test_as_rabbitmq_does() -> None:
    keys = [f"key-{number}" for number in range(50)]
    result = route(*BINDINGS, "--rabbitmq", *keys)
    assert (result.exit_code, result.stdout) == (0, lines(keys, RabbitMQHash([("q0", "10"), ("q1", "20")]).route))


def test_keys_from_standard_input() -> None:
    result = route(*BINDINGS, "--rabbitmq", "-", text="a\nb c\n\nlast")
    place = RabbitMQHash([("q0", "10"), ("q1", "20")]).route
    assert (result.exit_code, result.stdout) == (0, lines(["a", "b c", "", "last"], place))


def test_a_queue_whose_name_has_a_sign_of_equality() -> None:
    assert route("--binding", "a=b=1", "key").stdout == "key\ta=b\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("key",), "Missing option '--binding'"),
        (BINDINGS, "Missing argument 'KEY...'"),
        (("--binding", "q0", "key"), "must be a queue and its weight, such as orders=10, got 'q0'"),
        (("--binding", "=1", "key"), "must be a queue and its weight"),
        (("--binding", "q0=x", "key"), "The binding key must be an integer: x (queue q0)"),
        (("--binding", "q0=0", "key"), "The binding key must be greater than 0 (queue q0)"),
        ((*BINDINGS, "--binding", "q0=1", "key"), "queue q0 is given twice"),
        ((*BINDINGS, "--points", "0", "key"), "--points"),
    ],
)
def test_usage(arguments: tuple[str, ...], says: str) -> None:
    result = route(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
