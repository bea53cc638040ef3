"""Threads put into a publisher's window and wait for confirmations, while one sends, loses the channel, and settles."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from struct import pack

import pytest
from support.threads import result_of, start

from fairsched.amqp._publishing import Confirmation, PublishWindow

pytestmark = pytest.mark.stress

THREADS, EACH = 8, 3_000


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def frames(data: bytes) -> list[bytes]:
    """Return the payloads of encoded frames."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7])
        found.append(data[at + 7 : at + 7 + size])
        at += size + 8
    return found


class Peer:
    """A broker in a thread: it confirms what it gets, now and then late or by channel's end, and keeps the order."""

    def __init__(self, seed: int) -> None:
        self.woken = threading.Event()
        self.window = PublishWindow(100, 10**6, self.woken.set)
        self.over = False
        self.got: dict[bytes, None] = {}
        self._chance = random.Random(seed)
        self._tag = self._confirmed = 0

    def run(self) -> None:
        self.window.again(4088)
        while not (self.over and self.window.unconfirmed == 0):
            self.woken.wait(0.001)
            self.woken.clear()
            while data := self.window.output(self._chance.randrange(1, 4000)):
                bodies = frames(data)[2::3]
                self.got.update(dict.fromkeys(bodies))
                self._tag += len(bodies)
                self._answer()
            self._answer()

    def _answer(self) -> None:
        if self._chance.random() < 0.01:
            self.window.again(4088)
            self._tag = self._confirmed = 0
        elif self._tag > self._confirmed:
            self._confirmed = self._chance.randint(self._confirmed + 1, self._tag)
            self.window.take_confirms(pack(">BHLHHQBB", 1, 1, 13, 60, 80, self._confirmed, 1, 0xCE), 0)


@pytest.mark.parametrize("seed", range(4))
def test_every_message_is_confirmed_and_threads_keep_their_order(seed: int) -> None:
    peer = Peer(seed)
    serving = start(peer.run)
    ready = threading.Barrier(THREADS)

    def publish(name: int) -> list[Confirmation]:
        ready.wait()
        found = []
        for number in range(EACH):
            body = b"%d:%d" % (name, number)
            while (one := peer.window.put("", "q", b"\0\0", body, False)) is None:
                found[-1].result(60) if found else peer.woken.set()
            found.append(one)
            if number % 50 == name:
                one.result(60)
        return found

    threads = [start(lambda name=name: publish(name)) for name in range(THREADS)]
    results = [result_of(thread) for thread in threads]
    peer.over = True
    peer.woken.set()
    assert result_of(serving) is None
    assert all(one.done() and one.exception(0) is None for found in results for one in found)
    assert (peer.window.confirmed, peer.window.failed) == (THREADS * EACH, 0)
    arrived = [tuple(map(int, body.split(b":"))) for body in peer.got]
    for name in range(THREADS):
        assert [number for one, number in arrived if one == name] == list(range(EACH))


@pytest.mark.parametrize("seed", range(2))
def test_every_callback_is_called_once_whenever_it_is_added(seed: int) -> None:
    """Callbacks are added, by several threads, while another thread settles."""
    peer = Peer(seed)
    serving = start(peer.run)
    ready = threading.Barrier(THREADS)
    shared: list[Confirmation] = []
    calls: list[tuple[int, Confirmation]] = []

    def publish() -> None:
        for _ in range(EACH):
            while (one := peer.window.put("", "q", b"\0\0", b"x", False)) is None:
                shared[-1].result(60)
            shared.append(one)

    def add(name: int) -> None:
        ready.wait()
        for number in range(EACH):
            while len(shared) <= number:
                for one in shared[-1:]:
                    one.result(60)
            shared[number].add_done_callback(lambda one: calls.append((name, one)))
            if number % 7 == name:
                with contextlib.suppress(TimeoutError):
                    shared[number].result(0)

    adding = [start(lambda name=name: add(name)) for name in range(1, THREADS)]
    ready.wait()
    publish()
    for thread in adding:
        result_of(thread)
    peer.over = True
    peer.woken.set()
    assert result_of(serving) is None
    expected = [(name, id(one)) for name in range(1, THREADS) for one in shared]
    assert sorted((name, id(one)) for name, one in calls) == sorted(expected)
