"""Every fault, way to consume and way to settle: all messages are handled, and none more often than promised."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.outcomes import Outcomes
from support.proxy import Proxy, behind
from support.rabbitmq import Broker, make_broker, numbered
from support.waiting import eventually

WORKER = Path(__file__).parents[1] / "support" / "matrix_worker.py"
WAYS = ["run", "iterator", "aio"]
SETTLEMENTS = ["ack", "nack", "defer"]
CELLS = list(itertools.product(WAYS, SETTLEMENTS))
MESSAGES = 200
#: At which of them a worker waits for the fault, and the window of a worker.
HOLD, WINDOW = 50, 20
#: Seconds for anything: nine workers start side by side.
PATIENCE = 60.0


class Cell:
    """One worker, or two in turn, on a queue and behind a proxy of its own."""

    def __init__(self, broker: Broker, queue: str, way: str, settlement: str, together: threading.Barrier) -> None:
        self.broker = broker
        self.queue = queue
        self.arguments = way, settlement
        self.handled: Counter[bytes] = Counter()
        #: Variables that a worker gets.
        self.environment: dict[str, str] = {}
        self.codes: list[int] = []
        #: Messages in its queue at the end.
        self.left = -1
        self._together = together
        self._held = threading.Event()

    def play(self, fault: Callable[[Cell], None]) -> Cell:
        with Proxy(self.broker.port) as self.proxy, tempfile.TemporaryDirectory() as folder:
            self.clock = Path(folder) / "clock"
            # A peer that fell silent is noticed soon; where none does, a crowded machine must not look like one.
            self.heartbeat = 2 if fault is half_open else 60
            if fault is step_clock:
                self.set_clock(0)
                self.environment = {**FAKE_TIME, "FAKETIME_TIMESTAMP_FILE": str(self.clock)}
            self.start(HOLD)
            self.await_(self._held.is_set, "the worker has got so far")
            fault(self)
            self.await_(self.is_done, "all messages are handled")
            self.end(signal.SIGTERM)
        return self

    def await_(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, PATIENCE, f"{what}; {self.queue}, {self.arguments}: {len(self.handled)} handled")

    def start(self, hold: int = 0) -> None:
        url = f"{behind(self.proxy, self.broker.url)}?heartbeat={self.heartbeat}"
        self.process = subprocess.Popen(
            [sys.executable, WORKER, url, self.queue, *self.arguments, str(hold)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout:
            if line == b"hold\n":
                self._held.set()
            else:
                self.handled[line.rstrip()] += 1

    def set_clock(self, seconds: int) -> None:
        """Have the worker's wall clock differ by so many seconds from now on."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.clock)

    def release(self) -> None:
        self.process.stdin.write(b"x")
        self.process.stdin.flush()

    def end(self, number: signal.Signals) -> None:
        """Send the worker a signal and wait for its end."""
        self.process.send_signal(number)
        self.wait()

    def wait(self) -> None:
        self.codes.append(self.process.wait(PATIENCE))
        self._reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()

    def is_done(self) -> bool:
        return len(self.handled) == MESSAGES

    def is_first(self) -> bool:
        """Meet the other cells; True for one of them."""
        return self._together.wait(PATIENCE) == 0

    def again(self) -> int:
        """Return how often messages were handled once more."""
        return self.handled.total() - len(self.handled)


def cut(cell: Cell) -> None:
    cell.proxy.cut()
    cell.release()
    for part in (2, 3):
        cell.await_(lambda part=part: len(cell.handled) >= part * HOLD, "it goes on")
        cell.proxy.cut()


def half_open(cell: Cell) -> None:
    cell.proxy.silence()
    cell.release()


def slow(cell: Cell) -> None:
    cell.proxy.delay, cell.proxy.rate = 0.3, 10_000
    cell.release()
    cell.await_(lambda: len(cell.handled) >= 2 * HOLD, "it goes on")
    cell.proxy.delay, cell.proxy.rate = 0.0, None


def step_clock(cell: Cell) -> None:
    cell.set_clock(3600)
    cell.release()
    cell.await_(lambda: len(cell.handled) >= 2 * HOLD, "it goes on")
    cell.set_clock(-3600)


def kill_broker(cell: Cell) -> None:
    if cell.is_first():
        cell.broker.restart()
    cell.is_first()
    cell.release()


def kill(cell: Cell) -> None:
    cell.end(signal.SIGKILL)
    cell.start()


def close(cell: Cell) -> None:
    if cell.is_first():
        cell.broker.close_connections()
    cell.is_first()
    cell.release()


def alarm(cell: Cell) -> None:
    if cell.is_first():
        cell.broker.raise_memory_alarm()
    cell.is_first()
    cell.release()
    cell.await_(cell.is_done, "all messages are handled")
    if cell.is_first():
        cell.broker.clear_memory_alarm()


def cancel(cell: Cell) -> None:
    cell.end(signal.SIGINT)
    cell.start()


def terminate(cell: Cell) -> None:
    cell.process.send_signal(signal.SIGTERM)
    cell.release()
    cell.wait()
    assert not cell.is_done(), "more was handled than was here"
    cell.start()


#: What steps a process's wall clock, and leaves the other clocks as they are.
FAKE_TIME = {
    "LD_PRELOAD": "/usr/$LIB/faketime/libfaketimeMT.so.1",
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}

#: What is done, how often a message may be handled again for it, and how the workers end.
FAULTS: dict[str, tuple[Callable[[Cell], None], int, list[int]]] = {
    "cut": (cut, 3 * WINDOW, [0]),
    "half-open": (half_open, WINDOW, [0]),
    "slow": (slow, 0, [0]),
    "clock": (step_clock, 0, [0]),
    # What was acknowledged lately need not be on the disk.
    "broker": (kill_broker, HOLD + WINDOW, [0]),
    "kill": (kill, WINDOW, [-signal.SIGKILL, 0]),
    "close": (close, WINDOW, [0]),
    "alarm": (alarm, 0, [0]),
    "cancel": (cancel, WINDOW, [-signal.SIGINT, 0]),
    "SIGTERM": (terminate, 0, [0, 0]),
}

#: As the table of faults calls them.
NAMES = {
    "cut": "connection reset three times",
    "half-open": "half-open connection",
    "slow": "slow link: 0.3 s each way, 10 kB a second",
    "clock": "clock stepped by an hour, and back by two",
    "broker": "broker killed",
    "kill": "worker killed",
    "close": "connection closed by the broker's operator",
    "alarm": "memory alarm",
    "cancel": "Ctrl-C",
    "SIGTERM": "SIGTERM",
}

Played = Callable[[str], dict[tuple[str, str], Cell | BaseException]]


@pytest.fixture(scope="module")
def played(broker: Broker) -> Played:
    """Return the results of all cells under a fault; they are played side by side, when the first of them is wanted."""
    found: dict[str, dict[tuple[str, str], Cell | BaseException]] = {}

    def play(fault: str) -> dict[tuple[str, str], Cell | BaseException]:
        if fault not in found:
            with make_broker(durable=True) if fault == "broker" else contextlib.nullcontext(broker) as its:
                found[fault] = play_all(its, fault)
        return found[fault]

    return play


def play_all(broker: Broker, fault: str) -> dict[tuple[str, str], Cell | BaseException]:
    together = threading.Barrier(len(CELLS))
    queues = {cell: f"matrix-{fault}-{'-'.join(cell)}" for cell in CELLS}
    broker.declare(*queues.values())
    for queue in queues.values():
        broker.publish(queue, numbered(MESSAGES), delivery_mode=2)
    with ThreadPoolExecutor(len(CELLS)) as pool:
        cells = {names: Cell(broker, queue, *names, together) for names, queue in queues.items()}
        futures = {names: pool.submit(cell.play, FAULTS[fault][0]) for names, cell in cells.items()}
        outcomes = {names: future.exception() or future.result() for names, future in futures.items()}
    for cell in cells.values():
        if cell.process.poll() is None:
            cell.process.kill()
            cell.wait()
    # A queue learns of the end of a channel a moment later than the client.
    with contextlib.suppress(AssertionError):
        eventually(lambda: not any(broker.messages().get(queue) for queue in queues.values()), 10)
    left = broker.messages()
    for cell in cells.values():
        cell.left = left[cell.queue]
    broker.delete(*queues.values())
    return outcomes


@pytest.mark.chaos
@pytest.mark.timeout(150)
@pytest.mark.parametrize("settlement", SETTLEMENTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_message_is_handled_and_few_again(
    played: Played, outcomes: Outcomes, fault: str, way: str, settlement: str
) -> None:
    cell = played(fault)[way, settlement]
    if isinstance(cell, BaseException):
        raise cell
    _, most, codes = FAULTS[fault]
    outcomes.note(NAMES[fault], f"consumer, {way}", (numbered(MESSAGES), cell.handled.elements()))
    assert set(cell.handled) == set(numbered(MESSAGES))
    assert cell.again() <= most
    assert cell.codes == codes
    assert cell.left == 0
