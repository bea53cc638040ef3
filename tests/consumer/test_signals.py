"""SIGTERM and SIGINT within this process."""

from __future__ import annotations

import queue
import signal
import sys
import threading

import pytest
from support.waiting import eventually

from fairsched.consumer.signals import graceful


def test_the_first_signal_finishes_and_later_ones_leave() -> None:
    calls: queue.Queue[bool] = queue.Queue()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with graceful(calls.put):
        signal.raise_signal(signal.SIGTERM)
        assert calls.get(timeout=10) is False
        signal.raise_signal(signal.SIGINT)
        assert calls.get(timeout=10) is True
        signal.raise_signal(signal.SIGINT)
        assert calls.get(timeout=10) is True
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not any(thread.name == "fairsched-signals" for thread in threading.enumerate())


def test_two_signals_at_once_are_two() -> None:
    for _ in range(50):
        calls: queue.Queue[bool] = queue.Queue()
        with graceful(calls.put):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert [calls.get(timeout=10), calls.get(timeout=10)] == [False, True]


def test_other_signals_stop_nothing() -> None:
    calls: queue.Queue[bool] = queue.Queue()
    other = signal.SIGBREAK if sys.platform == "win32" else signal.SIGUSR1
    earlier = signal.signal(other, lambda *_: None)
    try:
        with graceful(calls.put):
            signal.raise_signal(other)
            signal.raise_signal(signal.SIGTERM)
            assert calls.get(timeout=10) is False
    finally:
        signal.signal(other, earlier)
    assert calls.empty()


def test_only_in_the_main_thread() -> None:
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with graceful(print):
                pass
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert len(errors) == 1


def test_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="mine"), graceful(print):
        raise RuntimeError("mine")
    assert signal.getsignal(signal.SIGTERM) is before


# SIGHUP ------------------------------------------------------------------------------------------------------------

needs_hangup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")


@needs_hangup
def test_a_reload_that_hangs_delays_no_stop() -> None:
    begun, released, stopped = threading.Event(), threading.Event(), threading.Event()

    def reload() -> None:
        begun.set()
        released.wait(60)

    try:
        with graceful(lambda now: stopped.set(), reload=reload):
            signal.raise_signal(signal.SIGHUP)
            assert begun.wait(10)
            signal.raise_signal(signal.SIGTERM)
            assert stopped.wait(10)
    finally:
        released.set()


@needs_hangup
def test_a_storm_of_reloads_loses_no_stop_and_the_last_one_counts() -> None:
    begun, released, stopped = threading.Event(), threading.Event(), threading.Event()
    reloads: queue.Queue[None] = queue.Queue()

    def reload() -> None:
        reloads.put(None)
        begun.set()
        released.wait(60)

    try:
        with graceful(lambda now: stopped.set(), reload=reload):
            signal.raise_signal(signal.SIGHUP)
            assert begun.wait(10)
            # More than a socket has room for, even if the thread that reads them is not given a turn.
            interval = sys.getswitchinterval()
            sys.setswitchinterval(10)
            try:
                for _ in range(5000):
                    signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
            finally:
                sys.setswitchinterval(interval)
            assert stopped.wait(10)
            released.set()
            assert [reloads.get(timeout=10) for _ in range(2)] == [None, None]
    finally:
        released.set()


@needs_hangup
def test_a_reload_that_fails_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    reloads: queue.Queue[None] = queue.Queue()

    def reload() -> None:
        reloads.put(None)
        raise ValueError("bad")

    with graceful(print, reload=reload):
        for count in range(1, 3):
            signal.raise_signal(signal.SIGHUP)
            reloads.get(timeout=10)
            eventually(lambda: caplog.text.count("SIGHUP: failed") == count)  # noqa: B023
