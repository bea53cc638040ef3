"""The delivery path while others come in at every point at which it can run Python, and at no other."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.collecting import collecting
from support.deliveries import ACK, REJECT, REQUEUE, Source, delivery

from fairsched import ShutDown
from fairsched.delivery._delivery import Intake, Message, Settlements, give_deliveries
from fairsched.delivery._messagesource import call
from fairsched.testing import FakeChannel

BODIES = [b"%d" % number for number in range(3000)]


def consume(source: Source, between: Callable[[], object] = lambda: None) -> list[bytes]:
    """Ack everything that the broker has, in turns; each message must come once."""
    got: list[bytes] = []
    while source.broker.ready or any(source.broker.out.values()):
        source.deliver()
        between()
        while (message := source.try_get(source.worker_queue)) is not None:
            got.append(message.body)
            message.ack()
        source.send()
    return got


class Visitor:
    """Does one thing after another with a source, each time that it is let in."""

    def __init__(self, source: Source, *deeds: str) -> None:
        self.source = source
        self.got: list[bytes] = []
        self.visits = 0
        self.deeds = itertools.cycle(getattr(self, deed) for deed in deeds)

    def __call__(self) -> None:
        self.visits += 1
        next(self.deeds)()

    def settle(self) -> None:
        message = self.source.try_get(self.source.worker_queue)
        if message is not None:
            self.got.append(message.body)
            message.ack()

    def settle_on_all(self) -> None:
        for _ in self.source.numbers:
            self.settle()

    def drain(self) -> None:
        self.source.intake.drain()

    def ask(self) -> None:
        self.source.request_flush()

    def send(self) -> None:
        self.source.send()


@pytest.mark.parametrize(
    "deeds",
    [("settle",), ("drain",), ("settle_on_all", "ask"), ("drain", "settle"), ("settle", "send"), ("send",)],
    ids="-".join,
)
def test_finalizers_at_every_allocation(deeds: tuple[str, ...]) -> None:
    """Each message is handed out once and acked once, whichever call comes in while others are made, queued or sent."""
    source = Source(BODIES, channels=3, window=50)
    visitor = Visitor(source, *deeds)
    with collecting(visitor):
        got = consume(source)
    assert visitor.visits > 1000
    assert sorted(got + visitor.got) == sorted(BODIES)
    assert set(source.broker.gone.values()) == {1}
    assert source.counters.snapshot()["acked"] == len(BODIES) == source.counters.snapshot()["received"]
    assert not source.settlements.waiting


def test_a_drain_within_a_drain_queues_nothing_twice() -> None:
    source = Source(BODIES, window=50)
    buffer = source.broker.frames(1, 50)
    give_deliveries(buffer, 0, 1000, source.sinks, {})
    with collecting(source.intake.drain):
        source.intake.drain()
    assert source.worker_queue.qsize() == 50
    assert source.counters.snapshot()["received"] == 50


@pytest.mark.parametrize("deed", ["ack", "reject", "drain", "stop", "abandon", "send", "fail"])
def test_key_functions_that_do_so_meanwhile(deed: str) -> None:
    def key(message: Message) -> str:
        if message.body == b"7":
            deeds[deed](message)
        return message.body.decode()[:1]

    source = Source(BODIES[:20], key=key)
    deeds: dict[str, Callable[[Message], object]] = {
        "ack": lambda message: message.ack(),
        "reject": lambda message: message.reject(),
        "drain": lambda message: source.intake.drain(),
        "stop": lambda message: source.worker_queue.shutdown(),
        "abandon": lambda message: setattr(source.sinks[1], "alive", False),
        "send": lambda message: source.send(),
        "fail": lambda message: message.fail(ValueError("mine")),
    }
    source.deliver()
    got = []
    try:
        while (message := source.try_get(source.worker_queue)) is not None:
            got.append(message.body)
            message.ack()
    except ShutDown:
        assert deed == "stop"
    source.send()
    counts = source.counters.snapshot()
    assert counts["received"] == 20
    if deed == "stop":
        assert counts["nacked"] == 20 == len(source.broker.ready)
    elif deed == "abandon":
        assert got == []
        assert len(source.broker.out[1]) == 20
    else:
        assert sorted(got) == sorted(BODIES[:20])
        assert counts["acked"] + counts["nacked"] + counts["rejected"] == 20
        assert sum(source.broker.gone.values()) + len(source.broker.ready) == 20


class Prices:
    varies = True

    def __init__(self, estimate: Callable[[Message], int]) -> None:
        self.estimate = estimate


def test_a_cost_function_that_settles_and_drains() -> None:
    def estimate(message: Message) -> int:
        message.ack()
        source.intake.drain()
        return 3

    source = Source(BODIES[:20], cost=Prices(estimate))
    source.deliver()
    source.send()
    assert source.worker_queue.qsize() == 20  # as ever: it is the handler that is not asked what was settled before
    assert source.broker.gone == dict.fromkeys(BODIES[:20], 1)


# Messages that others come by -----------------------------------------------------------------------------------------


def test_messages_that_are_being_made_can_be_looked_at() -> None:
    """Finalizers find every object that the collector knows, those that are not finished too."""
    source = Source(BODIES[:300], window=20)
    source.asked = source.send
    seen = 0

    def look() -> None:
        nonlocal seen
        for message in [one for one in gc.get_objects() if type(one) is Message]:
            seen += 1
            for name in ("queue", "exchange", "routing_key", "properties", "raw_properties", "headers", "alive"):
                try:
                    getattr(message, name)
                except (AttributeError, TypeError):  # not finished
                    assert message.body is None or message.delivery_tag == 0
            try:
                repr(message)
            except (AttributeError, TypeError):
                assert message.body is None or message.slot is None

    calls = itertools.count()

    def now_and_then() -> None:
        if next(calls) % 50 == 0:
            look()

    with collecting(now_and_then):
        consume(source)
    assert seen
    assert source.broker.gone == dict.fromkeys(BODIES[:300], 1)


def test_messages_in_cycles_are_collected_and_used_again_like_new() -> None:
    origin = FakeChannel("q")
    before = sum(type(one) is Message for one in gc.get_objects())
    for turn in range(3):
        messages = [Message(b"x", tag, False, b"", b"", origin) for tag in range(600)]
        assert not any(message.settled or message.deferred for message in messages)
        assert {(message.cost, message.slot, message.arrived) for message in messages} == {(1, "q", 0.0)}
        for message in messages:
            message.slot = [message, messages]
            message.defer()
            message.ack()
            message.cost = turn + 2
        del messages, message
        gc.collect()
    assert sum(type(one) is Message for one in gc.get_objects()) == before


def test_a_whole_source_in_a_cycle_is_collected() -> None:
    def make() -> None:
        source = Source(BODIES[:20])
        source.deliver()
        source.itself = source
        source.try_get(source.worker_queue).ack()

    gc.collect()
    kinds = (Message, Settlements, Intake, Source)
    before = sum(isinstance(one, kinds) for one in gc.get_objects())
    for _ in range(5):
        make()
    gc.collect()
    assert sum(isinstance(one, kinds) for one in gc.get_objects()) == before


# What may fail, and what is odd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [-1, 4, 9, 10**6, -(10**6)])
def test_a_verdict_is_one_of_four(verdict: int) -> None:
    source = Source(BODIES[:3])
    source.deliver()
    with pytest.raises(ValueError, match=f"verdict must be AckLedger.ACK, REQUEUE, REJECT or FAIL, got {verdict}"):
        source.sinks[1].settle(1, verdict)
    assert [source.sinks[1].settle(tag, what) for tag, what in ((1, ACK), (2, REQUEUE), (3, REJECT), (3, ACK))] == [
        True, True, True, False
    ]  # fmt: skip


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_handler_that_ends_the_thread_loses_no_message(error: type[BaseException]) -> None:
    source = Source(BODIES[:3])
    source.deliver()

    def handler(message: Message) -> None:
        raise error

    with pytest.raises(error):
        source.serve(source.worker_queue, handler, 0)
    with pytest.raises(error):
        call(handler, source.try_get(source.worker_queue))
    source.send()
    assert list(source.broker.ready) == BODIES[:2]


class Broken:
    """Shedding that fails."""

    def returns(self, worker_queue: Any, slot: Any, message: Message) -> bool:
        raise KeyboardInterrupt


def test_what_shedding_fails_with_is_requeued() -> None:
    source = Source(BODIES[:3])
    source.deliver()
    source.shedding = Broken()
    with pytest.raises(KeyboardInterrupt):
        source.try_get(source.worker_queue)
    source.send()
    assert list(source.broker.ready) == BODIES[:1]


@pytest.mark.parametrize("cost", [-(2**63), 2**63 - 1, -1, 0])
def test_what_was_charged_for_nothing_is_given_back_whatever_it_is(cost: int) -> None:
    def key(message: Message) -> str:
        message.cost = cost
        return ""

    source = Source(BODIES[:1], key=key)
    source.deliver()
    source.sinks[1].alive = False
    assert source.try_get(source.worker_queue) is None
    assert source.charged == [-cost]


@pytest.mark.parametrize("gone", [(), (1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_a_batch_leaves_out_what_came_on_channels_that_are_gone(gone: tuple[int, ...]) -> None:
    source = Source([b"%d" % number for number in range(30)], channels=3, window=10)
    source.deliver()
    for number in gone:
        source.sinks[number].alive = False
    found = source.try_get_many(source.worker_queue, 30)
    assert [message.queue for message in found] == [f"q-{number}" for number in (1, 2, 3) if number not in gone] * 10
    assert source.charged == [-1] * 10 * len(gone)
    assert source.worker_queue.qsize() == 0


def test_a_delivery_is_awaited_that_never_comes() -> None:
    """The call that computes which it is reads several figures one after the other, while others settle."""
    source = Source(BODIES[:3])
    for number in (-5, 0, 1):
        source.sinks[1].expect(number)
    source.deliver()
    with pytest.raises(OverflowError):
        source.sinks[1].expect(2**63)


def test_in_a_child_process_nothing_is_settled_from_the_first_step_on() -> None:
    source = Source(BODIES[:3])
    source.deliver()
    source.settlements.forked("not here")
    message = source.try_get(source.worker_queue)  # its channel is not marked yet
    with pytest.raises(RuntimeError, match="not here"):
        message.ack()
    assert not source.settlements.waiting


def test_only_fair_queues_are_worker_queues() -> None:
    source = Source(BODIES[:1])
    for worker_queue in (None, object(), []):
        with pytest.raises(TypeError):
            source.try_get(worker_queue)


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 65_536, b"x" * 131_064])
def test_bodies_of_every_length(body: bytes) -> None:
    source = Source([body] * 40, window=7)
    assert consume(source) == [body] * 40
    assert source.broker.gone == {body: 40}


# Iterators ------------------------------------------------------------------------------------------------------------


def iterate(source: Source) -> Any:
    return source.messages(source.worker_queue, 0.01, lambda: source.worker_queue.qsize() == 0)


def test_two_iterators_share_what_there_is() -> None:
    source = Source(BODIES[:20])
    source.deliver()
    got = []
    for message in iterate(source):
        got.append(message.body)
        message.ack()
        for other in iterate(source):
            got.append(other.body)
            other.ack()
            break
    source.send()
    assert got == BODIES[:20]
    assert not source.broker.out[1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_thrown_into_an_iterator_ends_it_alone(error: type[BaseException]) -> None:
    source = Source(BODIES[:5])
    source.deliver()
    messages = iterate(source)
    first = next(messages)
    with pytest.raises(error):
        messages.throw(error)
    assert list(messages) == []
    assert first.ack()
    assert [message.body for message in iterate(source)] == BODIES[1:5]


def test_an_iterator_that_is_closed_or_dropped_has_lost_nothing() -> None:
    source = Source(BODIES[:5])
    source.deliver()
    messages = iterate(source)
    next(messages).ack()
    messages.close()
    messages.close()
    next(iterate(source)).ack()
    source.send()
    assert [message.body for message in iterate(source)] == BODIES[2:5]
    assert sorted(source.broker.gone) == BODIES[:2]


def test_a_stop_with_messages_buffered_ends_an_iterator() -> None:
    source = Source(BODIES[:5])
    source.deliver()
    over = False
    messages = source.messages(source.worker_queue, 0.01, lambda: over)
    next(messages)
    source.stopped = over = True
    assert list(messages) == []
    assert source.worker_queue.qsize() == 4


def test_a_delivery_that_does_not_follow_is_refused_and_the_rest_goes_on() -> None:
    source = Source(BODIES[:3])
    source.deliver()
    with pytest.raises(ValueError, match="delivery tag must be 4, the one after the last, got 9"):
        give_deliveries(delivery(1, 9, b"x"), 0, 100, source.sinks, {})
    assert give_deliveries(delivery(1, 4, b"x"), 0, 100, source.sinks, {})[2] == 3
    source.intake.drain()
    assert source.worker_queue.qsize() == 4
