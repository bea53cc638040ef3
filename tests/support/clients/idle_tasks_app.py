"""Tasks that do nothing, or note that they ran, for a Celery worker; transport and URL come from the environment."""

from __future__ import annotations

import os
import time

import celery

app = celery.Celery("idle_tasks_app", broker=os.environ["BROKER_URL"])
app.conf.update(
    broker_transport=os.environ["TRANSPORT"],
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=int(os.environ["WINDOW"]),
    worker_hijack_root_logger=False,
    task_acks_late="ACKS_LATE" in os.environ,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


@app.task(name="idle")
def idle() -> None:
    """Do nothing."""


@app.task(name="note")
def note(name: str, seconds: float) -> None:
    """Take some time, and then append the name to a file."""
    time.sleep(seconds)
    with open(os.environ["DONE"], "a") as file:
        file.write(f"{name}\n")
