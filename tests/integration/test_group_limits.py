"""Limits of a group of processes against a real broker, counted from what the processes have written down."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.declare import Declare
from support.limited_worker import EXPLAINED, NAMED
from support.proxy import Proxy, behind
from support.rabbitmq import Broker, Node, numbered
from support.waiting import SOON, eventually

from fairsched import Consumer, Limit, Queue, Throttled

#: Seconds of the tests that kill processes, and their processes and tenants.
SECONDS = float(os.environ.get("LIMIT_SECONDS", "8"))
PROCESSES = int(os.environ.get("LIMIT_PROCESSES", "4"))
TENANTS = int(os.environ.get("LIMIT_TENANTS", "40"))
#: The line in which a process says that it is the keeper.
KEEPS = re.compile(r"this process keeps the limits from now on, as keeper number (\d+)\n")
#: Seconds by which a handler of a crowded machine begins late.
LATE = 0.1


class Worker:
    """A process with handlers, what it has written down, and when it had ended."""

    def __init__(self, url: str, queue: str, group: str, record: Path, limit: str, work: float) -> None:
        self.url, self.record = url, record
        self.ended: float | None = None
        tests = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
        arguments = [url, queue, group, str(record), limit, str(work)]
        command = [sys.executable, "-m", "support.limited_worker", *arguments]
        self.log = record.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.ended = time.monotonic()

    def explain(self) -> str:
        """Return what it logs of what it waits for."""
        before = self.log.stat().st_size
        assert self.process.stdin is not None
        self.process.stdin.write(b"explain\n")
        self.process.stdin.flush()
        with contextlib.suppress(AssertionError):  # it may hang
            eventually(lambda: EXPLAINED in self.log.read_text()[before:], 5)
        return self.log.read_text()[before:]

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.record.read_text().splitlines()] if self.record.exists() else []


class Crew:
    """Workers of one queue and group."""

    def __init__(self, folder: Path, queue: str, limit: str, work: float) -> None:
        self.folder, self.queue, self.limit, self.work = folder, queue, limit, work
        self.workers: list[Worker] = []

    def begin(self, url: str) -> Worker:
        record = self.folder / f"worker-{len(self.workers)}"
        self.workers.append(Worker(url, self.queue, f"group-{self.queue}", record, self.limit, self.work))
        return self.workers[-1]

    def living(self) -> list[Worker]:
        return [one for one in self.workers if one.process.poll() is None]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, AssertionError):
            error.add_note(self.explain())
        for one in self.living():
            one.kill()

    def explain(self) -> str:
        """Return how many messages were handled, and what the living processes wait for."""
        ends = {(tenant, body) for one in self.workers for what, tenant, body, _ in one.lines() if what == "end"}
        handled = Counter(tenant for tenant, _ in ends)
        for one in self.living():
            one.explain()
        logs = [f"{one.record.name}:\n{one.log.read_text()[-20_000:]}" for one in self.living()]
        return "\n".join([f"handled: {dict(handled)}", *logs])

    def accounts_for_all(self) -> bool:
        """Whether the keeper knows all living processes, and has freed what the others had."""
        keeper = self.keeper()
        said = keeper.explain() if keeper else ""
        return f"'members': {len(self.living())}," in said and "'absent': 0" in said

    def keeper(self) -> Worker | None:
        """Return the living process that became the keeper last."""
        found = {int(number): one for one in self.living() for number in KEEPS.findall(one.log.read_text())}
        return found[max(found)] if found else None

    def events(self) -> list[tuple[int, int, str]]:
        """Return when handlers began (1) and ended (-1), with their tenants, in order of time."""
        found: list[tuple[int, int, str]] = []
        for one in self.workers:
            running: Counter[str] = Counter()
            for what, tenant, _, when in one.lines():
                change = 1 if what == "begin" else -1
                running[tenant] += change
                found.append((int(when), change, tenant))
            if one.ended is not None:
                found += [(int(one.ended * 1e9), -1, tenant) for tenant in running.elements()]
        return sorted(found)

    def most(self, limited: Callable[[str], str] = str) -> Counter[str]:
        """Return the largest number of messages in hand at a time, by what limits a tenant: itself, or a name."""
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        for _, change, tenant in self.events():
            running[limited(tenant)] += change
            most[limited(tenant)] = max(most[limited(tenant)], running[limited(tenant)])
        return most

    def handled(self) -> set[str]:
        return {body for one in self.workers for what, _, body, _ in one.lines() if what == "end"}

    def begun(self) -> int:
        return sum(one.record.read_bytes().count(b"\n") for one in self.workers if one.record.exists())


def publish(broker: Broker, queue: str, count: int, tenants: int) -> None:
    for tenant in range(tenants):
        bodies = [b"%d" % number for number in range(tenant, count, tenants)]
        broker.publish(queue, bodies, delivery_mode=2, headers={"tenant": f"t{tenant}"})


def test_killed_processes_never_exceed_the_limit_and_lose_nothing(
    broker: Node, new_queue: Declare, tmp_path: Path
) -> None:
    """Every two seconds the one that keeps the limits: the next ones find out late which are gone, and free permits.

    Those of a tenant, of a name and of the total.
    """
    queue, count, kills = new_queue("limited"), 600, 3
    with Crew(tmp_path, queue, "2,,/5,,/10,,", 0.1) as crew:
        for _ in range(kills + 2):
            crew.begin(broker.url)
        eventually(lambda: all(one.record.exists() for one in crew.workers), SOON)
        publish(broker, queue, count, TENANTS)
        eventually(lambda: all(one.lines() for one in crew.workers), SOON)
        for _ in range(kills):
            threading.Event().wait(2.0)
            eventually(crew.keeper)
            crew.keeper().kill()
        eventually(crew.accounts_for_all, SOON)
        crew.begin(broker.url)
        eventually(lambda: len(crew.handled()) == count, SOON)
    assert max(crew.most().values()) <= 2
    assert crew.most(lambda tenant: "api" if tenant in NAMED else "")["api"] <= 5
    assert crew.most(lambda _tenant: "total")["total"] <= 10


def test_kills_cuts_and_a_restart_exceed_no_limit(mortal: Broker, tmp_path: Path) -> None:
    mortal.declare("limited")
    count = 200 * int(SECONDS)
    publish(mortal, "limited", count, TENANTS)
    with Proxy(mortal.port) as proxy, Crew(tmp_path, "limited", "2,,//", 0.1) as crew:
        urls = [mortal.url, behind(proxy, mortal.url) + "?heartbeat=5"]
        for number in range(PROCESSES):
            crew.begin(urls[number % 2])
        eventually(crew.begun)
        for number in range(int(SECONDS)):
            before = crew.begun()
            threading.Event().wait(1.0)  # a fault every second
            if number == int(SECONDS) // 2:
                mortal.restart()
            elif number % 4 == 3:
                proxy.silence(["both", "there", "back"][number // 4 % 3])
            else:
                next(one for one in crew.living() if one.url == mortal.url).kill()
                crew.begin(mortal.url)
            eventually(lambda before=before: crew.begun() > before, 60)
    assert max(crew.most().values()) <= 2


def test_permits_of_a_killed_process_are_back_within_five_seconds(
    broker: Node, new_queue: Declare, tmp_path: Path
) -> None:
    queue = new_queue("limited")
    publish(broker, queue, 6, 1)
    with Crew(tmp_path, queue, "2,,//", 30.0) as crew:
        killed = crew.begin(broker.url)
        eventually(lambda: len(killed.lines()) == 2)
        other = crew.begin(broker.url)
        eventually(other.record.exists)
        threading.Event().wait(3.0)  # until the other is a member, and waits
        assert not other.lines()
        killed.kill()
        eventually(lambda: len(other.lines()) == 2)
        begun = max(int(when) for *_, when in other.lines()) * 1e-9
    assert begun - killed.ended < 5 + LATE
    assert max(crew.most().values()) <= 2


def test_a_restarted_broker_frees_no_permits(mortal: Broker, tmp_path: Path) -> None:
    mortal.declare("limited")
    publish(mortal, "limited", 600, 5)
    with Crew(tmp_path, "limited", "2,,//", 0.1) as crew:
        for _ in range(3):
            crew.begin(mortal.url)
        eventually(lambda: crew.begun() > 60)
        mortal.restart()
        eventually(lambda: crew.begun() > 160, 60)
        crew.workers[0].kill()
        eventually(lambda: len(crew.handled()) == 600, 120)
        assert len(crew.living()) == 2
    assert max(crew.most().values()) <= 2


@pytest.mark.parametrize("ways", ["both", "there", "back"])
def test_a_process_that_is_cut_off_in_silence_keeps_its_permits(
    broker: Broker, new_queue: Declare, tmp_path: Path, ways: str
) -> None:
    queue = new_queue("limited")
    publish(broker, queue, 20, 1)
    with Proxy(broker.port) as proxy, Crew(tmp_path, queue, "1,,//", 40.0) as crew:
        cut = crew.begin(broker.url.replace(str(broker.port), str(proxy.port)))
        eventually(lambda: crew.begun() == 1)
        crew.begin(broker.url)
        began = time.monotonic()
        proxy.silence(ways)
        proxy.accepting = False
        eventually(lambda: any(what == "end" for what, *_ in cut.lines()), 60)
        assert time.monotonic() - began > 25, "the process was not cut off for longer than a heartbeat"
        crew.begun()
    assert max(crew.most().values()) == 1


@pytest.mark.steady
def test_the_rate_holds_for_all_processes_together(broker: Node, new_queue: Declare, tmp_path: Path) -> None:
    queue, rate, burst = new_queue("limited"), 40, 5
    publish(broker, queue, 4000, 1)
    seconds = float(os.environ.get("RATE_SECONDS", "10"))
    with Crew(tmp_path, queue, f",{rate},{burst}//", 0.001) as crew:
        for _ in range(3):
            crew.begin(broker.url)
        eventually(lambda: all(one.record.exists() for one in crew.workers))
        eventually(lambda: crew.begun() > 100)
        threading.Event().wait(seconds)
    times = [when * 1e-9 for when, change, _ in crew.events() if change > 0][50:]
    measured = (len(times) - 1) / (times[-1] - times[0])
    assert abs(measured - rate) < 0.02 * rate
    # A handler's record may be late by what the machine needs to begin it.
    for count in (2 * burst, 8 * burst, 4 * rate):
        for first, later in zip(times, times[count:], strict=False):
            assert later - first > (count - burst) / rate - LATE


@contextmanager
def running(consumer: Consumer, handler: object) -> Iterator[None]:
    with consumer:
        thread = threading.Thread(target=consumer.run, args=(handler,))
        thread.start()
        try:
            yield
        finally:
            if not consumer.state.stopping:
                consumer.stop()
            thread.join(30)
            assert not thread.is_alive(), "the consumer hangs"


def test_the_state_is_explained(broker: Node, new_queue: Declare) -> None:
    queue = new_queue("limited")
    broker.publish(queue, numbered(5))
    go_on = threading.Event()
    limited = Queue(queue, limit=Limit(2, scope="group"))
    consumer = Consumer(broker.url, [limited], share_group=f"group-{queue}", workers=4)
    with running(consumer, lambda _message: go_on.wait(30)):
        eventually(lambda: consumer.explain(queue).limited == 2)
        why = consumer.explain(queue)
        assert (why.permits, why.concurrency) == (2, 2)
        assert "2 in hand here, where this process has 2 of the group's 2: it takes no turns until" in str(why)
        assert consumer.stats()["group_limits"]["keeper"] == 1
        go_on.set()
        eventually(lambda: consumer.stats()["acked"] == 5)


def test_a_group_limit_of_a_queue_that_is_added_later(broker: Node, new_queue: Declare) -> None:
    first, later = new_queue("first"), new_queue("later")
    broker.publish(later, numbered(5))
    running_now: Counter[int] = Counter()
    guard = threading.Lock()
    most = 0

    def handle(message: object) -> None:
        nonlocal most
        with guard:
            running_now[0] += 1
            most = max(most, running_now[0])
        threading.Event().wait(0.02)
        with guard:
            running_now[0] -= 1

    consumer = Consumer(broker.url, [first], share_group=f"group-{first}", workers=4)
    with running(consumer, handle):
        consumer.add_queue(Queue(later, limit=Limit(1, scope="group")))
        eventually(lambda: consumer.stats()["acked"] == 5)
    assert most == 1


def test_a_throttled_queue_takes_no_turns_and_the_others_go_on(broker: Node, new_queue: Declare) -> None:
    slow, fast = new_queue("slow"), new_queue("fast")
    broker.publish(slow, numbered(3))
    times: list[float] = []
    guard = threading.Lock()

    def handle(message: object) -> None:
        if message.queue == slow:
            with guard:
                times.append(time.monotonic())
                if len(times) == 1:
                    raise Throttled(1.0)

    consumer = Consumer(broker.url, [slow, fast], workers=1)
    with running(consumer, handle):
        eventually(lambda: len(times) == 1)
        eventually(lambda: consumer.explain(slow).retry_after)
        broker.publish(fast, numbered(50))
        eventually(lambda: consumer.stats()["acked"] == 50)
        assert len(times) == 1
        eventually(lambda: consumer.stats()["acked"] == 53)
    assert times[1] - times[0] >= 1.0
    assert consumer.stats()["errors"] == 0


@pytest.mark.parametrize("when", ["before the stop", "after it"])
def test_a_stop_returns_what_is_throttled_and_finishes_the_rest(broker: Node, new_queue: Declare, when: str) -> None:
    queue = new_queue("jobs")
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()
    done: list[str] = []

    def handle(message: object) -> None:
        if message.slot == "acme":
            begun.set()
            if when == "after it":
                assert stopped.wait(30)
            raise Throttled(600.0)
        assert go_on.wait(30)
        done.append(message.slot)

    consumer = Consumer(broker.url, [queue], key="header:tenant", workers=2, prefetch=50, shutdown_timeout=60.0)
    broker.publish(queue, numbered(4), headers={"tenant": "acme"})
    broker.publish(queue, numbered(6), headers={"tenant": "other"})
    with running(consumer, handle):
        assert begun.wait(30)
        eventually(lambda: consumer.stats()["received"] >= 10)
        began = time.monotonic()
        consumer.stop()
        stopped.set()
        go_on.set()
    assert time.monotonic() - began < 30
    assert done == ["other"] * 6
    assert broker.left(queue) == 4


def test_a_throttled_tenant_waits_in_all_processes_of_the_group(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("one"), new_queue("other")
    group = f"group-{queue}"
    limits = {"tenants": {"*": {"limit": Limit(4, scope="group")}}, "key": "header:tenant", "share_group": group}
    seen: list[tuple[str, float]] = []

    def throttling(message: object) -> None:
        seen.append(("throttled", time.monotonic()))
        if len(seen) == 1:
            raise Throttled(2.0)

    first, second = Consumer(broker.url, [queue], **limits), Consumer(broker.url, [other], **limits)
    with running(first, throttling), running(second, lambda _message: seen.append(("second", time.monotonic()))):
        eventually(lambda: second.stats()["group_limits"]["members"] == 2)
        broker.publish(queue, [b"1"], headers={"tenant": "acme"})
        eventually(lambda: len(seen) == 1)
        eventually(lambda: "acme" in second.stats()["slots"])
        broker.publish(other, [b"1"], headers={"tenant": "acme"})
        eventually(lambda: len(seen) == 3)
    assert min(when for _, when in seen[1:]) - seen[0][1] > 1.8


def test_a_queue_that_is_removed_keeps_its_permits_while_a_message_is_in_hand(broker: Node, new_queue: Declare) -> None:
    queue, other = new_queue("limited"), new_queue("other")
    limited = Queue(queue, limit=Limit(1, scope="group"))
    begun, go_on = threading.Event(), threading.Event()
    seen: list[float] = []

    def hold(_message: object) -> None:
        begun.set()
        go_on.wait(30)

    first = Consumer(broker.url, [limited, other], share_group=f"group-{queue}")
    second = Consumer(broker.url, [limited], share_group=f"group-{queue}")
    with running(first, hold):
        broker.publish(queue, numbered(5))
        assert begun.wait(10)
        removing = threading.Thread(target=first.remove_queue, args=(queue,))
        removing.start()
        with running(second, lambda _message: seen.append(time.monotonic())):
            eventually(lambda: second.stats()["received"] == 4)
            threading.Event().wait(3.0)  # longer than what is not used stays with a process
            assert not seen
            go_on.set()
            eventually(lambda: len(seen) == 4)
        removing.join(30)
