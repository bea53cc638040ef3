"""The double that users test their handlers with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairsched import ConfigurationError, Message
from fairsched.testing import FakeConsumer


def outcome(message: Message) -> None:
    """Do what the body says."""
    match message.body:
        case b"raise":
            raise ValueError("no")
        case b"defer":
            message.defer()
        case b"nack":
            message.nack()
        case b"reject":
            message.reject()


BODIES = [b"ack", b"raise", b"defer", b"nack", b"reject"]


@pytest.mark.parametrize("way", ["run", "run_async", "iterate"])
def test_every_outcome_whoever_calls_the_handler(way: str) -> None:
    consumer = FakeConsumer(on_error="reject")
    ack, failing, deferred, nack, reject = [consumer.put(body, queue="orders") for body in BODIES]

    async def coroutine(message: Message) -> None:
        outcome(message)

    if way == "run":
        consumer.run(outcome)
    elif way == "run_async":
        asyncio.run(consumer.run_async(coroutine))
    else:
        for message in consumer:
            try:
                with message:
                    outcome(message)
            except ValueError:
                pass
    assert (consumer.acked, consumer.requeued, consumer.rejected) == ([ack], [nack], [failing, reject])
    assert consumer.unsettled == [deferred]
    assert [(message, str(error)) for message, error in consumer.errors] == [(failing, "no")]
    deferred.ack()
    assert consumer.acked == [ack, deferred]


def test_an_interrupt_requeues_the_message_and_goes_on() -> None:
    consumer = FakeConsumer(on_error="reject")
    message = consumer.put()

    def interrupted(_: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consumer.run(interrupted)
    assert (consumer.requeued, consumer.errors) == ([message], [])


def test_a_function_settles_what_failed() -> None:
    consumer = FakeConsumer(on_error=lambda message, error: message.reject(requeue=str(error) == "again"))
    again, never = consumer.put(b"again"), consumer.put(b"never")

    def handler(message: Message) -> None:
        raise ValueError(message.body.decode())

    consumer.run(handler)
    assert (consumer.requeued, consumer.rejected) == ([again], [never])


def test_what_returns_a_coroutine_is_refused_and_its_message_requeued() -> None:
    async def work() -> None: ...

    consumer = FakeConsumer()
    message = consumer.put()
    with pytest.raises(ConfigurationError):
        consumer.run(lambda _: work())
    assert consumer.requeued == [message]


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="body must be bytes, got 'text'"):
        FakeConsumer().put("text")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_error"):
        FakeConsumer(on_error="ignore")

    async def coroutine(message: Message) -> None: ...

    with pytest.raises(ConfigurationError, match="handler"):
        FakeConsumer().run(coroutine)


def test_messages_are_as_handlers_get_them() -> None:
    consumer = FakeConsumer()
    message = consumer.put(b"body", queue="orders", headers={"tenant": "a"}, redelivered=True, message_id="7")
    assert (message.body, message.queue, message.slot, message.routing_key) == (b"body", "orders", "orders", "orders")
    assert (message.headers, message.properties.message_id, message.redelivered) == ({"tenant": "a"}, "7", True)
    assert message.raw_properties


def test_a_lost_connection() -> None:
    consumer = FakeConsumer()
    message = consumer.put()
    consumer.channels["test"].alive = False
    assert (message.alive, message.ack(), consumer.acked) == (False, False, [])


def test_run_async_takes_the_handlers_that_the_asyncio_consumer_takes() -> None:
    consumer = FakeConsumer(on_error="reject")
    message = consumer.put(b"1")
    asyncio.run(consumer.run_async(lambda message: None))
    assert consumer.acked == [message]

    async def generator(message: Message) -> AsyncIterator[None]:
        yield

    consumer.put(b"2")
    with pytest.raises(ConfigurationError, match="generator function"):
        asyncio.run(consumer.run_async(generator))
    assert consumer.errors == []
