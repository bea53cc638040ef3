"""Readers of a ring go on while its members come and go."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fairsched.routing import HashRing

pytestmark = pytest.mark.stress


def test_readers_go_on_while_members_change() -> None:
    ring = HashRing({f"q{number}": 50 for number in range(8)})
    keys = np.arange(50_000)
    lasting = {f"q{number}" for number in range(7)}
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            indices = ring.route_many(keys)
            if not 0 <= indices.min() <= indices.max() < 9:
                wrong.append(indices)
            if ring.route("one key") not in {*lasting, "q7", "new"}:
                wrong.append("one key")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        ring.add("new", 50)
        ring.remove("q7")
        ring.add("q7", 50)
        ring.remove("new")
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
