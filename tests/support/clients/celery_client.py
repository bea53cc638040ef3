"""A Celery worker and its client: results, groups, retries, a failure, an ETA, a revoked task."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import celery
import pytest
from celery_app import add, app, failing, flaky
from support.waiting import eventually

pool = ["-P", "prefork", "-c", "2"] if "FAIR_SHARES" in os.environ else ["-P", "solo"]
options = [*pool, "-l", "warning", "-n", "one@here", "--without-gossip"]
worker = subprocess.Popen(
    [sys.executable, "-m", "celery", "-A", "celery_app", "worker", *options], cwd=Path(__file__).parent
)
try:
    assert add.delay(1, 2).get(timeout=60) == 3
    assert celery.group(add.s(number, 1) for number in range(20))().get(timeout=60) == list(range(1, 21))
    assert flaky.delay().get(timeout=60) == 2
    with pytest.raises(ValueError, match="no"):
        failing.delay().get(timeout=60)
    began = time.time()
    assert add.apply_async((3, 4), countdown=1).get(timeout=60) == 7
    assert time.time() - began >= 1
    late = add.apply_async((5, 6), countdown=3600)
    app.control.revoke(late.id)
    # Without a limit, Celery waits for answers of further workers until the time-out.
    inspection = app.control.inspect(timeout=10, limit=1)
    eventually(lambda: any(late.id in ids for ids in (inspection.revoked() or {}).values()), 60, "it is revoked")
    assert app.control.ping(timeout=10, limit=1) == [{"one@here": {"ok": "pong"}}]
finally:
    worker.terminate()
    worker.wait(60)
app.control.purge()
print("fine")
