"""What a consumer takes is said once, and every reader of it is told: people, type checkers and tools."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

from fairsched import aio
from fairsched.consumer import Consumer
from fairsched.consumer.settings import make_settings

both = pytest.mark.parametrize("make", [Consumer, aio.Consumer])


@both
def test_tools_see_what_it_takes(make: Callable[..., Any]) -> None:
    expected = inspect.signature(make_settings).parameters
    assert dict(inspect.signature(make).parameters) == dict(expected)
    text = pydoc.plain(pydoc.render_doc(make))
    assert all(name in text for name in expected)


@both
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("amqp://a", ["q"]), {"prefech": 3}, "got an unexpected keyword argument 'prefech'"),
        (("amqp://a",), {}, "missing a required argument: 'queues'"),
        (("amqp://a", ["q"], 3), {}, "too many positional arguments"),
    ],
)
def test_what_it_does_not_take_is_refused(
    make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        make(*arguments, **options)
