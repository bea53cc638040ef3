"""``fairsched route``: keys to queues, on a ring and as RabbitMQ does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from fairsched.cli.group import cli
from fairsched.routing import HashRing, RabbitMQHash

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


def test_keys_that_are_not_text() -> None:
    """A routing key is bytes; whatever they are, the row has them as they came."""
    ring = HashRing({"q0": 10, "q1": 20})
    keys = [b"\xff", b"a\xe9\x00", "\u00fc".encode(), b""]
    rows = b"".join(key + f"\t{ring.route(key)}\n".encode() for key in keys)
    result = CliRunner().invoke(
        cli, ["route", *BINDINGS, "-"], input=b"\n".join(keys[:2]) + b"\r\n" + keys[2] + b"\n\n"
    )
    assert (result.exit_code, result.stdout_bytes) == (0, rows)
    found = [sys.executable, "-m", "fairsched.cli", "route", *BINDINGS, b"\xff", "\u00fc"]
    assert (
        subprocess.run(found, capture_output=True, check=True).stdout
        == rows.splitlines(True)[0] + rows.splitlines(True)[2]
    )


@pytest.mark.parametrize(
    "command",
    [["--version"], ["--help"], ["route", "--help"], ["route", *BINDINGS, "key"], ["simulate", "--list"], ["broker"]],
)
def test_an_output_that_cannot_be_written(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-m", "fairsched.cli", *command],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (found.returncode, found.stderr.decode()) == (
        1, "Error: the output cannot be written: No space left on device\n",
    )  # fmt: skip


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
