"""Batches of messages, without a broker: each message is settled once, by the handler or by the batch."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties
from support.collecting import collecting

from fairsched import ConfigurationError, Consumer, Message
from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.batching.batches import LARGEST, LONGEST, MessageBatch, check_limits
from fairsched.delivery._settling import settle_all
from fairsched.testing import FakeChannel, FakeConsumer


def filled(*bodies: bytes, on_error: Any = "requeue") -> tuple[FakeConsumer, list[Message]]:
    consumer = FakeConsumer(on_error=on_error)
    return consumer, [consumer.put(body, queue=f"q{number % 2}") for number, body in enumerate(bodies)]


# What a batch is ------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_sequence_of_messages() -> None:
    consumer, messages = filled(*(b"%d" % number for number in range(10)))
    batches = list(consumer.batches(4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [message for batch in batches for message in batch] == messages
    assert batches[0][1] is messages[1]
    assert batches[0][-2:] == messages[2:4]
    assert messages[1] in batches[0]
    batches[0][1].ack()
    assert repr(batches[0]) == "<MessageBatch of 4 messages, 3 unsettled>"


@pytest.mark.parametrize(
    ("settle", "verdict"),
    [
        (lambda batch: batch.ack(), AckLedger.ACK),
        (lambda batch: batch.nack(), AckLedger.REQUEUE),
        (lambda batch: batch.nack(requeue=False), AckLedger.REJECT),
    ],
)
def test_a_batch_settles_what_is_not_settled(settle: Any, verdict: int) -> None:
    consumer, messages = filled(b"0", b"1", b"2", b"3")
    (batch,) = consumer.batches()
    assert batch[2].reject()
    assert settle(batch) == 3
    assert settle(batch) == 0
    assert not batch[0].ack()
    settled = sorted(pair for channel in consumer.channels.values() for pair in channel.settled)
    assert settled == [(tag, AckLedger.REJECT if tag == 3 else verdict) for tag in (1, 2, 3, 4)]
    assert all(message.settled for message in messages)


def test_the_end_of_a_block_acks_all_but_what_was_settled_or_deferred() -> None:
    consumer, (first, second, third) = filled(b"0", b"1", b"2")
    for batch in consumer.batches():
        with batch:
            batch[0].nack()
            batch[1].defer()
    assert (consumer.acked, consumer.requeued, consumer.unsettled) == ([third], [first], [second])


@pytest.mark.parametrize("policy", ["requeue", "reject"])
def test_a_block_that_raises_settles_each_as_on_error_says(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    consumer, messages = filled(b"0", b"1", b"2", on_error=policy)
    (batch,) = consumer.batches()
    batch[1].ack()
    with pytest.raises(ValueError, match="no"), batch:
        raise ValueError("no")
    failed = [messages[0], messages[2]]
    assert consumer.acked == [messages[1]]
    assert (consumer.requeued if policy == "requeue" else consumer.rejected) == failed
    assert [message for message, _ in consumer.errors] == failed
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("handler failed on 2 messages of a batch, the first of them message 1 of queue 'q0' (V")
    assert said.endswith(f"settled by: {policy}")


def test_a_function_is_asked_about_each_message() -> None:
    def settle(message: Message, error: Exception) -> None:
        if message.body == b"0":
            message.reject()
        elif message.body == b"1":
            message.defer()
        elif message.body == b"2":
            raise RuntimeError("and this fails, too")

    consumer, (first, second, *rest) = filled(b"0", b"1", b"2", b"3", on_error=settle)
    with pytest.raises(ValueError, match="no"), next(consumer.batches()):
        raise ValueError("no")
    assert (consumer.rejected, consumer.unsettled) == ([first], [second])
    assert sorted(message.body for message in consumer.requeued) == [message.body for message in rest]


def test_a_function_that_ends_the_program_leaves_nothing_unsettled() -> None:
    def settle(message: Message, error: Exception) -> None:
        raise SystemExit(3)

    consumer, messages = filled(b"0", b"1", b"2", on_error=settle)
    with pytest.raises(SystemExit), next(consumer.batches()):
        raise ValueError("no")
    assert sorted(message.body for message in consumer.requeued) == [message.body for message in messages]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_what_is_no_failure_requeues(error: type[BaseException]) -> None:
    consumer, (first, second) = filled(b"0", b"1", on_error="reject")
    (batch,) = consumer.batches()
    batch[1].ack()
    with pytest.raises(error), batch:
        raise error
    assert (consumer.requeued, consumer.acked, consumer.errors) == ([first], [second], [])


def test_settling_after_the_channel_is_gone_has_no_effect() -> None:
    consumer, messages = filled(b"0", b"1", b"2")
    (batch,) = consumer.batches()
    consumer.channels["q0"].alive = False
    assert batch.ack() == 1
    assert consumer.acked == [messages[1]]
    assert batch.nack() == 0


@pytest.mark.parametrize("size", [0, -1, LARGEST + 1, 2.0, True, "10", None])
def test_sizes_that_are_not_allowed(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"max_size must be a whole number from 1 to {LARGEST}, got "):
        FakeConsumer().batches(size)


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), LONGEST + 1, True, "1s", None])
def test_waits_that_are_not_allowed(wait: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"max_wait must be a number of seconds from 0 to {LONGEST}, got "):
        FakeConsumer().batches(1, wait)


def test_limits_that_are_allowed() -> None:
    assert check_limits(1, 0) == (1, 0.0)
    assert check_limits(LARGEST, LONGEST) == (LARGEST, LONGEST)


def test_batches_are_taken_inside_the_block_only() -> None:
    consumer = Consumer("amqp://localhost", ["q"])
    with pytest.raises(RuntimeError, match="inside 'with consumer:'"):
        consumer.batches()


# Each message is settled once -----------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["ack", "nack", "reject", "defer"]), st.integers(0, 7)),
    st.tuples(st.sampled_from(["ack all", "nack all", "reject all", "lose"]), st.integers(0, 1)),
)
VERDICTS = {"ack": AckLedger.ACK, "nack": AckLedger.REQUEUE, "reject": AckLedger.REJECT}


class Oracle:
    """Of each message, the first verdict while its channel stands."""

    def __init__(self, batch: MessageBatch, channels: dict[str, FakeChannel]) -> None:
        self.batch = batch
        self.channels = channels
        self.expected: dict[int, int] = {}
        self.settled: set[int] = set()
        self.deferred: set[int] = set()
        self.lost: set[str] = set()

    def settle(self, number: int, verdict: int) -> bool:
        first = number not in self.settled
        self.settled.add(number)
        if not first or self.batch[number].queue in self.lost:
            return False
        self.expected[number] = verdict
        return True

    def settle_all(self, verdict: int, *, but: set[int] = frozenset()) -> int:
        return sum([self.settle(number, verdict) for number in range(len(self.batch)) if number not in but])

    def act(self, action: str, number: int) -> None:
        batch = self.batch
        what = action.removesuffix(" all")
        if what != action:
            done = self.settle_all(VERDICTS[what])
            assert done == (batch.ack() if what == "ack" else batch.nack(requeue=what == "nack"))
        elif number >= len(batch):
            pass
        elif action == "lose":
            self.lost.add(batch[number].queue)
            self.channels[batch[number].queue].alive = False
        elif action == "defer":
            self.deferred.add(number)
            batch[number].defer()
        else:
            assert self.settle(number, VERDICTS[action]) == getattr(batch[number], action)()


@given(st.integers(1, 8), st.lists(ACTIONS, max_size=20), st.sampled_from(["end", "raise"]))
def test_each_message_is_settled_once_by_the_first_action(size: int, actions: list[tuple[str, int]], end: str) -> None:
    consumer, messages = filled(*(b"%d" % number for number in range(size)), on_error="reject")
    (batch,) = consumer.batches()
    oracle = Oracle(batch, consumer.channels)
    with contextlib.suppress(ZeroDivisionError), batch:
        for action, number in actions:
            oracle.act(action, number)
        if end == "raise":
            raise ZeroDivisionError
    if end == "raise":
        oracle.settle_all(AckLedger.REJECT)
    else:
        oracle.settle_all(AckLedger.ACK, but=oracle.deferred)
    found = [(tag - 1, verdict) for channel in consumer.channels.values() for tag, verdict in channel.settled]
    assert sorted(found) == sorted(oracle.expected.items())
    assert [message.settled for message in messages] == [number in oracle.settled for number in range(size)]


def test_threads_that_settle_the_same_batch_settle_each_message_once() -> None:
    consumer, _ = filled(*(b"x" for _ in range(2000)))
    (batch,) = consumer.batches(2000)
    start = threading.Barrier(4)
    counts: list[int] = []

    def work(number: int) -> None:
        start.wait()
        if number % 2:
            counts.append(batch.ack())
        else:
            counts.append(sum([message.nack() for message in batch]))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sum(counts) == 2000
    assert sum(len(channel.settled) for channel in consumer.channels.values()) == 2000


class Nosy(FakeChannel):
    """A channel whose settlement uses the batch, and what it was made of, again."""

    batch: MessageBatch
    messages: list[Message]

    def settle(self, tag: int, verdict: int) -> bool:
        if tag == 2:
            assert self.batch[4].reject()
            assert self.batch.nack() == 2  # the rest
            self.messages.clear()
        return super().settle(tag, verdict)


def test_a_second_settlement_while_a_batch_is_settled_finds_all_settled() -> None:
    channel = Nosy()
    path = Basic.Deliver("c", 1, False, "", "")
    messages = [Message(b"", tag, False, path, BasicProperties(), channel) for tag in range(1, 6)]
    batch = MessageBatch(messages, lambda *_: None, lambda *_: None)
    channel.batch, channel.messages = batch, messages
    assert batch.ack() == 2
    assert sorted(channel.settled) == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]


def test_only_messages_are_settled() -> None:
    with pytest.raises(TypeError):
        settle_all([object()], AckLedger.ACK)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_a_collector_that_settles_the_batch_meanwhile(count: int) -> None:
    consumer, _ = filled(*(b"x" for _ in range(count)))
    (batch,) = consumer.batches(count)
    counts: list[int] = []
    with collecting(lambda: counts.append(batch.nack())):
        counts.append(batch.ack())
    assert sum(counts) == count
    assert sorted(tag for channel in consumer.channels.values() for tag, _ in channel.settled) == [*range(1, count + 1)]
