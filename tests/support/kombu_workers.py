"""Celery workers by either transport for AMQP, and the tasks they get."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import celery
import kombu
import psutil

from fairsched import Publisher

#: py-amqp's transport, which decides how one behaves, and the compiled one.
TRANSPORTS = {"pyamqp": "kombu.transport.pyamqp:Transport", "fairsched": "fairsched.integrations.kombu:Transport"}
CLIENTS = Path(__file__).parent / "clients"


def connection(transport: str, url: str, **options: object) -> kombu.Connection:
    """Return a connection of kombu's by that transport."""
    return kombu.Connection(url, transport=TRANSPORTS[transport], **options)


@contextlib.contextmanager
def working(
    transport: str, url: str, queue: str, folder: Path, *options: str, window: int = 4, acks_late: bool = False
) -> Iterator[psutil.Process]:
    """Run a worker of Celery's on a queue; it ends as an operator ends it, and leaves `log` in the folder."""
    environment = {
        **os.environ, "BROKER_URL": url, "TRANSPORT": TRANSPORTS[transport], "WINDOW": str(window),
        "DONE": str(folder / "done"), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore",
        **({"ACKS_LATE": "1"} if acks_late else {}),
    }  # fmt: skip
    (folder / "done").touch()
    command = [sys.executable, "-m", "celery", "-A", "idle_tasks_app", "worker", "-Q", queue, "-l", "warning"]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [*command, "--without-mingle", "--without-gossip", *options], cwd=CLIENTS, env=environment, stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            yield psutil.Process(process.pid)
        except BaseException as error:
            error.add_note(f"worker: exit code {process.poll()}\n{(folder / 'log').read_text()[-4000:]}")
            raise
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    assert process.wait(60) == 0
                finally:
                    end_all(process.pid)


def end_all(pid: int) -> None:
    """Kill a process and its children, if they are still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid)
        for one in (*found.children(recursive=True), found):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def processor_time(worker: psutil.Process) -> float:
    """Return the processor time of a worker and its processes, in seconds."""
    times = [one.cpu_times() for one in (worker, *worker.children(recursive=True))]
    return sum(each.user + each.system for each in times)


class Sender:
    """Sends copies of one task, each with an id of its own, faster than Celery does."""

    def __init__(self, url: str, queue: str, task: str, *arguments: object) -> None:
        self._url, self._queue = url, queue
        own = f"{queue}-template"  # no worker takes it
        with celery.Celery(broker=url) as app, kombu.Connection(url) as link:
            app.send_task(task, arguments, queue=own)
            with link.SimpleQueue(own) as simple:
                self._message = message = simple.get(timeout=30)
                message.ack()
            link.default_channel.queue_delete(own)
            link.SimpleQueue(queue).close()  # declares it as Celery does
        self.body = message.body if isinstance(message.body, bytes) else message.body.encode()

    def send(self, tasks: Iterable[tuple[str, bytes]]) -> None:
        """Send tasks, given the id and the body of each; return when the broker has them."""
        message = self._message
        with Publisher(self._url) as publisher:
            for task_id, body in tasks:
                publisher.publish(
                    body, self._queue, headers={**message.headers, "id": task_id, "root_id": task_id},
                    correlation_id=task_id, delivery_mode=2, content_type=message.content_type,
                    content_encoding=message.content_encoding,
                )  # fmt: skip


def flood(url: str, queue: str, count: int) -> None:
    """Send tasks that do nothing."""
    sender = Sender(url, queue, "idle")
    sender.send((str(uuid.uuid4()), sender.body) for _ in range(count))


def send_notes(url: str, queue: str, names: list[str], seconds: float) -> None:
    """Send tasks that note their names, which are their ids too."""
    sender = Sender(url, queue, "note", names[0], seconds)
    first = f'"{names[0]}"'.encode()
    assert first in sender.body
    sender.send((name, sender.body.replace(first, f'"{name}"'.encode())) for name in names)


def noted(folder: Path) -> Sequence[str]:
    """Return the names that tasks noted."""
    whole, _, _ = (folder / "done").read_text().rpartition("\n")
    return whole.split("\n") if whole else []
