"""Functions that users give: those of which a call does nothing are refused, when given or when they show it."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from fairsched import App, ConfigurationError, Consumer, aio, from_pika
from fairsched.consumer.cost import cost_model
from fairsched.consumer.keys import key_function
from fairsched.delivery.handlers import check_plain, check_result, is_coroutine_handler
from fairsched.testing import FakeConsumer

#: No broker listens there, and none is asked: arguments are refused before.
URL = "amqp://guest:guest@127.0.0.1:1/"


async def coroutine(*_: object) -> None: ...


def generator(*_: object) -> Iterator[None]:
    yield


async def async_generator(*_: object) -> AsyncIterator[None]:
    yield


@types.coroutine
def old_coroutine(*_: object) -> Iterator[None]:
    yield


def plain(*_: object) -> None: ...


class Called:
    async def __call__(self, *_: object) -> None: ...


class CalledStatic:
    @staticmethod
    async def __call__(*_: object) -> None: ...


class Wrapping:
    __call__ = Called()


class Yielding:
    def __call__(self, *_: object) -> Iterator[None]:
        yield


class Handlers:
    async def method(self, *_: object) -> None: ...

    @classmethod
    async def of_class(cls, *_: object) -> None: ...

    @staticmethod
    async def static(*_: object) -> None: ...

    def yields(self, *_: object) -> Iterator[None]:
        yield

    def plain(self, *_: object) -> None: ...

    def __call__(self, *_: object) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*arguments: object) -> object:
        return await function(*arguments)

    return wrapper


def driven(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function which runs the coroutine function that it wraps."""

    @functools.wraps(function)
    def wrapper(*arguments: object) -> object:
        try:
            function(*arguments).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError

    return wrapper


COROUTINES = [
    coroutine, old_coroutine, decorated(coroutine), functools.partial(coroutine, 1),
    functools.partial(functools.partial(Handlers().method, 1), 2), Handlers().method, Handlers.of_class,
    Handlers.static, Called(), CalledStatic(), Wrapping(), functools.partial(Called(), 1), Called().__call__,
    AsyncMock(),
]  # fmt: skip
GENERATORS = [
    generator, async_generator, Yielding(), Handlers().yields, functools.partial(generator, 1), Yielding().__call__,
]  # fmt: skip
PLAIN = [
    plain, lambda message: None, Handlers().plain, Handlers(), functools.partial(plain, 1), print, [].append, Handlers,
    driven(coroutine), functools.lru_cache(plain), functools.partial(Handlers()),
]  # fmt: skip
NO_FUNCTIONS = [None, "handler", 5, object()]


@pytest.mark.parametrize("function", COROUTINES)
def test_coroutine_functions_are_known(function: Any) -> None:
    assert is_coroutine_handler(function)
    with pytest.raises(ConfigurationError, match=r"must be a plain function, got the coroutine .*fairsched\.aio"):
        check_plain(function, "handler")
    with pytest.raises(ConfigurationError, match=r"key must be .* without async$"):
        check_plain(function, "key")


@pytest.mark.parametrize("function", GENERATORS)
def test_generator_functions_are_known(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"generator function .*without yield"):
        is_coroutine_handler(function)
    with pytest.raises(ConfigurationError, match=r"generator function .*without yield"):
        check_plain(function, "handler")


@pytest.mark.parametrize("function", PLAIN)
def test_plain_functions_are_known(function: Any) -> None:
    check_plain(function, "handler")
    assert not is_coroutine_handler(function)


@pytest.mark.parametrize("function", NO_FUNCTIONS)
def test_what_cannot_be_called_is_refused(function: Any) -> None:
    for check in (is_coroutine_handler, lambda one: check_plain(one, "handler")):
        with pytest.raises(ConfigurationError, match="handler must be a function, got"):
            check(function)


@pytest.mark.parametrize("make", [coroutine, generator, async_generator, old_coroutine, Handlers().method])
def test_results_that_nothing_runs_are_refused_and_closed(make: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = make()
        with pytest.raises(ConfigurationError, match=f"returned the .*{make.__qualname__!r}, which nothing runs"):
            check_result(result, "handler")
    if inspect.iscoroutine(result):
        assert inspect.getcoroutinestate(result) == inspect.CORO_CLOSED
    if inspect.isgenerator(result):
        assert inspect.getgeneratorstate(result) == inspect.GEN_CLOSED


@pytest.mark.parametrize("result", [0, "", {}, [1], object(), True, iter([]), map(plain, [])])
def test_other_results_are_allowed(result: object) -> None:
    check_result(result, "handler")


# Where they are given ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [*COROUTINES[:2], *GENERATORS[:2], *NO_FUNCTIONS])
def test_a_handler_is_refused_before_anything_is_consumed(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="handler must be a"):
        Consumer(URL, ["q"]).run(function)
    with pytest.raises(ConfigurationError, match="handler of queue 'gold' must be a"):
        App(URL).consumer("gold")(function)
    with pytest.raises(ConfigurationError, match="callback must be a"):
        from_pika(function)


@pytest.mark.parametrize("function", [*GENERATORS[:2], *NO_FUNCTIONS])
def test_a_handler_for_asyncio_is_refused(function: Any) -> None:
    running = aio.Consumer(URL, ["q"]).run(function)
    with pytest.raises(ConfigurationError, match="handler must be a"):
        running.send(None)


@pytest.mark.parametrize("consumer", [Consumer, aio.Consumer])
@pytest.mark.parametrize("option", ["on_error", "key", "subkey", "band", "ordering_key", "cost"])
@pytest.mark.parametrize("function", [coroutine, Called(), generator, async_generator])
def test_options_that_are_functions_are_plain_ones(consumer: Any, option: str, function: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a plain function, got the .*function"):
        consumer(URL, ["q"], **{option: function})


def test_keys_that_nothing_runs_are_no_keys(caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine can be hashed: each message would be a tenant of its own."""
    for make in (coroutine, generator, async_generator):
        key = key_function(lambda message, make=make: make())
        assert key(FakeConsumer().put(queue="gold")) == ""
    assert [str(record.exc_info[1]).count("key returned the") for record in caplog.records] == [1, 1, 1]


def test_costs_that_nothing_runs_are_no_costs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert cost_model(lambda message: coroutine()).estimate(FakeConsumer().put(queue="gold")) == 1
    assert "returned the" in caplog.text
