"""Every fault, way to consume and way to settle: all messages are handled, and none more often than promised."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.proxy import Proxy, behind
from support.rabbitmq import Node, eventually, numbered

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

    def __init__(self, broker: Node, queue: str, way: str, settlement: str, together: threading.Barrier) -> None:
        self.broker = broker
        self.queue = queue
        self.arguments = way, settlement
        self.handled: Counter[bytes] = Counter()
        self.codes: list[int] = []
        #: Messages in its queue at the end.
        self.left = -1
        self._together = together
        self._held = threading.Event()

    def play(self, fault: Callable[[Cell], None]) -> Cell:
        with Proxy(self.broker.port) as self.proxy:
            self.start(HOLD)
            self.await_(self._held.is_set, "the worker has got so far")
            fault(self)
            self.await_(self.is_done, "all messages are handled")
            self.end(signal.SIGTERM)
        return self

    def await_(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, PATIENCE, f"{what}; {self.queue}, {self.arguments}: {len(self.handled)} handled")

    def start(self, hold: int = 0) -> None:
        # A lost peer is noticed soon.
        url = behind(self.proxy, self.broker.url) + "?heartbeat=2"
        self.process = subprocess.Popen(
            [sys.executable, WORKER, url, self.queue, *self.arguments, str(hold)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout:
            if line == b"hold\n":
                self._held.set()
            else:
                self.handled[line.rstrip()] += 1

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
        """How often messages were handled once more."""
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


def kill(cell: Cell) -> None:
    cell.end(signal.SIGKILL)
    cell.start()


def close(cell: Cell) -> None:
    if cell.is_first():
        cell.broker.control("close_all_connections", "test")
    cell.is_first()
    cell.release()


def alarm(cell: Cell) -> None:
    if cell.is_first():
        cell.broker.control("set_vm_memory_high_watermark", "absolute", "1")
    cell.is_first()
    cell.release()
    cell.await_(cell.is_done, "all messages are handled")
    if cell.is_first():
        cell.broker.control("set_vm_memory_high_watermark", "0.6")


def cancel(cell: Cell) -> None:
    cell.end(signal.SIGINT)
    cell.start()


def terminate(cell: Cell) -> None:
    cell.process.send_signal(signal.SIGTERM)
    cell.release()
    cell.wait()
    assert not cell.is_done(), "more was handled than was here"
    cell.start()


#: What is done, how often a message may be handled again for it, and how the workers end.
FAULTS: dict[str, tuple[Callable[[Cell], None], int, list[int]]] = {
    "cut": (cut, 3 * WINDOW, [0]),
    "half-open": (half_open, WINDOW, [0]),
    "kill": (kill, WINDOW, [-signal.SIGKILL, 0]),
    "close": (close, WINDOW, [0]),
    "alarm": (alarm, 0, [0]),
    "cancel": (cancel, WINDOW, [-signal.SIGINT, 0]),
    "SIGTERM": (terminate, 0, [0, 0]),
}

Played = Callable[[str], dict[tuple[str, str], Cell | BaseException]]


@pytest.fixture(scope="module")
def played(broker: Node) -> Played:
    """What became of all cells under a fault; they are played side by side, when the first of them is wanted."""
    found: dict[str, dict[tuple[str, str], Cell | BaseException]] = {}

    def play(fault: str) -> dict[tuple[str, str], Cell | BaseException]:
        if fault not in found:
            found[fault] = play_all(broker, fault)
        return found[fault]

    return play


def play_all(broker: Node, fault: str) -> dict[tuple[str, str], Cell | BaseException]:
    together = threading.Barrier(len(CELLS))
    queues = {cell: f"matrix-{fault}-{'-'.join(cell)}" for cell in CELLS}
    broker.declare(*queues.values())
    for queue in queues.values():
        broker.publish(queue, numbered(MESSAGES))
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


@pytest.mark.timeout(150)
@pytest.mark.parametrize("settlement", SETTLEMENTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_message_is_handled_and_few_again(
    broker: Node, played: Played, fault: str, way: str, settlement: str
) -> None:
    cell = played(fault)[way, settlement]
    if isinstance(cell, BaseException):
        raise cell
    _, most, codes = FAULTS[fault]
    assert set(cell.handled) == set(numbered(MESSAGES))
    assert cell.again() <= most
    assert cell.codes == codes
    assert cell.left == 0
