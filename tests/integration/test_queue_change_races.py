"""Queues that are added and removed at moments at which something else happens to them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import ConfigurationError, Consumer, Queue, QueueSource
from fairsched.consumer.io_thread import IOThread

_numbers = itertools.count()


def started_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


class TestRemovals:
    def test_a_removal_revokes_additions_that_wait_for_an_earlier_one(self, broker: Node, new_queue: Declare) -> None:
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"held"])
        with Consumer(broker.url, [first, second]) as consumer:
            client, message = consumer._client, consumer.get(timeout=30)
            removal = client.begin_removal(second)
            additions = [client.add_queues({second: Queue(second, weight=weight)})[second] for weight in (2, 3)]
            assert client.begin_removal(second) is removal
            for addition in additions:
                with pytest.raises(ConfigurationError, match=f"queue '{second}' was removed before it was consumed"):
                    addition.result(30)
            last = client.add_queues({second: Queue(second, weight=4)})[second]
            message.ack()
            last.result(30)
            assert consumer.state.consuming == {first: True, second: True}
            assert consumer.stats()["slots"][second].quantum == 4

    def test_a_source_that_changes_a_queue_and_then_drops_it(self, broker: Node, new_queue: Declare) -> None:
        """All of it while a message of the queue is in hand."""
        first, second = new_queue(), new_queue()
        broker.publish(second, [b"held"])
        answers: list[Any] = [[first, second]]
        asked = 0

        def source() -> Any:
            nonlocal asked
            asked += 1
            return answers[-1]

        def take_in(answer: Any) -> None:
            answers.append(answer)
            before = asked
            eventually(lambda: asked > before + 2)

        with Consumer(broker.url, QueueSource(source, every=0.01)) as consumer:
            message = consumer.get(timeout=30)
            take_in([first, Queue(second, prefetch=7)])
            take_in([first])
            message.ack()
            eventually(lambda: consumer.state.consuming == {first: True})
            take_in([first])
            assert consumer.state.consuming == {first: True}

    def test_a_removal_that_comes_after_the_cancellation_of_a_stop(
        self, broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stop learns that deliveries have ended, and does not wait until its time is over."""
        first, second = new_queue(), new_queue()
        with Consumer(broker.url, [first, second], shutdown_timeout=30) as consumer:
            thread, stopped = consumer._client.io_thread, []

            def stop_before(queue: str, *more: Any) -> None:
                consumer.stop()
                stopped.append(queue)
                remove(queue, *more)

            remove = thread.remove
            monkeypatch.setattr(thread, "remove", stop_before)
            began = time.monotonic()
            consumer.remove_queue(second)
            assert consumer._client.settings.queues.keys() == {first}
            assert stopped == [second]
        assert time.monotonic() - began < 4

    def test_a_queue_that_is_removed_while_a_connection_declares_queues(
        self, broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is declared is answered right after the removal, before anything else runs in the I/O thread."""
        first, second = new_queue(), new_queue()
        on_declared = IOThread._on_declared
        outcome: list[BaseException | None] = []

        def removed_before(thread: IOThread, *arguments: Any) -> None:
            thread._changes.remove(second, outcome.append)
            on_declared(thread, *arguments)

        monkeypatch.setattr(IOThread, "_on_declared", removed_before)
        with Consumer(broker.url, [Queue(first, durable=True), second]) as consumer:
            eventually(lambda: consumer.state.consuming == {first: True})
            assert outcome == [None]
            assert list(consumer._client.windows()) == [first]


class TestSources:
    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
    def test_a_source_that_raises_whatever_is_asked_again(
        self, broker: Node, new_queue: Declare, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = new_queue()
        answers: list[Any] = [error, [first]]

        def source() -> Any:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        with Consumer(broker.url, QueueSource(source, every=0.01)) as consumer:
            eventually(lambda: consumer.state.consuming == {first: True})
        assert [type(error).__name__ in text for text in caplog.messages if "source of queues" in text] == [True]
