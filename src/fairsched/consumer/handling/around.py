"""The calls around a handler: decoding first, then middleware, and inside of it the time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairsched.consumer.handling.time_limit import TimeLimits, limited_coroutine
from fairsched.delivery.handlers import check_plain, is_coroutine_handler
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.delivery._counters import Counters
    from fairsched.delivery._delivery import Message

_Handler = Callable[["Message"], Any]


def around_plain(settings: ConsumerSettings, handler: _Handler, limits: TimeLimits | None) -> _Handler:
    """Return what calls a plain handler, which is the handler itself where nothing is round it.

    Raises
    ------
    ConfigurationError
        If a middleware is a coroutine function or a generator function.
    """
    for one in settings.middleware:
        check_plain(one, "middleware")
    if limits is not None:
        handler = limits.around(handler)
    handler = _chained(settings.middleware, handler)
    return handler if settings.decode is None else _decoding(handler)


def around_thread(settings: ConsumerSettings, handler: _Handler, limits: TimeLimits | None) -> _Handler:
    """Return what the thread of a worker of the asyncio consumer calls: a plain handler in its plain middleware.

    Raises
    ------
    ConfigurationError
        If a coroutine function comes behind a plain one: it would have to run in the thread.
    """
    plain = [one for one in settings.middleware if not is_coroutine_handler(one)]
    if plain and settings.middleware[-len(plain) :] != tuple(plain):
        raise ConfigurationError(
            "middleware of a plain handler must name coroutine functions, which run in the event loop, before plain "
            "ones, which run in the thread of the handler"
        )
    return _chained(plain, handler if limits is None else limits.around(handler))


def around_coroutine(
    settings: ConsumerSettings,
    handler: _Handler,
    counters: Counters,
    *,
    threaded: bool = False,
    seconds: Mapping[str, float] | None = None,
) -> _Handler:
    """Return what a worker of the asyncio consumer awaits.

    Parameters
    ----------
    settings : ConsumerSettings
        Says what is wanted.
    handler : coroutine function
        The handler, or one that calls a plain handler in its thread.
    counters : Counters
        Counts handlers that exceeded their time.
    threaded : bool
        Whether it is the latter: then plain middleware and the time limit are round what the thread calls.
    seconds : mapping, optional
        Time limits by queue, which may change while handlers are called; by default those of the settings.

    Raises
    ------
    ConfigurationError
        If plain middleware is to be round a coroutine, which would run after it has returned.
    """
    middleware = [one for one in settings.middleware if is_coroutine_handler(one)]
    if not threaded:
        if len(middleware) < len(settings.middleware):
            raise ConfigurationError(
                "middleware of a coroutine handler must be coroutine functions, which await call_next(message)"
            )
        seconds = settings.time_limits or None if seconds is None else seconds
        if seconds is not None:
            handler = limited_coroutine(handler, seconds, counters)
    handler = _chained(middleware, handler)
    return handler if settings.decode is None else _decoding_first(handler)


def _chained(middleware: Iterable[Callable[..., Any]], handler: _Handler) -> _Handler:
    """Put a handler into middleware, of which the first is the outermost."""
    for one in reversed(list(middleware)):
        handler = _linked(one, handler)
    return handler


def _linked(middleware: Callable[..., Any], call_next: _Handler) -> _Handler:
    return lambda message: middleware(message, call_next)


def _decoding(handler: _Handler) -> _Handler:
    def decode_first(message: Message) -> object:
        message.data  # noqa: B018  # raises here what it would raise in the handler
        return handler(message)

    return decode_first


def _decoding_first(handler: _Handler) -> _Handler:
    async def decode_first(message: Message) -> object:
        message.data  # noqa: B018
        return await handler(message)

    return decode_first
