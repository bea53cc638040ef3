"""A Confirmation answers as `concurrent.futures.Future` does, and a LoopConfirmation as `asyncio.Future`.

The models are futures that run, since a published message cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.amqp._publishing import Confirmation, LoopConfirmation, PublishWindow
from fairsched.errors import PublishFailed

OPERATIONS = st.lists(
    st.sampled_from(
        [
            "done", "running", "cancelled", "cancel", "result", "exception", "add_done_callback",
            "add a callback that raises", "finish", "finish",
        ]
    ),
    max_size=20,
)  # fmt: skip


def confirm(tag: int = 1, multiple: bool = False, refused: bool = False) -> bytes:
    """Return a confirm as the broker sends it."""
    return pack(">BHLHHQBB", 1, 1, 13, 60, 120 if refused else 80, tag, multiple, 0xCE)


class Published:
    """A message that was sent, with the model of its confirmation."""

    def __init__(self, fails: bool, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.window = PublishWindow(10, 1000, lambda: None)
        self.model: Any
        if loop is None:
            self.model = concurrent.futures.Future[None]()
            self.model.set_running_or_notify_cancel()
        else:
            self.model = loop.create_future()
            self.window.belong_to(loop)
        self.confirmation = self.window.put("", "q", b"\0\0", b"", True)
        self.window.output(1000)
        self._fails = fails

    def finish(self) -> None:
        """Confirm the message, or refuse it."""
        if not self.model.done():
            self.window.take_confirms(confirm(refused=self._fails), 0)
            if self._fails:
                self.model.set_exception(PublishFailed("the broker refused the message (basic.nack)"))
            else:
                self.model.set_result(None)


class Calls:
    """Done callbacks, in the order in which they were called."""

    def __init__(self, future: Any) -> None:
        self.future = future
        self.made: list[int] = []
        self.added = 0

    def add(self, raises: bool) -> None:
        self.future.add_done_callback(partial(self._call, self.added, raises))
        self.added += 1

    def _call(self, number: int, raises: bool, future: object) -> None:
        assert future is self.future
        self.made.append(number)
        if raises:
            raise RuntimeError("callback")


def outcome(calls: Calls, operation: str, *waits: float) -> Any:
    """Return what an operation returns, or raises."""
    try:
        if "callback" in operation:
            return calls.add(operation == "add a callback that raises")
        return getattr(calls.future, operation)(*(waits if operation in ("result", "exception") else ()))
    except (concurrent.futures.TimeoutError, asyncio.InvalidStateError) as error:
        return type(error)
    except PublishFailed as error:
        return str(error)


def text(value: Any) -> Any:
    return str(value) if isinstance(value, PublishFailed) else value


@given(OPERATIONS, st.booleans(), st.sampled_from([0, 0.001]))
def test_any_sequence_is_answered_like_a_future(operations: list[str], fails: bool, timeout: float) -> None:
    published = Published(fails)
    ours, theirs = Calls(published.confirmation), Calls(published.model)
    for operation in operations:
        if operation == "finish":
            published.finish()
        else:
            answers = [text(outcome(one, operation, timeout)) for one in (ours, theirs)]
            assert answers[0] == answers[1], operation
        assert ours.made == theirs.made


@given(
    st.lists(st.sampled_from(["done", "cancelled", "result", "exception", "add", "remove", "finish", "run"])),
    st.booleans(),
)
def test_any_sequence_is_answered_like_a_future_of_asyncio(operations: list[str], fails: bool) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    published = Published(fails, loop)
    made: tuple[list[int], list[int]] = ([], [])
    functions = [(lambda _, made=one: made.append(1), lambda _, made=one: 1 / 0) for one in made]
    for number, operation in enumerate(operations):
        if operation == "finish":
            published.finish()
        elif operation == "run":
            loop.run_until_complete(asyncio.sleep(0))
        else:
            answers = []
            for one, of_one in zip((published.confirmation, published.model), functions, strict=True):
                if operation in ("add", "remove"):
                    answers.append(getattr(one, f"{operation}_done_callback")(of_one[number % 2]))
                else:
                    answers.append(text(outcome(Calls(one), operation)))
            assert answers[0] == answers[1], operation
        assert made[0] == made[1]
    if published.model.done():
        published.model.exception()  # otherwise it logs that its exception was not read
    loop.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (
            Confirmation,
            concurrent.futures.Future,
            ["done", "running", "cancelled", "cancel", "result", "exception", "add_done_callback"],
        ),
        (
            LoopConfirmation,
            asyncio.futures._PyFuture,  # type: ignore[attr-defined]  # that in C has no signatures
            ["done", "cancelled", "cancel", "result", "exception", "add_done_callback", "remove_done_callback"],
        ),
    ],
)
def test_arguments_stand_where_those_of_a_future_stand(ours: Any, theirs: Any, names: list[str]) -> None:
    for name in names:
        places = [
            [(one.name, one.kind, one.default) for one in list(signature.parameters.values())[1:]]
            for signature in (inspect.signature(getattr(kind, name)) for kind in (ours, theirs))
        ]
        assert places[0] == places[1], name


def test_a_callback_that_raises_is_logged_and_keeps_no_other_from_its_call(caplog: pytest.LogCaptureFixture) -> None:
    published = Published(fails=False)
    called: list[object] = []
    published.confirmation.add_done_callback(lambda _: 1 / 0)
    published.confirmation.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR, "fairsched"):
        published.finish()
        published.confirmation.add_done_callback(lambda _: 1 / 0)
    assert called == [published.confirmation]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2


def test_what_ends_the_thread_is_raised_after_all_callbacks_were_called() -> None:
    window = PublishWindow(10, 1000, lambda: None)
    ones: list[Confirmation] = [window.put("", "q", b"\0\0", b"", True) for _ in range(2)]
    window.output(1000)
    called: list[object] = []

    def leave(_: object) -> None:
        raise SystemExit(3)

    ones[0].add_done_callback(leave)
    for one in ones:
        one.add_done_callback(called.append)
    with pytest.raises(SystemExit):
        window.take_confirms(confirm(2, multiple=True), 0)
    assert called == ones
    assert (window.confirmed, window.unconfirmed) == (2, 0)


class Unfriendly:
    """A done callback that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, _: object) -> None:
        pass


def test_a_wait_that_times_out_compares_no_callbacks() -> None:
    one = Published(fails=False).confirmation
    one.add_done_callback(Unfriendly())
    with pytest.raises(TimeoutError):
        one.result(0)


def test_a_callback_cannot_wait_for_the_thread_that_calls_it() -> None:
    window = PublishWindow(10, 1000, lambda: None)
    first, second = (window.put("", "q", b"\0\0", b"", True) for _ in range(2))
    window.output(1000)
    errors: list[RuntimeError] = []

    def wait(_: object) -> None:
        for call in (second.result, partial(second.exception, 0.001), window.check_may_wait):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)

    first.add_done_callback(wait)
    window.take_confirms(confirm(), 0)
    assert [str(error).partition(" and ")[0] for error in errors] == [
        "a done callback runs in the publisher's I/O thread"
    ] * 3
    with pytest.raises(TimeoutError):
        second.result(0)
    window.take_confirms(confirm(2), 0)
    assert second.result() is None


def test_an_exception_that_was_read_is_not_reported_again() -> None:
    for read in (lambda one: one.exception(0), lambda one: one.add_done_callback(lambda done: done.exception())):
        published = Published(fails=True)
        published.finish()
        read(published.confirmation)
        assert published.window.take_failures() == (0, None)
    published.confirmation.add_done_callback(lambda _: None)
    unread = Published(fails=True)
    unread.confirmation.add_done_callback(lambda _: None)
    unread.finish()
    assert unread.window.take_failures()[0] == 1


def test_a_queue_takes_the_place_of_as_completed() -> None:
    window = PublishWindow(10, 1000, lambda: None)
    ones: list[Confirmation] = [window.put("", "q", b"\0\0", b"", True) for _ in range(5)]
    window.output(1000)
    done: SimpleQueue[Confirmation] = SimpleQueue()
    for one in ones:
        one.add_done_callback(done.put)
    for tag in (3, 1, 2, 5, 4):
        threading.Thread(target=window.take_confirms, args=(confirm(tag), 0)).start()
        assert done.get(timeout=30) is ones[tag - 1]


# asyncio --------------------------------------------------------------------------------------------------------------


def test_the_event_loop_calls_a_callback_in_the_context_of_its_addition() -> None:
    number = ContextVar("number", default=0)

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        failures: list[BaseException] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        published = Published(False, loop)
        one: LoopConfirmation = published.confirmation
        found: list[object] = []

        def note(confirmation: LoopConfirmation) -> None:
            found.append((confirmation is one, threading.current_thread() is threading.main_thread(), number.get()))

        number.set(1)
        one.add_done_callback(note)
        number.set(2)
        one.add_done_callback(lambda _: 1 / 0)
        await asyncio.to_thread(published.window.take_confirms, confirm(), 0)
        await one
        one.add_done_callback(note)
        await asyncio.sleep(0)
        assert [type(error) for error in failures] == [ZeroDivisionError]
        return found

    assert asyncio.run(main()) == [(True, True, 1), (True, True, 2)]


def test_it_is_awaited_in_every_way_of_asyncio() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        window = PublishWindow(10, 1000, lambda: None)
        window.belong_to(loop)
        ones: list[LoopConfirmation] = [window.put("", "q", b"\0\0", b"", True) for _ in range(4)]
        window.output(1000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ones[0], 0.001)
        task = asyncio.ensure_future(ones[1])
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        together = asyncio.gather(*ones, return_exceptions=True)
        first = asyncio.wait([asyncio.ensure_future(one) for one in ones], return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.to_thread(window.take_confirms, confirm(3, multiple=True) + confirm(4, refused=True), 0)
        results = await together
        assert results[:3] == [None] * 3
        assert isinstance(results[3], PublishFailed)
        done, _ = await first
        assert any(one.exception() for one in done)

    asyncio.run(main())


def test_callbacks_of_a_closed_loop_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    published = Published(False, loop)
    published.confirmation.add_done_callback(lambda _: None)
    loop.close()
    published.window.take_confirms(confirm(), 0)
    assert published.confirmation.done()
