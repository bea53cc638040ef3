"""Send a million tasks to a Celery worker by fairsched's transport; its memory must not grow.

Usage: python benchmarks/kombu_million.py [URL [TASKS [POOL]]]

Prints the memory of the worker and its processes as tasks are done. The exit code is 1 if the median of the last third
of the run is more than 2 MB above that of the middle third, and that above the first's.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.growth import Sample, growth, held
from support.kombu_workers import Sender, processor_time, working
from support.waiting import eventually

import fairsched

QUEUE = "kombu-million"
#: Most tasks that wait: the memory of the broker is not what is measured.
BACKLOG = 20_000
LIMIT = 2.0  # MB


def left(consumer_url: str) -> int:
    """Return how many tasks wait."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(consumer_url))
    count: int = connection.channel().queue_declare(QUEUE, passive=True).method.message_count
    connection.close()
    return count


def sample(worker: psutil.Process) -> Sample:
    """Return what the worker and its processes hold."""
    found = held("worker", worker)
    for number, child in enumerate(worker.children(), 1):
        found |= held(f"child {number}", child)
    return found


def run(url: str, tasks: int, pool: str) -> bool:
    """Have a worker do so many tasks; return whether its memory stayed."""
    sender = Sender(url, QUEUE, "idle")
    batch = BACKLOG // 2
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        options = ("-P", pool, *(() if pool == "solo" else ("-c", "2")))
        with working("fairsched", url, QUEUE, Path(folder), *options, window=100) as worker:
            since = time.perf_counter()
            for sent in range(0, tasks, batch):
                sender.send((str(uuid.uuid4()), sender.body) for _ in range(min(batch, tasks - sent)))
                eventually(lambda: left(url) < batch, 600, every=0.2)
                samples.append(sample(worker))
                megabytes = ", ".join(f"{name} {value:.1f}" for name, value in samples[-1].items() if "MB" in name)
                elapsed, busy = time.perf_counter() - since, processor_time(worker)
                print(
                    f"{sent + batch} tasks sent in {elapsed:.0f} s, {busy:.0f} s busy: {megabytes}",
                    flush=True,
                )
            eventually(lambda: left(url) == 0, 600, every=0.2)
    # What is allocated once, and the first turn of every cache, is no growth.
    grown = growth(samples[len(samples) // 10 :])
    print({name: round(value, 2) for name, value in grown.items()})
    return all(value <= LIMIT for name, value in grown.items() if name.endswith("MB"))


def main() -> int:
    """Run on the broker named, or on an embedded one."""
    tasks, pool = int((sys.argv[2:] or ["1000000"])[0]), (sys.argv[3:] or ["solo"])[0]
    if len(sys.argv) > 1 and sys.argv[1] != "embedded":
        return 0 if run(sys.argv[1], tasks, pool) else 1
    with fairsched.Broker() as broker:
        return 0 if run(broker.url, tasks, pool) else 1


if __name__ == "__main__":
    sys.exit(main())
