"""The window of a publisher against a list in Python: what goes out, what is settled, and in which order."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairsched.amqp._publishing import Confirmation, PublishWindow, are_confirmed, awaited, encode_message, settled
from fairsched.errors import PublishFailed

PLAIN = b"\0\0"


def confirm(tag: int, multiple: bool = False, refused: bool = False, channel: int = 1) -> bytes:
    """Return a confirm as the broker sends it."""
    return pack(">BHLHHQBB", 1, channel, 13, 60, 120 if refused else 80, tag, multiple, 0xCE)


def body(number: int) -> bytes:
    return b"%d" % number


def encoded(number: int, longest: int) -> bytes:
    return encode_message("", "q", PLAIN, body(number), True, 1, longest)


class Books(RuleBasedStateMachine):
    """The oracle: a list of [number, sent, failed when confirmed] in order, and tags by counting."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0
        self.window = PublishWindow(20, 1000, self._wake)
        self.longest = 4088
        self.confirmations: list[Confirmation] = []
        self.states: list[str] = []
        self.waiting: list[int] = []  # numbers, in order
        self.sent: dict[int, int] = {}  # by tag, of this channel
        self.tag = 0
        self.singly = 0
        self.told: list[int] = []

    def _wake(self) -> None:
        self.wakes += 1

    def _outstanding(self) -> list[int]:
        return sorted([*self.sent.values(), *self.waiting])

    @rule()
    def put(self) -> None:
        number = len(self.confirmations)
        size = len(encoded(number, self.longest))
        fits = len(self._outstanding()) < 20 and self._size() + size <= 1000
        found = self.window.put("", "q", PLAIN, body(number), True)
        assert (found is not None) == (fits or not self._outstanding())
        if found is not None:
            self.confirmations.append(found)
            self.states.append("unconfirmed")
            self.waiting.append(number)
            found.add_done_callback(lambda _: self.told.append(number))

    @rule(count=st.integers(0, 25))
    def put_many(self, count: int) -> None:
        first, wakes = len(self.confirmations), self.wakes
        fitting = 0
        for number in range(first, first + count):
            data = encoded(number, self.longest)
            if self._outstanding() and not (len(self._outstanding()) < 20 and self._size() + len(data) <= 1000):
                break
            self.waiting.append(number)
            fitting += 1
        numbers = range(first - 1, first + count)  # from the second on
        found = self.window.put_many(
            ["q"] * (count + 1), [PLAIN] * (count + 1), [body(number) for number in numbers], [None] * (count + 1), 1
        )
        assert len(found) == fitting
        assert self.wakes - wakes <= 1
        for number, one in enumerate(found, first):
            self.confirmations.append(one)
            self.states.append("unconfirmed")
            one.add_done_callback(lambda _, number=number: self.told.append(number))

    def _size(self) -> int:
        return sum(len(encoded(number, self.longest)) for number in self._outstanding())

    @rule(most=st.integers(1, 400))
    def send(self, most: int) -> None:
        expected, size = b"", 0
        while self.waiting and not (self.singly and (expected or self.sent)):
            data = encoded(self.waiting[0], self.longest)
            if expected and size + len(data) > most:
                break
            size += len(data)
            expected += data
            self.tag += 1
            self.sent[self.tag] = self.waiting.pop(0)
        assert self.window.output(most) == expected

    @rule(
        confirms=st.lists(st.tuples(st.integers(0, 25), st.booleans(), st.booleans()), max_size=4),
        rest=st.binary(max_size=3) | st.just(confirm(1, channel=2)) | st.just(confirm(1)[:20]),
        before=st.integers(0, 3),
    )
    def settle(self, confirms: list[tuple[int, bool, bool]], rest: bytes, before: int) -> None:
        buffer = bytes(before) + b"".join(confirm(*one) for one in confirms)
        for one in confirms:
            self._note(*one)
        assert self.window.take_confirms(buffer + rest, before) == (len(buffer), len(confirms))

    def _note(self, tag: int, multiple: bool, refused: bool) -> None:
        about = [one for one in sorted(self.sent) if one == tag or (multiple and (one < tag or tag == 0))]
        for one in about:
            self.states[self.sent.pop(one)] = "failed" if refused else "confirmed"
            self.singly -= self.singly > 0

    @rule(tag=st.integers(0, 25), multiple=st.booleans(), refused=st.booleans())
    def settle_one(self, tag: int, multiple: bool, refused: bool) -> None:
        """As pika tells it."""
        self._note(tag, multiple, refused)
        self.window.confirm(tag, multiple, refused)

    @rule()
    def begin_again(self) -> None:
        self.waiting = self._outstanding()
        self.sent, self.tag = {}, 0
        self.window.again(self.longest)

    @precondition(lambda self: self.sent)
    @rule()
    def channel_closed(self) -> None:
        if len(self.sent) == 1:
            [number] = self.sent.values()
            self.states[number] = "failed"
            self.sent = {}
            self.singly -= self.singly > 0
        else:
            self.singly = len(self.sent)
        self.window.suspect(PublishFailed("closed"))
        self.begin_again()

    @invariant()
    def agrees(self) -> None:
        assert [repr(one) for one in self.confirmations] == [f"<Confirmation: {state}>" for state in self.states]
        assert self.window.unconfirmed == len(self._outstanding())
        assert self.window.outstanding() == [self.confirmations[number] for number in self._outstanding()]
        assert self.window.in_flight == len(self.sent)
        assert self.window.singly == self.singly
        assert self.window.confirmed == self.states.count("confirmed")
        assert self.window.failed == self.states.count("failed")
        assert self.window.published == len(self.states)
        assert sorted(self.told) == [number for number, state in enumerate(self.states) if state != "unconfirmed"]

    def teardown(self) -> None:
        left = len(self._outstanding())
        assert self.window.close(PublishFailed("over")) == left
        assert all(one.done() for one in self.confirmations)
        assert self.window.put("", "q", PLAIN, b"", True) is None


TestBooks = Books.TestCase


def window(messages: int = 100, size: int = 10**6) -> PublishWindow:
    return PublishWindow(messages, size, lambda: None)


@pytest.mark.parametrize("again", [lambda found: found.put("", "q", PLAIN, b"", True), PublishWindow.wake_again])
def test_a_wake_that_a_signal_ends_is_made_up_for(again: Callable[[PublishWindow], object]) -> None:
    calls: list[None] = []

    def wake() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt

    found = PublishWindow(100, 10**6, wake)
    with pytest.raises(KeyboardInterrupt):
        found.put("", "q", PLAIN, b"", True)
    again(found)
    assert len(calls) == 2


def test_it_is_woken_once_until_it_was_asked() -> None:
    wakes: list[None] = []
    found = PublishWindow(100, 10**6, lambda: wakes.append(None))
    for _ in range(3):
        found.put("", "q", PLAIN, b"", True)
    assert len(wakes) == 1
    found.output(10**6)
    found.put("", "q", PLAIN, b"", True)
    assert len(wakes) == 2


def put_many(found: PublishWindow, properties: list[Any], bodies: list[Any], start: int = 0) -> list[Confirmation]:
    return found.put_many(["q"] * len(bodies), properties, bodies, [None] * len(bodies), start)


def test_many_messages_are_as_many_calls_but_one_wake() -> None:
    wakes: list[None] = []
    found = PublishWindow(100, 10**6, lambda: wakes.append(None))
    assert len(put_many(found, [PLAIN] * 10, [body(number) for number in range(10)])) == 10
    assert len(wakes) == 1
    assert found.output(10**6) == b"".join(encoded(number, 4088) for number in range(10))


@pytest.mark.parametrize("left", [None, bytes(5000), bytearray(PLAIN)])
def test_many_messages_end_before_one_that_is_left_to_put(left: Any) -> None:
    found = window()
    properties = [PLAIN, PLAIN, left, PLAIN]
    assert len(put_many(found, properties, [b""] * 4)) == 2
    assert len(put_many(found, properties, [b""] * 4, 2)) == 0
    assert len(put_many(found, properties, [b""] * 4, 3)) == 1
    assert len(put_many(found, [PLAIN] * 2, [b"", bytearray(b"")])) == 1


def test_many_messages_have_the_room_that_there_is() -> None:
    found = window(messages=3)
    assert len(put_many(found, [PLAIN] * 5, [b""] * 5)) == 3
    found.queueing = True
    found.output(10**6)
    found.take_confirms(confirm(3, multiple=True), 0)
    assert put_many(found, [PLAIN], [b""]) == []
    found.queueing = False
    found.close(PublishFailed("over"))
    assert put_many(found, [PLAIN], [b""]) == []


def test_many_messages_that_are_invalid_are_not_added() -> None:
    found = window()
    with pytest.raises(ValueError, match="same length, got 1, 2, 1 and 1"):
        put_many(found, [PLAIN] * 2, [b""])
    with pytest.raises(ValueError, match="start must be at least 0, got -1"):
        put_many(found, [PLAIN], [b""], -1)
    with pytest.raises(ValueError, match="routing_key"):
        found.put_many(["q", "q" * 256], [PLAIN] * 2, [b""] * 2, [None] * 2)
    assert found.unconfirmed == 0


def test_all_are_confirmed_only_once_none_is_open_or_has_failed() -> None:
    found = window()
    ones = put_many(found, [PLAIN] * 3, [b""] * 3)
    found.output(10**6)
    found.take_confirms(confirm(2, multiple=True), 0)
    assert are_confirmed([])
    assert are_confirmed(ones[:2])
    assert not are_confirmed(ones)
    found.take_confirms(confirm(3, refused=True), 0)
    assert not are_confirmed(ones)


def test_one_message_may_be_longer_than_the_window() -> None:
    found = window(size=100)
    assert found.put("", "q", PLAIN, bytes(1000), True) is not None
    assert found.put("", "q", PLAIN, b"", True) is None
    found.output(1)
    found.take_confirms(confirm(1), 0)
    assert found.put("", "q", PLAIN, b"", True) is not None


def test_a_publication_that_waits_for_room_comes_first() -> None:
    found = window()
    found.queueing = True
    assert found.put("", "q", PLAIN, b"", True) is None
    assert found.put("", "q", PLAIN, b"", True, in_turn=True) is not None


@given(st.lists(st.binary(max_size=9000), max_size=6), st.sampled_from([4088, 5000]))
def test_frames_of_another_size_are_made_anew(bodies: list[bytes], smaller: int) -> None:
    found = window()
    found.again(131_064)
    for one in bodies:
        found.put("e", "q", b"\x80\0\x01t", one, False)
    found.again(smaller)
    assert found.output(10**9) == b"".join(
        encode_message("e", "q", b"\x80\0\x01t", one, False, 1, smaller) for one in bodies
    )


def test_properties_must_go_into_one_frame() -> None:
    found = window()
    with pytest.raises(ValueError, match=r"at most 4076 bytes long .*, got 5000"):
        found.put("", "q", bytes(5000), b"", True)
    found.again(131_064)
    large = found.put("", "q", b"\0\0" + bytes(5000), b"", True)
    small = found.put("", "q", PLAIN, b"", True)
    found.again(4088)
    assert isinstance(large.exception(0), PublishFailed)
    assert found.outstanding() == [small]
    assert found.output(10**9) == encode_message("", "q", PLAIN, b"", True, 1, 4088)


def test_messages_around_one_that_fits_into_no_frame_of_the_new_connection_are_sent_and_confirmed() -> None:
    found = window()
    found.again(131_064)
    ones = [found.put("", "q", b"\0\0" + bytes(5000 * (number in (0, 2))), b"", True) for number in range(5)]
    found.output(10**9)
    found.again(4088)
    assert [one.done() for one in ones] == [True, False, True, False, False]
    assert found.output(10**9) == encode_message("", "q", PLAIN, b"", True, 1, 4088) * 3
    for tag in (1, 2, 3):
        found.take_confirms(confirm(tag), 0)
    assert [type(one.exception(0)) for one in ones] == [PublishFailed, type(None)] * 2 + [type(None)]


class Problem(PublishFailed):
    pass


def test_returned_messages_are_matched_in_order() -> None:
    found = window()
    same = [found.put("", "q", PLAIN, b"x", True) for _ in range(3)]
    other = found.put("", "r", PLAIN, b"x", True)
    found.output(10**6)
    assert found.returned(encode_message("", "q", PLAIN, b"x", True, 1, 4088), Problem("first"))
    assert not same[0].done()
    assert found.returned(encode_message("", "r", PLAIN, b"another", True, 1, 4088), Problem("place"))
    assert not found.returned(encode_message("", "q", PLAIN, b"x", True, 1, 4088), Problem("too late"))
    found.take_confirms(confirm(4, True), 0)
    assert [str(one.exception(0)) for one in (*same, other)] == ["first", "None", "None", "place"]


def test_a_returned_message_that_is_sent_again_may_find_a_queue() -> None:
    found = window()
    one = found.put("", "q", PLAIN, b"x", True)
    found.output(10**6)
    found.returned(encode_message("", "q", PLAIN, b"x", True, 1, 4088), Problem("returned"))
    found.again(4088)
    found.output(10**6)
    found.take_confirms(confirm(1), 0)
    assert (one.done(), one.exception(0)) == (True, None)


def test_failures_are_told_once_and_not_of_those_that_were_asked() -> None:
    found = window()
    ones = [found.put("", "q", PLAIN, b"", True) for _ in range(30)]
    found.output(10**6)
    found.take_confirms(confirm(20, True, True), 0)
    for one in ones[:19]:
        assert isinstance(one.exception(0), PublishFailed)
    count, problem = found.take_failures()
    assert (count, problem) == (1, ones[19].exception(0))
    assert found.take_failures() == (0, None)
    found.take_confirms(confirm(30, True, True), 0)
    assert found.take_failures()[0] == 10
    assert ones[29].exception(0) is not None  # was told: to ask now changes nothing
    assert found.take_failures() == (0, None)


@pytest.mark.parametrize(
    ("wrong", "error", "why"),
    [
        ({"body": "text"}, TypeError, "body must be bytes-like and contiguous, got str; encode it first"),
        ({"body": 3}, TypeError, "body must be bytes-like and contiguous, got int"),
        ({"body": memoryview(b"abcd")[::2]}, TypeError, "body must be bytes-like and contiguous, got memoryview"),
        ({"exchange": b"e"}, TypeError, "exchange must be a str, got b'e'"),
        ({"routing_key": None}, TypeError, "routing_key must be a str, got None"),
        ({"routing_key": "é" * 128}, ValueError, "routing_key must be at most 255 bytes long as UTF-8, got 256: 'é"),
        ({"exchange": "\udc00"}, ValueError, "exchange must be encodable as UTF-8, got '.udc00'"),
    ],
)
def test_what_is_not_allowed_is_named(wrong: dict[str, Any], error: type[Exception], why: str) -> None:
    given = {"exchange": "", "routing_key": "q", "body": b"", **wrong}
    found = window()
    with pytest.raises(error, match=why):
        found.put(given["exchange"], given["routing_key"], PLAIN, given["body"], True)
    assert found.unconfirmed == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_anything_with_bytes(kind: Any) -> None:
    found = window()
    for size in (0, 3, 100_000):
        found.put("", "q", PLAIN, kind(b"x" * size), True)
        expected = encode_message("", "q", PLAIN, b"x" * size, True, 1, 4088)
        assert found.output(10**9) == expected


def test_a_body_that_publishes_while_it_is_read() -> None:
    found = window()

    class Sly(bytes):
        """Compared or shown, it publishes."""

        def __repr__(self) -> str:
            found.put("", "inner", PLAIN, b"", True)
            return "sly"

    class Text(str):
        __slots__ = ()

        def __repr__(self) -> str:
            found.put("", "inner", PLAIN, b"", True)
            return "text"

    found.put("", "outer", PLAIN, Sly(b"a"), True)
    with pytest.raises(ValueError, match="text"):
        found.put(Text("x" * 256), "outer", PLAIN, b"", True)
    assert found.unconfirmed == 2
    assert found.output(10**6) == encode_message("", "outer", PLAIN, b"a", True, 1, 4088) + encode_message(
        "", "inner", PLAIN, b"", True, 1, 4088
    )


def test_what_is_called_when_a_message_is_done_may_publish_and_ask() -> None:
    found = window(messages=2)
    ones = [found.put("", "q", PLAIN, b"", True) for _ in range(2)]
    found.output(10**6)
    more: list[Any] = []
    ones[0].add_done_callback(lambda _: more.append((ones[1].done(), found.put("", "q", PLAIN, b"", True))))
    found.take_confirms(confirm(1) + confirm(2), 0)
    assert more[0][0] is True
    assert found.outstanding() == [more[0][1]]


def test_a_confirmation_is_made_by_publishing_alone() -> None:
    with pytest.raises(TypeError, match="created by publish"):
        Confirmation()
    with pytest.raises(TypeError, match="created by publish"):
        Confirmation.__new__(Confirmation).result(0)


def published(found: PublishWindow) -> Confirmation:
    """Return the confirmation of a message that is sent."""
    one = found.put("", "q", PLAIN, b"", True)
    assert one is not None
    found.output(10**6)
    return one


def test_a_wait_ends_with_the_confirm_or_with_its_time() -> None:
    found = window()
    one, refused = published(found), published(found)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        one.result(0.01)
    with ThreadPoolExecutor() as threads:
        waits = [threads.submit(one.result, timeout) for timeout in (None, 30)]
        failing = threads.submit(refused.result)
        found.take_confirms(confirm(1) + confirm(2, refused=True), 0)
        assert [wait.result(30) for wait in waits] == [None, None]
        with pytest.raises(PublishFailed):
            failing.result(30)
    one.result(0)
    with pytest.raises(PublishFailed):
        refused.result(0)
    called: list[Confirmation] = []
    one.add_done_callback(called.append)
    assert called == [one]


def test_coroutines_wait_too() -> None:
    found = window()
    one, refused = published(found), published(found)

    async def both() -> None:
        assert not await settled(one, 0.01)
        waits = [asyncio.ensure_future(settled(one)), asyncio.ensure_future(settled(one, 30))]
        failing = asyncio.ensure_future(awaited(refused))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(settled(refused), 0.01)
        assert not any(one.done() for one in [*waits, failing])
        await asyncio.to_thread(found.take_confirms, confirm(1) + confirm(2, refused=True), 0)
        assert await asyncio.gather(*waits) == [True, True]
        with pytest.raises(PublishFailed):
            await failing
        assert await settled(one)
        await one
        with pytest.raises(PublishFailed):
            await refused

    asyncio.run(both())


def test_a_confirm_after_the_loop_is_closed_finds_nobody() -> None:
    found = window()
    one = published(found)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of the task, which is not ended
    task = loop.create_task(settled(one))
    assert loop.run_until_complete(asyncio.wait([task], timeout=0.01)) == (set(), {task})
    loop.close()
    found.take_confirms(confirm(1), 0)
    assert one.done()
    assert not task.done()


def test_a_window_that_is_dropped_lets_go_of_its_messages() -> None:
    found = window()
    one = found.put("", "q", PLAIN, b"x", True)
    body = bytearray(b"y")
    found.put("", "q", PLAIN, body, True)
    body.extend(b"z")  # its buffer is free again
    held = Token()
    alive = weakref.ref(held)
    found.outstanding()[1].add_done_callback(lambda _, held=held: held)
    del held, found
    assert alive() is None
    assert not one.done()


class Token:
    pass


def head(lane: str) -> bytes:
    """Return a message of a lane as the broker returns it: what follows the routing key does not matter."""
    return encode_message("", lane, PLAIN, b"?", True, 1, 4088)


def in_lanes(found: PublishWindow, *lanes: str) -> list[Confirmation]:
    return [found.put("", lane, PLAIN, b"%d" % number, True, lane.upper()) for number, lane in enumerate(lanes)]


def sent(found: PublishWindow) -> list[bytes]:
    """Return the bodies of what is sent now."""
    data = found.output(10**9)
    return [part[4:5] for part in data.split(b"\xce\3\0\1")[1:]]


def test_returned_messages_of_a_lane_are_sent_again_before_newer_ones() -> None:
    found = window()
    ones = in_lanes(found, "a", "b", "a", "b")
    assert sent(found) == [b"0", b"1", b"2", b"3"]
    assert found.hold_returned(head("a")) == "A"
    newer = found.put("", "a", PLAIN, b"4", True, "A")
    assert found.held == 2
    assert found.output(10**9) == b""
    assert not found.resume()
    found.take_confirms(confirm(3, True), 0)
    assert [one.done() for one in ones] == [False, True, False, False]
    assert not found.resume()
    found.take_confirms(confirm(4), 0)
    assert found.resume()
    assert not found.resume()
    assert sent(found) == [b"0", b"2", b"4"]
    found.take_confirms(confirm(5) + confirm(7), 0)
    assert [one.done() for one in (*ones, newer)] == [True, True, False, True, True]
    found.take_confirms(confirm(6), 0)
    assert found.unconfirmed == 0
    assert [one.exception(0) for one in ones] == [None] * 4


def test_a_lane_that_cannot_be_had_fails_its_messages_and_no_others() -> None:
    found = window()
    ones = in_lanes(found, "a", "b", "a")
    plain = found.put("", "a", PLAIN, b"", True)  # of another who knows the queue's name
    found.output(10**9)
    found.hold_returned(head("a"))
    found.hold_returned(head("b"))
    found.take_confirms(confirm(4, True), 0)
    found.fail_held(head("a"), Problem("refused"))
    assert [one.done() for one in (*ones, plain)] == [True, False, True, True]
    assert str(ones[0].exception(0)) == "refused"
    assert plain.exception(0) is None
    assert found.resume()
    assert sent(found) == [b"1"]
    found.take_confirms(confirm(5), 0)
    assert found.unconfirmed == 0


def test_a_return_of_another_message_holds_nothing() -> None:
    found = window()
    found.put("", "a", PLAIN, b"", True)
    in_lanes(found, "b")
    found.output(10**9)
    in_lanes(found, "a")  # not sent yet
    assert found.hold_returned(head("a")) is None
    assert found.held == 0


def test_held_messages_that_are_refused_or_lose_their_connection() -> None:
    found = window()
    first, second = in_lanes(found, "a", "a")
    found.output(10**9)
    found.hold_returned(head("a"))
    found.take_confirms(confirm(1, refused=True), 0)
    assert isinstance(first.exception(0), PublishFailed)
    assert found.held == 1
    found.again(4088)
    assert found.held == 0
    assert sent(found) == [b"1"]
    found.take_confirms(confirm(1), 0)
    assert second.exception(0) is None


def test_a_held_message_is_not_suspected() -> None:
    found = window()
    held, guilty = in_lanes(found, "a", "b")
    found.output(10**9)
    found.hold_returned(head("a"))
    found.take_confirms(confirm(1), 0)
    found.suspect(Problem("channel closed"))
    assert (held.done(), str(guilty.exception(0))) == (False, "channel closed")


def test_held_messages_fail_when_the_window_is_closed() -> None:
    found = window()
    ones = in_lanes(found, "a", "a")
    found.output(10**9)
    found.hold_returned(head("a"))
    found.take_confirms(confirm(1), 0)
    assert found.close(Problem("closed")) == 2
    assert [str(one.exception(0)) for one in ones] == ["closed"] * 2


def test_held_messages_are_moved_to_another_lane() -> None:
    found = window()
    first, _, second = in_lanes(found, "a", "b", "a")
    found.output(10**9)
    found.hold_returned(head("a"))
    found.take_confirms(confirm(3, True), 0)
    found.move_held(head("a"), "another")
    assert found.resume()
    expected = [encode_message("", "another", PLAIN, b"%d" % number, True, 1, 4088) for number in (0, 2)]
    assert found.output(10**9) == b"".join(expected)
    found.take_confirms(confirm(5, True), 0)
    assert (first.exception(0), second.exception(0)) == (None, None)
