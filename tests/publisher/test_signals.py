"""Handlers of signals that publish, flush and close while their thread publishes, on the embedded broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from fairsched import Broker, Consumer, Publisher
from fairsched.cli.broker import Session


@pytest.fixture
def url() -> Iterator[str]:
    with Broker() as broker:
        with Session(broker.url) as session:
            session.declare("q", {})
        yield broker.url


def send_signals(over: threading.Event) -> None:
    """Signal this process every millisecond."""
    while not over.wait(0.001):
        os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("window", [1, 10])
def test_a_handler_publishes_while_its_thread_waits_for_room(url: str, window: int) -> None:
    published, longest, busy = [0, 0], 0.0, False

    def publish(*_: object) -> None:
        nonlocal longest, busy
        if not busy:
            busy, begin = True, time.monotonic()
            publisher.publish(b"handler", "q")
            published[1] += 1
            longest, busy = max(longest, time.monotonic() - begin), False

    with Publisher(url, confirm_window=window, confirm_timeout=10) as publisher:
        before = signal.signal(signal.SIGUSR1, publish)
        over = threading.Event()
        sender = threading.Thread(target=send_signals, args=(over,))
        sender.start()
        try:
            while published[1] < 200:
                publisher.publish(b"main", "q")
                published[0] += 1
        finally:
            over.set()
            sender.join()
            signal.signal(signal.SIGUSR1, before)
    assert longest < 5
    with Consumer(url, ["q"]) as consumer:
        found = [0, 0]
        for message in consumer:
            found[message.body == b"handler"] += 1
            message.ack()
            if found == published:
                break
    assert found == published


def test_a_handler_publishes_wherever_it_interrupts_the_wait(url: str) -> None:
    """In a process of its own, as below: signals so frequent that one comes in each step of a wait."""
    code = """
    import faulthandler, signal, sys
    from fairsched import Publisher
    faulthandler.dump_traceback_later(40, exit=True)
    busy, handled = False, 0
    def publish(*_):
        global busy, handled
        if not busy:
            busy = True
            publisher.publish(b"handler", "q")
            busy, handled = False, handled + 1
    with Publisher(sys.argv[1], confirm_window=1) as publisher:
        signal.signal(signal.SIGALRM, publish)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0003)
        for _ in range(4000):
            publisher.publish(b"main", "q")
        signal.setitimer(signal.ITIMER_REAL, 0)
        publisher.flush()
        print(publisher.stats()["confirmed"] - handled)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "4000\n", done.stderr


def test_a_handler_closes_while_its_thread_publishes(url: str) -> None:
    """In a process of its own: a lock that is held would hold the test, too."""
    code = """
    import signal, sys, threading, time
    from fairsched import Publisher
    publisher = Publisher(sys.argv[1], confirm_window=2)
    publisher.open()
    signal.signal(signal.SIGALRM, lambda *_: publisher.close())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        while True:
            publisher.publish(b"x", "q")
    except RuntimeError as error:
        print(error)
    print(publisher.stats()["unconfirmed"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "this publisher is closed; create another\n0\n", done.stderr


def test_handlers_that_raise_leave_room_for_other_threads(url: str) -> None:
    """In a process of its own, since every step of the wait for room is interrupted, also the one behind the lock."""
    code = """
    import faulthandler, signal, sys, threading
    from fairsched import Publisher
    faulthandler.dump_traceback_later(50, exit=True)
    class Interrupt(Exception):
        pass
    def interrupt(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Interrupt
    with Publisher(sys.argv[1], confirm_window=1, confirm_timeout=3) as publisher:
        signal.signal(signal.SIGALRM, interrupt)
        for turn in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn % 20 * 0.00001)
                while True:
                    publisher.publish(b"main", "q")
            except Interrupt:
                pass
        failures = []
        def publish():
            try:
                for _ in range(20):
                    publisher.publish(b"other", "q")
            except Exception as error:
                failures.append(error)
        other = threading.Thread(target=publish)
        other.start()
        other.join()
    print(failures)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stderr


def test_a_done_callback_cannot_leave_the_block_by_an_exception(url: str) -> None:
    """As it cannot call `close`: the I/O thread would wait for its own end, and the messages would fail."""
    errors: list[BaseException] = []

    def leave(_confirmation: object) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # the message was confirmed before it had a callback
        try:
            publisher.__exit__(KeyError, KeyError(), None)
        except RuntimeError as error:
            errors.append(error)

    with Publisher(url) as publisher:
        while not errors:
            publisher.publish(b"first", "q").add_done_callback(leave)
            publisher.flush()
        publisher.publish(b"second", "q").result(timeout=10)
    assert [str(error).partition(" and ")[0] for error in errors] == [
        "a done callback runs in the publisher's I/O thread"
    ]
