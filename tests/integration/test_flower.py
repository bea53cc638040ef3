"""Flower, which shows what Celery's workers do, by the compiled transport."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.kombu_workers import CLIENTS, TRANSPORTS, send_notes, working
from support.ports import free_ports
from support.rabbitmq import Broker
from support.waiting import eventually

NAMES = [f"task-{number:02}" for number in range(20)]


@contextlib.contextmanager
def flower(url: str, queue: str, folder: Path) -> Iterator[str]:
    """Run Flower beside the app; yield the URL of its API."""
    [port] = free_ports(1)
    environment = {
        **os.environ, "BROKER_URL": url, "TRANSPORT": TRANSPORTS["fairsched"], "WINDOW": "4", "DONE": os.devnull,
        "PYTHONPATH": os.pathsep.join(sys.path), "FLOWER_UNAUTHENTICATED_API": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "celery", "-A", "idle_tasks_app", "flower", "--address=127.0.0.1"]
    with open(folder / "flower.log", "wb") as log:
        process = subprocess.Popen(
            [*command, f"--port={port}", f"--db={folder / 'flower'}"], cwd=CLIENTS, env=environment, stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}/api"
        except BaseException as error:
            error.add_note((folder / "flower.log").read_text()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(30)


def ask(url: str, content: dict[str, Any] | None = None) -> Any:
    """Return what Flower answers, None if it does not, as while it starts."""
    data = None if content is None else json.dumps(content).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return None


def test_flower_shows_workers_and_tasks(broker: Broker, tmp_path: Path) -> None:
    queue = "kombu-flower"
    with (
        flower(broker.url, queue, tmp_path) as api,
        working("fairsched", broker.url, queue, tmp_path, "-E", "-n", "shown@here", "-c", "1"),
    ):
        eventually(lambda: (ask(f"{api}/workers?status=1") or {}).get("shown@here"), 60, "the worker is online")
        send_notes(broker.url, queue, NAMES, 0)
        eventually(lambda: succeeded(api) == set(NAMES), 60, "all tasks are shown")
        # Remote control, whose answers come back by the broker.
        found = ask(f"{api}/workers?refresh=1&workername=shown@here")
        assert found["shown@here"]["active_queues"][0]["name"] == queue
        assert ask(f"{api}/worker/pool/grow/shown@here?n=1", {})["message"].startswith("Growing")
        sent = ask(f"{api}/task/async-apply/idle", {"args": [], "queue": queue})
        eventually(lambda: sent["task-id"] in succeeded(api), 60)


def succeeded(api: str) -> set[str]:
    """Return the ids of tasks that Flower has seen succeed."""
    tasks = ask(f"{api}/tasks?state=SUCCESS") or {}
    return set(tasks)
