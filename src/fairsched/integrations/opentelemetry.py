"""Traces of messages, from their publisher to the end of their handler: `Tracing().middleware`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import Getter

from fairsched.errors import DecodingError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from fairsched import App, aio
    from fairsched.delivery._delivery import Message
    from fairsched.publisher import Publisher

__all__ = ["Tracing"]


class Tracing:
    """Creates spans for handlers and for publishing, and passes the trace context in the headers of messages.

    Parameters
    ----------
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        What makes the spans; by default the global one, which exports nothing until the application sets it.

    Notes
    -----
    The span of a handler begins when the message is handed out, and is the current one in the handler. Its parent is
    the span of the publisher of the message, to which it also has a link. ``fairsched.sojourn`` is the time in seconds
    that the message waited in this process; ``fairsched.slot`` is the slot that is charged. If the handler raises, its
    exception is recorded on the span, however the message is settled.

    All methods may be called from any thread. The propagator is the global one of opentelemetry.

    Names and attributes are those of OpenTelemetry's semantic conventions for messaging and RabbitMQ.

    Examples
    --------
    >>> tracing = Tracing()
    >>> consumer = Consumer(url, ["orders"], middleware=[tracing.middleware])  # doctest: +SKIP
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("fairsched", tracer_provider=tracer_provider)

    def middleware(self, message: Message, call_next: Callable[[Message], object]) -> object:
        """Call a plain handler in a span of its own: ``middleware=[tracing.middleware]``."""
        with self._processing(message):
            return call_next(message)

    async def async_middleware(self, message: Message, call_next: Callable[[Message], Awaitable[object]]) -> object:
        """Await a coroutine handler in a span of its own: ``middleware=[tracing.async_middleware]``."""
        with self._processing(message):
            return await call_next(message)

    def publish(
        self,
        publisher: Publisher | aio.Publisher | App,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Any:
        """Publish a message in a span of its own, whose context goes into the headers.

        Parameters
        ----------
        publisher : Publisher, aio.Publisher or App
            Whose ``publish`` is called.
        body, routing_key, exchange, headers, **values
            What that takes. `headers` is not changed.

        Returns
        -------
        Confirmation
            What ``publish`` returns, to be awaited where that is. The span does not wait for the broker.

        Raises
        ------
        TypeError, ValueError, PublishFailed
            As ``publish``; they are on the span.
        """
        attributes: dict[str, Any] = {
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            **_place(exchange, routing_key),
        }
        with self._span("publish", trace.SpanKind.PRODUCER, attributes):
            carrier: dict[str, Any] = {}
            propagate.inject(carrier)
            given = {} if headers is None else dict(headers)
            return publisher.publish(body, routing_key, exchange=exchange, headers={**given, **carrier}, **values)

    @contextmanager
    def _processing(self, message: Message) -> Iterator[None]:
        context = propagate.extract(message, getter=_Headers())
        published = trace.get_current_span(context).get_span_context()
        with self._span(
            "process",
            trace.SpanKind.CONSUMER,
            _attributes(message),
            context=context,
            links=[trace.Link(published)] if published.is_valid else [],
        ):
            yield

    @contextmanager
    def _span(self, operation: str, kind: trace.SpanKind, attributes: dict[str, Any], **values: Any) -> Iterator[Span]:
        name = f"{operation} {attributes['messaging.destination.name']}".rstrip()
        with self._tracer.start_as_current_span(name, kind=kind, attributes=attributes, **values) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise


class _Headers(Getter["Message"]):
    """Reads the context from the headers of a message; none if these cannot be decoded."""

    def get(self, carrier: Message, key: str) -> list[str] | None:
        value = _headers(carrier).get(key)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Message) -> list[str]:
        return [*_headers(carrier)]


def _headers(message: Message) -> Mapping[str, Any]:
    try:
        return message.headers
    except DecodingError:
        return {}


def _place(exchange: str, routing_key: str, *rest: str) -> dict[str, Any]:
    """Return the attributes that name a destination: exchange and routing key, and for a consumer the queue."""
    names = [exchange, routing_key, *rest]
    if rest and not exchange and rest == (routing_key,):
        names = [routing_key]  # by the default exchange
    found: dict[str, Any] = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": ":".join(name for name in names if name),
    }
    if routing_key:
        found["messaging.rabbitmq.destination.routing_key"] = routing_key
    return found


def _attributes(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        **_place(message.exchange, message.routing_key, message.queue),
        "messaging.rabbitmq.message.delivery_tag": message.delivery_tag,
        "messaging.message.body.size": len(message.body),
        "fairsched.queue": message.queue,
        "fairsched.slot": str(message.slot),
        "fairsched.sojourn": max(0.0, time.monotonic() - message.arrived),
    }
    try:
        properties = message.properties
    except DecodingError:
        return found
    if properties.message_id:
        found["messaging.message.id"] = properties.message_id
    if properties.correlation_id:
        found["messaging.message.conversation_id"] = properties.correlation_id
    return found
