"""Pairs NAME=VALUE on the command line."""

from __future__ import annotations

from typing import Any

import click
import pytest

from fairsched.cli.parameters import ArgumentParameter, BindingParameter


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("x-queue-type=quorum", ("x-queue-type", "quorum")),
        ("x-max-length=20", ("x-max-length", 20)),
        ("x-dead-letter-routing-key=a=b", ("x-dead-letter-routing-key", "a=b")),
        ('x-list=["a=b"]', ("x-list", ["a=b"])),
        ("x-text=1.5", ("x-text", "1.5")),
        ("x-text=", ("x-text", "")),
        ("x-text=" + "[" * 100_000, ("x-text", "[" * 100_000)),
    ],
    ids=range(7),
)
def test_a_value_of_an_argument_may_contain_equals_signs(text: str, pair: tuple[str, Any]) -> None:
    assert ArgumentParameter().convert(text, None, None) == pair


def test_the_name_of_a_queue_may_contain_equals_signs() -> None:
    assert BindingParameter().convert("a=b=10", None, None) == ("a=b", "10")


@pytest.mark.parametrize("kind", [ArgumentParameter(), BindingParameter()])
@pytest.mark.parametrize("text", ["", "name", "=5"])
def test_no_pair(kind: ArgumentParameter | BindingParameter, text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"must be {kind.rule}, got {text!r}"):
        kind.convert(text, None, None)
