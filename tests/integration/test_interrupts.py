"""Ctrl-C at awkward moments: it ends soon, and leaves neither a queue nor a thread behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika.callback
import pika.channel
import pika.spec
import pytest
from support.proxy import Proxy, behind
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched.cli.broker import Session
from fairsched.cli.brokerexperiment import on_broker
from fairsched.cli.experiment import Meter, Plan
from fairsched.consumer.worker_queues import WorkerQueues
from fairsched.delivery._delivery import Message
from fairsched.errors import ConnectionFailed

#: A lost answer makes a good-bye wait for 12 s; with its answer it takes milliseconds.
SOON = 10.0

Patch = Callable[[pytest.MonkeyPatch], None]

#: When there were interrupts.
moments: list[float] = []


def interrupt() -> None:
    moments.append(time.monotonic())
    signal.raise_signal(signal.SIGINT)


def while_reading(answer: type) -> Patch:
    """Interrupt in the midst of pika, which has taken an answer off the wire and is about to look whose it is."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        process, pending = pika.callback.CallbackManager.process, [interrupt]

        def interrupted(self: Any, prefix: Any, key: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(key, answer) and pending and threading.current_thread() is threading.main_thread():
                pending.pop()()
            return process(self, prefix, key, *rest, **named)

        monkeypatch.setattr(pika.callback.CallbackManager, "process", interrupted)

    return patch


def after(owner: type, name: str, calls: int, wanted: Callable[[Any], bool] = lambda _: True) -> Patch:
    """Interrupt when a method was called so many times by a wanted caller."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        method, left = getattr(owner, name), [calls]

        def interrupted(self: Any, *rest: Any, **named: Any) -> Any:
            found = method(self, *rest, **named)
            if wanted(self):
                left[0] -= 1
                if left[0] == 0:
                    interrupt()
            return found

        monkeypatch.setattr(owner, name, interrupted)

    return patch


def while_returning(calls: int) -> Patch:
    """Interrupt when so many messages of those that were not taken were given back."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        leftovers = WorkerQueues.leftovers

        def interrupted(self: WorkerQueues) -> Iterator[Message]:
            for number, message in enumerate(leftovers(self), 1):
                yield message
                if number == calls:
                    interrupt()

        monkeypatch.setattr(WorkerQueues, "leftovers", interrupted)

    return patch


MOMENTS = {
    "a queue is declared": while_reading(pika.spec.Queue.DeclareOk),
    "queues are filled": after(pika.channel.Channel, "basic_publish", 150),
    "the session ends": while_reading(pika.spec.Channel.CloseOk),
    "the I/O thread starts": after(threading.Thread, "start", 1, lambda thread: thread.name == "fairsched-io"),
    "messages are handled": after(Meter, "handle", 20),
    "the consumer stops": after(WorkerQueues, "shutdown", 1),
    "messages are returned": while_returning(5),
    "queues are deleted": while_reading(pika.spec.Queue.DeleteOk),
}


def queues_of(broker: Node) -> set[str]:
    """Names of the queues, without those for delays, which may expire at any moment."""
    return {name for name in broker.messages() if ".retry." not in name}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_demo_is_interrupted(broker: Node, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    before = queues_of(broker)
    with monkeypatch.context() as patched:
        MOMENTS[moment](patched)
        with pytest.raises(KeyboardInterrupt):
            # Slow enough for the broker to keep up, so that there is something to return in the end.
            on_broker(broker.url)(Plan(300, 1e-3, 10), lambda *_: None)
    assert time.monotonic() - moments[-1] < SOON
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fairsched-")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert queues_of(broker) == before


def test_a_second_interrupt_does_not_wait_for_the_good_bye(broker: Node) -> None:
    first, second = (threading.Timer(seconds, interrupt) for seconds in (0.2, 1.0))

    def ask(url: str) -> None:
        with Session(url) as session:
            proxy.delay = SOON
            try:
                first.start()
                session.find("any")
            except KeyboardInterrupt:
                # Only now: two that come during one step are one.
                second.start()
                raise

    with Proxy(broker.port) as proxy:
        with pytest.raises(KeyboardInterrupt):
            ask(behind(proxy, broker.url))
        assert time.monotonic() - moments[-1] < SOON
    first.join()
    second.join()


def test_queues_are_deleted_in_one_step(broker: Node, new_queue: Callable[..., str]) -> None:
    """A step has a deadline, ten steps have ten: so all requests leave before the first is answered."""
    names = [new_queue() for _ in range(10)]
    with Proxy(broker.port) as proxy:
        with Session(behind(proxy, broker.url)) as session:
            session.find(names[0])
            # From here on only, so that there is time to begin.
            session._timeout, proxy.delay = 0.5, 4.0
            with pytest.raises(ConnectionFailed):
                session.delete(*names)
        eventually(lambda: not queues_of(broker) & set(names))
