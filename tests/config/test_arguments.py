"""The arguments of a consumer are written once, and each reader sees them: people, type checkers and tools."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

from fairsched import aio
from fairsched.config.consumer_options import COMMAND_OPTIONS, OPTIONS
from fairsched.consumer import Consumer
from fairsched.consumer.settings import ConsumerSettings

both = pytest.mark.parametrize("make", [Consumer, aio.Consumer])


@both
def test_tools_see_what_it_takes(make: Callable[..., Any]) -> None:
    expected = inspect.signature(ConsumerSettings).parameters
    assert dict(inspect.signature(make).parameters) == dict(expected)
    text = pydoc.plain(pydoc.render_doc(make))
    assert all(f" {name} : " in text for name in expected)


@both
def test_it_takes_the_options_of_the_table(make: Callable[..., Any]) -> None:
    table = {name: option.default for name, option in OPTIONS.items() if name not in COMMAND_OPTIONS}
    parameters = inspect.signature(make).parameters.values()
    table["middleware"] = ()  # functions have no text
    required = dict.fromkeys(("url", "queues"), inspect.Parameter.empty)
    assert {parameter.name: parameter.default for parameter in parameters} == {**table, **required}


@both
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("amqp://a", ["q"]),
            {"prefech": 3},
            r"got an unexpected keyword argument 'prefech': did you mean 'prefetch'\?",
        ),
        (("amqp://a",), {}, "missing a required argument: 'queues'"),
        (("amqp://a", ["q"], 3), {}, "too many positional arguments"),
    ],
)
def test_what_it_does_not_take_is_refused(
    make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        make(*arguments, **options)
