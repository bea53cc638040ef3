"""Exceptions that come between any two lines of `add_queue` and `remove_queue`: nothing is left half done."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

import fairsched
from fairsched import App, ConfigurationError, Consumer

_PACKAGE = str(Path(fairsched.__file__).parent)


class Interrupted(BaseException):
    """What a signal handler raises."""


def is_interrupted(call: Callable[[], object], line: int) -> bool:
    """Call a function, and raise before it executes so many lines of the package; False if it has fewer."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line" and next(lines) == line:
            raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def every_line(call: Callable[[], object]) -> Iterator[int]:
    """Yield after an interrupt at each line of a call in turn."""
    return itertools.takewhile(lambda line: is_interrupted(call, line), itertools.count(1))


def test_a_queue_whose_addition_was_interrupted_can_be_added(broker: Node, new_queue: Declare) -> None:
    first, other = new_queue(), new_queue()
    with Consumer(broker.url, [first], connect_timeout=10.0) as consumer:
        count = 0
        for line in every_line(lambda: consumer.add_queue(other)):
            consumer.add_queue(other)
            assert consumer.state.consuming == {first: True, other: True}, line
            broker.publish(other, [b"%d" % line])
            with consumer.get(timeout=10.0) as message:
                assert message.body == b"%d" % line
            consumer.remove_queue(other)
            count += 1
    assert count > 10


def test_a_queue_whose_removal_was_interrupted_can_be_removed(broker: Node, new_queue: Declare) -> None:
    first, other = new_queue(), new_queue()
    with Consumer(broker.url, [first, other]) as consumer:
        count = 0
        for line in every_line(lambda: consumer.remove_queue(other)):
            with contextlib.suppress(ConfigurationError):  # it is removed already
                consumer.remove_queue(other)
            assert consumer.state.consuming == {first: True}, line
            consumer.add_queue(other)
            count += 1
    assert count > 5


def test_a_queue_that_an_app_consumes_after_an_interrupt_has_its_handler(broker: Node, new_queue: Declare) -> None:
    first, other = new_queue(), new_queue()
    app = App(broker.url)
    app.consumer(first)(lambda message: None)
    worker = threading.Thread(target=app.run)
    worker.start()
    try:
        eventually(lambda: app._consumer is not None and app._consumer.state.consuming == {first: True})
        assert app._consumer is not None
        interrupted = 0
        for line in every_line(lambda: app.add_queue(other, lambda message: None)):
            settings = app._consumer._client.settings
            assert other in app.handlers or other not in settings.queues, line
            app._consumer.add_queue(other)  # waits until no addition is under way
            app.remove_queue(other)
            interrupted += 1
        assert interrupted > 10
    finally:
        app.stop()
        worker.join()
