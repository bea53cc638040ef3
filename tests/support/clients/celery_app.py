"""Tasks for a Celery worker; the URL comes from the environment."""

from __future__ import annotations

import os

import celery

from fairsched.integrations.celery import fair_shares

app = celery.Celery("celery_app", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    result_expires=60,
    worker_hijack_root_logger=False,
)
if "FAIR_SHARES" in os.environ:
    fair_shares(app, {"celery": 2})


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task(bind=True, max_retries=3, default_retry_delay=0.1)
def flaky(self: celery.Task) -> int:
    if self.request.retries < 2:
        raise self.retry(exc=ValueError("again"))
    return self.request.retries


@app.task
def failing() -> None:
    raise ValueError("no")
