"""Calls that wait for their replies, against a dict in Python: which end, how, and which replies are dropped."""

from __future__ import annotations

import gc
import weakref
from threading import Event
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pika.spec import Basic, BasicProperties

from fairsched.amqp._publishing import PublishWindow
from fairsched.delivery._delivery import Message
from fairsched.errors import ConnectionFailed, MessageReturned, PublishFailed
from fairsched.publisher.calls import Call, Calls
from fairsched.testing import FakeChannel

PLAIN = b"\0\0"
NUMBERS = st.integers(0, 7)


def reply_to(call: Call, body: bytes) -> Message:
    properties = BasicProperties(correlation_id=call.correlation_id)
    return Message(body, 1, False, Basic.Deliver(), properties, FakeChannel())


class Books(RuleBasedStateMachine):
    """The oracle: the state of each of eight calls, and the results that ended ones must have."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self.window = PublishWindow(1000, 1 << 20, lambda: None)
        self.tag = 0
        self.made: dict[int, Call] = {}
        self.states: dict[int, str] = {}  # "unconfirmed", "confirmed" or what it ended by
        self.tags: dict[int, int] = {}
        self.woken: dict[int, int] = {}

    @rule(number=NUMBERS)
    def begin(self, number: int) -> None:
        if self.states.get(number) in ("unconfirmed", "confirmed"):
            return
        self.woken[number] = 0
        call = self.made[number] = self.calls.create("key", 60, lambda: self._wake(number))
        self.calls.add(call)
        assert self.window.put("", "key", PLAIN, b"", True, callback=call) is not None
        self.window.output(1 << 20)
        self.tag += 1
        self.tags[number] = self.tag
        self.states[number] = "unconfirmed"

    def _wake(self, number: int) -> None:
        self.woken[number] += 1

    def _settle(self, number: int, refused: bool) -> bool:
        tag = self.tags.pop(number, None)
        if tag is not None:
            self.window.confirm(tag, False, refused)
        return tag is not None

    @rule(number=NUMBERS)
    def confirm(self, number: int) -> None:
        if self._settle(number, False) and self.states[number] == "unconfirmed":
            self.states[number] = "confirmed"

    @rule(number=NUMBERS)
    def refuse(self, number: int) -> None:
        if self._settle(number, True) and self.states[number] == "unconfirmed":
            self.states[number] = "PublishFailed"

    @rule(number=NUMBERS)
    def send_back(self, number: int) -> None:
        if number not in self.tags:
            return
        found = self.calls.find(self.made[number].correlation_id)
        assert (found is None) == (self.states[number] not in ("unconfirmed", "confirmed"))
        if found is not None:
            assert self.window.returned_with(found, MessageReturned(312, "NO_ROUTE", "", "key", None))
            self._settle(number, False)
            self.states[number] = "MessageReturned"

    @rule(number=NUMBERS, twice=st.booleans())
    def answer(self, number: int, twice: bool) -> None:
        if number in self.made:
            for body in (b"%d" % number, b"again")[: 1 + twice]:
                self.calls.on_reply(reply_to(self.made[number], body))
            if self.states[number] in ("unconfirmed", "confirmed"):
                self.states[number] = "reply"

    @rule(number=NUMBERS)
    def forget(self, number: int) -> None:
        if number in self.made:
            self.calls.forget(self.made[number])
            if self.states[number] in ("unconfirmed", "confirmed"):
                self.states[number] = "forgotten"

    @rule(unconfirmed=st.booleans())
    def lose(self, unconfirmed: bool) -> None:
        self.calls.lost("the connection was lost", unconfirmed)
        for number, state in self.states.items():
            if state == "confirmed" or (unconfirmed and state == "unconfirmed"):
                self.states[number] = "ConnectionFailed"

    @invariant()
    def every_call_has_its_own_result(self) -> None:
        waiting = {call.correlation_id for call in self.calls._waiting.values()}
        for number, state in self.states.items():
            call = self.made[number]
            assert (call.correlation_id in waiting) == (state in ("unconfirmed", "confirmed"))
            assert (None if call.reply is None else call.reply.body) == (b"%d" % number if state == "reply" else None)
            failed = state in ("PublishFailed", "MessageReturned", "ConnectionFailed")
            assert type(call.problem).__name__ == (state if failed else "NoneType")
            assert self.woken[number] == (failed or state == "reply")
            if state in ("unconfirmed", "confirmed"):
                assert call.confirmed == (state == "confirmed")


TestBooks = Books.TestCase


def test_the_failure_of_a_request_is_read_by_its_call() -> None:
    calls, window = Calls(), PublishWindow(10, 1 << 20, lambda: None)
    for forgotten in (False, True):
        call = calls.create("key", 1, lambda: None)
        calls.add(call)
        assert window.put("", "key", PLAIN, b"", True, callback=call) is not None
        if forgotten:
            calls.forget(call)
    window.output(1 << 20)
    window.confirm(2, True, True)
    assert window.failed == 2
    assert window.take_failures() == (0, None)


def test_a_return_finds_the_message_by_its_callback() -> None:
    window = PublishWindow(10, 1 << 20, lambda: None)
    ones = [window.put("", "key", PLAIN, b"", True, callback=lambda _one, n=number: n) for number in range(3)]
    chosen: Any = lambda _one: None  # noqa: E731
    one = window.put("", "key", PLAIN, b"", True, callback=chosen)
    assert not window.returned_with(chosen, PublishFailed("not sent yet"))
    window.output(1 << 20)
    assert window.returned_with(chosen, MessageReturned(312, "NO_ROUTE", "", "key", None))
    assert not window.returned_with(print, PublishFailed("not known"))
    window.confirm(0, True, False)
    assert [found.exception(0) for found in ones] == [None] * 3
    assert isinstance(one.exception(0), MessageReturned)


def test_a_return_is_forgotten_when_the_message_is_sent_again() -> None:
    window = PublishWindow(10, 1 << 20, lambda: None)
    chosen: Any = lambda _one: None  # noqa: E731
    one = window.put("", "key", PLAIN, b"", True, callback=chosen)
    window.output(1 << 20)
    assert window.returned_with(chosen, MessageReturned(312, "NO_ROUTE", "", "key", None))
    window.again(4088)
    window.output(1 << 20)
    window.confirm(1, False, False)
    assert one.exception(0) is None


def test_a_reply_that_cannot_be_read_ends_no_call() -> None:
    calls = Calls()
    call = calls.create("key", 1, lambda: None)
    calls.add(call)
    for header in (b"", b"\0" * 12 + b"\4\0\xff", b"\0" * 12 + b"\4\0\2\xff\xfe", b"\0" * 12 + b"\0\0"):
        calls.on_reply(Message(b"", 1, False, b"", header, FakeChannel()))
    assert (call.reply, call.problem) == (None, None)
    calls.on_reply(reply_to(call, b"1"))
    assert call.reply is not None


def test_a_call_that_ended_is_freed_without_the_collector() -> None:
    calls, window = Calls(), PublishWindow(10, 1 << 20, lambda: None)
    gc.disable()
    try:
        wake = Event()
        call = calls.create("key", 1, wake.set)
        calls.add(call)
        window.put("", "key", PLAIN, b"", True, callback=call)
        window.output(1 << 20)
        window.confirm(1, False, False)
        calls.on_reply(reply_to(call, b"1"))
        assert wake.is_set()
        freed = weakref.ref(wake)
        del call, wake
        assert freed() is None
    finally:
        gc.enable()


def test_no_two_publishers_use_the_same_correlation_ids() -> None:
    ids = {calls.create("key", 1, lambda: None).correlation_id for calls in (Calls(), Calls()) for _ in range(100)}
    assert len(ids) == 200


@pytest.mark.parametrize(("timeout", "left"), [(None, None), (0, 0), (1e300, None)])
def test_the_time_that_is_left(timeout: float | None, left: float | None) -> None:
    assert Calls().create("key", timeout, lambda: None).left() == left


def test_what_was_refused_stays_refused_until_the_next_connection() -> None:
    calls = Calls()
    calls.refusal = ConnectionFailed("no direct reply-to")
    with pytest.raises(ConnectionFailed, match="no direct reply-to"):
        calls.add(calls.create("key", 1, lambda: None))
    assert not calls.begun
