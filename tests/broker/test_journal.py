"""Batches on disk survive any end of the process; dropped ones do not, and their room is used again."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually

from fairsched import _probe_journal as probe
from fairsched.broker._journal import Store

#: Where files are in memory: a restart needs no disk, for which hundreds of them would wait.
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
#: How often a process that writes is killed.
KILLS = 50 if os.environ.get("HYPOTHESIS_PROFILE") == "expensive" else 4


def until_durable(store: Store, batch: int) -> None:
    def durable() -> bool:
        assert store.error is None
        return probe.durable(store) >= batch

    eventually(durable, 120, "the batch is on disk", every=0.0005)


def opened(path: Path) -> tuple[Store, list[tuple[int, int, bytes]]]:
    store = Store(path)
    found = store.records()
    store.start()
    return store, found


def test_what_was_put_is_found_in_its_order(tmp_path: Path) -> None:
    store, found = opened(tmp_path / "new" / "directory")
    assert found == []
    ids = [probe.put(store, kind, b"a", b"", bytes((kind,)) * kind)[0] for kind in range(200)]
    probe.drop(store, ids[3])
    store.close()
    assert [probe.drop(store, ids[3]), ids] == [0, sorted(set(ids))]
    again, found = opened(tmp_path / "new" / "directory")
    assert found == [(ids[kind], kind, b"a" + bytes((kind,)) * kind) for kind in range(200) if kind != 3]
    assert probe.put(again, 1, b"")[0] > ids[-1]
    again.close()


@given(st.lists(st.lists(st.integers(-9, 300), max_size=20), max_size=4))
def test_any_history_over_restarts(history: list[list[int]]) -> None:
    """Numbers put a record of that size, or drop the record so many from the newest."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        live: dict[int, bytes] = {}
        for steps in history:
            store, found = opened(Path(folder))
            assert found == [(one, 7, octets) for one, octets in sorted(live.items())]
            for step in steps:
                if step >= 0:
                    octets = bytes((len(live) & 255,)) * step
                    live[probe.put(store, 7, octets)[0]] = octets
                elif len(live) >= -step:
                    gone = sorted(live)[step]
                    del live[gone]
                    assert probe.drop(store, gone) > 0
            store.close()
        store, found = opened(Path(folder))
        assert found == [(one, 7, octets) for one, octets in sorted(live.items())]
        store.close()


def test_room_is_used_again_and_what_lives_long_moves(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    old = probe.put(store, 9, b"x" * 1000)[0]
    for _ in range(8):
        assert probe.work(store, 20_000, 200, 2_000, 100) == 20_000
    size, live, first = probe.stored(store)
    assert live < 1_000_000  # eight times the hundred that are kept, and the old one
    assert size < 16_000_000
    assert first > 1
    store.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 60_000_000
    store, found = opened(tmp_path)
    assert (len(found), found[0]) == (801, (old, 9, b"x" * 1000))
    store.close()


def test_one_broker_at_a_time(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    with pytest.raises(RuntimeError, match=r"broker\.db is in use by another broker.*choose another directory"):
        Store(tmp_path)
    store.close()
    store.close()
    opened(tmp_path)[0].close()


def test_what_is_no_database_of_a_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ValueError, match=r"broker\.db must be the database of a broker"):
        Store(tmp_path)
    assert (tmp_path / "broker.db").read_bytes() == b"no database" * 1000
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / "broker.db") as connection:
        connection.execute("create table mine (x)")
    connection.close()
    with pytest.raises(ValueError, match="not of something else"):
        Store(other)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)[0].close()
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute("pragma user_version = 2")
    connection.close()
    with pytest.raises(ValueError, match=r"broker\.db has format 2, of a later version of fairsched; this one knows 1"):
        Store(tmp_path)
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute("pragma application_id = 7")
    connection.close()
    with pytest.raises(ValueError, match="not of something else: choose another directory"):
        Store(tmp_path)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_directory_that_cannot_be_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"must be one that this user can write to.*or choose another.*file"):
        Store(tmp_path / place)


@pytest.mark.parametrize(
    "change",
    [
        "delete from chunk where number = 2",
        "update chunk set octets = x'01020304'",
        "update chunk set octets = 1",
        "update chunk set octets = 'text'",
        "update chunk set number = -number",
    ],
)
def test_damage_is_said(tmp_path: Path, change: str) -> None:
    store, _ = opened(tmp_path)
    for _ in range(3):
        until_durable(store, probe.put(store, 1, b"abc")[1])
    store.close()
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(ValueError, match=r"must have all chunks|must hold a broker's records"):
        Store(tmp_path)


CHILD = """
import os, random, struct, sys
from pathlib import Path
from fairsched import _probe_journal as probe
from fairsched.broker._journal import Store
store = Store(sys.argv[1])
live = [(id, struct.unpack_from(">Q", octets)[0]) for id, _, octets in store.records()]
number = int(sys.argv[2])
draw = random.Random(number)
store.start()
waiting = []
while store.error is None:
    said = []
    if len(waiting) < 300:
        if draw.random() < 0.6 or not live:
            octets = struct.pack(">Q", number) + bytes((number & 255,)) * draw.randrange(3000)
            id, batch = probe.put(store, 1, octets)
            waiting.append((batch, "put", number, id))
            number += 1
        else:
            id, gone = live.pop(draw.randrange(len(live)))
            os.write(1, b"dropping %d\\n" % gone)
            waiting.append((probe.drop(store, id), "dropped", gone, id))
    durable = probe.durable(store)
    while waiting and waiting[0][0] <= durable:
        _, what, one, id = waiting.pop(0)
        os.write(1, b"%s %d\\n" % (what.encode(), one))
        if what == "put":
            live.append((id, one))
os.write(1, b"failed\\n")
"""


def test_nothing_on_disk_is_lost_by_kills(tmp_path: Path) -> None:
    """Each process goes on where the last was killed; what each said to be on disk is there after all of them."""
    draw = random.Random(os.urandom(8))
    must: set[int] = set()
    may: set[int] = set()
    gone: set[int] = set()
    for turn in range(KILLS):
        command = [sys.executable, "-c", CHILD, str(tmp_path), str(turn << 32)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            left = draw.randrange(1, 3000)
            for line in child.stdout:
                what, number = line.rsplit(maxsplit=1)
                if what == "dropping":
                    must.discard(int(number))
                    may.add(int(number))
                elif what == "dropped":
                    may.discard(int(number))
                    gone.add(int(number))
                else:
                    must.add(int(number))
                left -= 1
                if left == 0:
                    child.send_signal(signal.SIGKILL)
            assert left <= 0, "the process ended by itself"
        store, found = opened(tmp_path)
        numbers = [int.from_bytes(octets[:8], "big") for _, _, octets in found]
        store.close()
        assert all(
            octets[8:] == bytes((number & 255,)) * (len(octets) - 8)
            for number, (_, _, octets) in zip(numbers, found, strict=True)
        )
        assert numbers == sorted(set(numbers))
        assert must <= set(numbers)
        assert not gone & set(numbers)
        # Beside these there is what was put or dropped, and not said to be on disk before the kill.
        unsaid = set(numbers) - must - may
        assert len(unsaid) <= 300 * (turn + 1)
        assert all(number >> 32 <= turn for number in unsaid)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are POSIX's")
def test_a_full_disk_fails_and_keeps_what_was_said(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [sys.executable, "-c", CHILD.replace("< 0.6", "< 0.9"), str(tmp_path), "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit, check=False, timeout=240)
    lines = done.stdout.splitlines()
    assert lines[-1] == "failed"
    put = {int(line.split()[1]) for line in lines if line.startswith("put ")}
    gone = {int(line.split()[1]) for line in lines if line.startswith("dropping ")}
    store, found = opened(tmp_path)
    assert put - gone <= {int.from_bytes(octets[:8], "big") for _, _, octets in found}
    store.close()
