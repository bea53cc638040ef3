"""Functions of a source's queues: those that the same code makes again are the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fairsched import Queue, Retry
from fairsched.consumer.changing.functions_made_anew import with_first_functions


def made(_extra: int = 0) -> Any:
    return lambda message, _error: message.reject()


class Handler:
    def __call__(self, message: Any, error: Exception) -> None:
        message.reject()

    def method(self, message: Any, error: Exception) -> None:
        message.reject()


def plain(message: Any, error: Exception) -> None:
    message.reject()


def with_option(message: Any, error: Exception, *, option: int) -> None:
    message.reject()


@pytest.mark.parametrize(
    "make",
    [made, Handler, lambda: Handler().method, lambda: partial(with_option, option=1), lambda: plain],
    ids=["closure", "object", "method", "partial", "function"],
)
@pytest.mark.parametrize("place", ["on_error", "retry"])
def test_what_the_same_code_makes_again_is_the_same(make: Any, place: str) -> None:
    def queue() -> Queue:
        return Queue("q", on_error=make()) if place == "on_error" else Queue("q", retry=Retry(2, on=make()))

    first = queue()
    assert with_first_functions(first, queue()) == first


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (Queue("q", on_error=made()), Queue("q", on_error=plain)),
        (Queue("q", on_error=made()), Queue("q", on_error="reject")),
        (Queue("q", retry=Retry(on=made())), Queue("q", retry=Retry(on=OSError))),
        (Queue("q", retry=Retry(on=ValueError)), Queue("q", retry=Retry(on=OSError))),
        (Queue("q", retry=Retry(on=made())), Queue("q", retry=False)),
    ],
)
def test_other_functions_are_other_options(first: Queue, other: Queue) -> None:
    assert with_first_functions(first, other) is other
