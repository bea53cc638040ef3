"""The first failure of a message decides: until that is carried out, nothing else has an effect on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties

from fairsched import Message, Retry, Throttled
from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.handling.failures import FailurePolicy, call_async
from fairsched.consumer.requeueing.pace import Pace
from fairsched.delivery._counters import Counters
from fairsched.delivery._messagesource import call
from fairsched.testing import FakeChannel, FakeConsumer

ACK, REQUEUE, REJECT = AckLedger.ACK, AckLedger.REQUEUE, AckLedger.REJECT


class Failing:
    """A queue whose messages were redelivered, so that the requeue of one that fails waits until `release`."""

    def __init__(self, on_error: Any = "requeue") -> None:
        self.delayed: list[Callable[[], object]] = []
        self.counters = Counters()
        self.pace = Pace()
        self.pace.begin(lambda _seconds, function: self.delayed.append(function))
        self.policy = FailurePolicy(on_error, self.counters, pace=self.pace)
        self.channel = Origin("q", self.policy)
        self._tags = itertools.count(1)

    def message(self, redelivered: bool = True) -> Message:
        tag = next(self._tags)
        method = Basic.Deliver("tag", tag, redelivered, "", "q")
        return Message(b"%d" % tag, tag, redelivered, method, BasicProperties(), self.channel)

    def failed(self) -> Message:
        """Return a message that failed the second time: its requeue waits."""
        message = self.message()
        message.fail(ValueError("first"))
        assert len(self.delayed) == 1
        return message

    def batch(self, *messages: Message) -> MessageBatch:
        return MessageBatch(list(messages), self.policy.settle_many, lambda _messages, _elapsed: None)

    @property
    def errors(self) -> int:
        return self.counters.snapshot()["errors"]


class Origin(FakeChannel):
    """A channel whose failures are settled as those of a consumer."""

    def __init__(self, queue: str, policy: FailurePolicy) -> None:
        super().__init__(queue)
        self.failed = policy.settle


def failing_block(message: Message) -> None:
    with pytest.raises(ZeroDivisionError), message:
        raise ZeroDivisionError


def block(message: Message) -> None:
    with message:
        pass


def interrupted_block(message: Message) -> None:
    with pytest.raises(KeyboardInterrupt), message:
        raise KeyboardInterrupt


def in_another_thread(message: Message) -> None:
    thread = threading.Thread(target=message.ack)
    thread.start()
    thread.join()


#: What may be done with a message whose requeue waits, by name.
DEEDS: dict[str, Callable[[Failing, Message], object]] = {
    "ack": lambda _, message: message.ack(),
    "nack": lambda _, message: message.nack(),
    "refuse": lambda _, message: message.nack(requeue=False),
    "reject": lambda _, message: message.reject(),
    "return it": lambda _, message: message.reject(requeue=True),
    "defer": lambda _, message: message.defer(),
    "finish": lambda _, message: message.finish(),
    "fail": lambda _, message: message.fail(ValueError("second")),
    "cancel": lambda _, message: message.fail(asyncio.CancelledError()),
    "block": lambda _, message: block(message),
    "failing block": lambda _, message: failing_block(message),
    "interrupted block": lambda _, message: interrupted_block(message),
    "ack in another thread": lambda _, message: in_another_thread(message),
    "return of a handler": lambda _, message: call(lambda _: None, message),
    "return of a coroutine": lambda _, message: asyncio.run(call_async(nothing, message)),
    "error of a handler": lambda _, message: call(fail, message),
    "ack of the batch": lambda world, message: world.batch(message).ack(),
    "nack of the batch": lambda world, message: world.batch(message).nack(),
    "rejection of the batch": lambda world, message: world.batch(message).nack(requeue=False),
    "block of the batch": lambda world, message: block(world.batch(message)),  # type: ignore[arg-type]
    "failing block of the batch": lambda world, message: failing_block(world.batch(message)),  # type: ignore[arg-type]
    "interrupted block of the batch": lambda world, message: interrupted_block(
        world.batch(message)  # type: ignore[arg-type]
    ),
}


async def nothing(_message: Message) -> None:
    pass


def fail(_message: Message) -> None:
    raise ValueError("second")


@pytest.mark.parametrize("deed", DEEDS)
def test_nothing_else_settles_a_message_whose_requeue_waits(deed: str) -> None:
    world = Failing()
    message = world.failed()
    assert not DEEDS[deed](world, message)
    assert world.channel.settled == []
    assert (message.settled, message.deferred, world.errors) == (False, False, 1)
    assert repr(message).endswith("being settled>")
    assert len(world.delayed) == 1
    world.delayed[0]()
    assert world.channel.settled == [(message.delivery_tag, REQUEUE)]
    assert not message.ack()


def test_a_batch_that_failed_is_requeued_whatever_is_done_with_it_afterwards() -> None:
    world = Failing()
    messages = [world.message() for _ in range(5)]
    batch = world.batch(*messages)
    messages[3].ack()
    messages[4].defer()
    failing_block(messages[1])  # it failed before its batch
    failing_block(batch)  # type: ignore[arg-type]
    assert (batch.ack(), batch.nack(), batch.nack(requeue=False)) == (0, 0, 0)
    with batch:
        pass
    assert world.errors == 4
    world.pace.release()
    assert sorted(world.channel.settled) == [(1, REQUEUE), (2, REQUEUE), (3, REQUEUE), (4, ACK), (5, REQUEUE)]


def test_a_function_is_asked_once_and_may_do_what_a_handler_may() -> None:
    for answer, settled in [
        (Message.ack, [(1, ACK)]), (Message.reject, [(1, REJECT)]), (Message.nack, [(1, REQUEUE)]),
        (lambda _message: None, []), (Message.defer, []),
    ]:  # fmt: skip
        asked: list[str] = []

        def on_error(message: Message, error: Exception, answer: Any = answer, asked: list[str] = asked) -> None:
            asked.append(str(error))
            answer(message)

        world = Failing(on_error)
        message = world.message()

        def handler(message: Message) -> None:
            with message:
                raise ValueError("first")

        call(handler, message)  # which fails in the block, and on the way out of the handler
        call(lambda _: None, message)
        assert asked == ["first"]
        assert world.errors == 1
        assert world.channel.settled == settled
        if answer is Message.defer:
            assert message.ack()  # by the thread for which it was deferred
            assert world.channel.settled == [(1, ACK)]
        elif not settled:
            assert not message.ack()
            world.pace.release()
            assert world.channel.settled == [(1, REQUEUE)]


def test_a_batch_asks_about_each_message_once() -> None:
    asked: list[bytes] = []
    world = Failing(lambda message, _error: asked.append(message.body))
    messages = [world.message() for _ in range(3)]
    batch = world.batch(*messages)
    for _ in range(2):
        failing_block(batch)  # type: ignore[arg-type]
    assert asked == [b"1", b"2", b"3"]
    assert batch.ack() == 0
    world.pace.release()
    assert len(world.channel.settled) == 3


def test_an_interrupted_function_leaves_no_message_behind() -> None:
    def on_error(message: Message, _error: Exception) -> None:
        if message.body == b"2":
            raise KeyboardInterrupt
        message.defer()

    world = Failing(on_error)
    batch = world.batch(*(world.message() for _ in range(4)))
    with pytest.raises(KeyboardInterrupt), batch:
        raise ValueError("first")
    assert world.channel.settled == [(2, REQUEUE), (3, REQUEUE), (4, REQUEUE)]
    assert batch.ack() == 1  # the one that the function deferred


@pytest.mark.parametrize("batched", [False, True])
def test_what_fails_while_it_is_settled_is_requeued(batched: bool) -> None:
    """Whatever the settlement of a failure ends by: no other thread may settle the message any more."""
    world = Failing()

    def broken(*_: object) -> None:
        raise MemoryError

    world.policy._counters = type("Broken", (), {"add": broken})()  # type: ignore[assignment]
    message = world.message()
    with pytest.raises(MemoryError), world.batch(message) if batched else message:
        raise ValueError("first")
    assert world.channel.settled == [(1, REQUEUE)]


@contextlib.contextmanager
def swallowing() -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


def test_a_retried_handler_that_fails_twice_is_one_attempt() -> None:
    calls = 0

    def through(message: Message) -> None:
        nonlocal calls
        calls += 1
        with message:
            raise ValueError("first")

    def swallowed(message: Message) -> None:
        with swallowing():
            through(message)

    async def awaited(message: Message) -> None:
        through(message)

    for handler in (through, swallowed, awaited):
        calls = 0
        consumer = FakeConsumer(retry=Retry(3, backoff=1, jitter=False))
        first = consumer.put(b"1", queue="orders")
        for _ in range(4):
            asyncio.run(consumer.run_async(handler))
            consumer.return_waiting()
        assert (calls, len(consumer.errors), len(consumer.dead_letters)) == (3, 3, 1)
        assert consumer.acked[0] is first
        assert len(consumer.acked) == 3


def test_a_failed_message_of_an_arrow_batch_is_not_acked() -> None:
    pytest.importorskip("pyarrow")
    consumer = FakeConsumer(on_error="reject")
    messages = [consumer.put(b"%d" % number) for number in range(3)]
    for batch in consumer.arrow_batches():
        with batch, swallowing(), batch[1]:
            raise ValueError("first")
        assert batch.ack() == 0
    assert (consumer.acked, consumer.rejected) == ([messages[0], messages[2]], [messages[1]])


@given(st.lists(st.sampled_from(sorted(DEEDS)), max_size=8), st.integers(0, 8))
def test_whatever_is_done_a_message_is_settled_once_and_as_its_first_deed_says(deeds: list[str], release: int) -> None:
    world = Failing()
    message = world.message()
    expected: list[tuple[int, int]] = []
    decided = False
    for number, deed in enumerate(deeds):
        if number == release and decided and not expected:
            world.pace.release()
            expected = [(1, REQUEUE)]
        before = message.deferred
        DEEDS[deed](world, message)
        if not decided and not expected:
            decided, expected = effect(deed, before)
        assert world.channel.settled == expected
    world.pace.release()
    assert world.channel.settled == (expected or ([(1, REQUEUE)] if decided else []))


def effect(deed: str, deferred: bool) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether a deed is a failure, and how it settles a message that is neither failed nor settled."""
    if deed in ("fail", "failing block", "error of a handler", "failing block of the batch"):
        return True, []
    if deed == "defer" or (deferred and (deed in ("finish", "block", "block of the batch") or "return of" in deed)):
        return False, []
    if deed in ("refuse", "reject", "rejection of the batch"):
        return False, [(1, REJECT)]
    if deed in ("nack", "return it", "cancel", "nack of the batch") or "interrupted" in deed:
        return False, [(1, REQUEUE)]
    return False, [(1, ACK)]


class Name(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class Hostile(Exception, metaclass=Name):
    """Whatever is asked of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError("no traceback")

    __cause__ = __context__ = __suppress_context__ = __notes__ = __traceback__


@pytest.mark.parametrize(
    "options",
    [
        {}, {"on_error": "reject"}, {"retry": Retry(2, backoff=1)}, {"retry": Retry(2, on=KeyError)},
        {"retry": Retry(2, on=lambda _message, error: str(error))}, {"on_error": lambda _message, error: str(error)},
    ],
)  # fmt: skip
def test_an_exception_of_which_nothing_can_be_asked_is_a_failure_like_any_other(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message) -> None:
        if message.body != b"2":
            raise Hostile

    async def awaited(message: Message) -> None:
        handler(message)

    consumer = FakeConsumer(**options)
    messages = [consumer.put(b"%d" % number) for number in range(3)]
    consumer.run(handler)
    assert all(message.settled for message in messages)
    assert messages[2] in consumer.acked
    assert len(consumer.errors) == 2
    messages.append(consumer.put(b"4"))
    asyncio.run(consumer.run_async(awaited))
    messages.append(consumer.put(b"5"))
    for batch in consumer.batches():
        try:
            with batch:
                raise Hostile
        except BaseException as error:  # pytest would ask it
            assert type(error) is Hostile  # noqa: PT017
    assert all(message.settled for message in messages)
    assert len(consumer.errors) == 4
    assert "handler failed" in caplog.text


class WithoutSeconds(Throttled):
    def __init__(self) -> None:
        pass


class Odd(Throttled):
    """`seconds` that the constructor of `Throttled` would refuse."""

    def __init__(self, seconds: Any) -> None:
        super().__init__(1)
        self.seconds = seconds


@pytest.mark.parametrize(
    "error", [WithoutSeconds(), *map(Odd, [-1, float("nan"), float("inf"), "5", None, 1e9, True])], ids=repr
)
@pytest.mark.parametrize("many", [False, True])
def test_a_throttle_without_a_time_is_an_ordinary_failure(error: Throttled, many: bool) -> None:
    """It does not end the worker."""
    failing = Failing("reject")
    message = failing.message()
    if many:
        failing.policy.settle_many([message], error)
    else:
        message.fail(error)
    assert failing.channel.settled == [(message.delivery_tag, REJECT)]
    assert failing.errors == 1
