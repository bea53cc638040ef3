"""A dramatiq worker and its client: messages, retries, a delay, and a dead letter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import dramatiq
from dramatiq_app import dead, flaky, work

done = Path(os.environ["DONE"])
done.touch()
worker = subprocess.Popen(
    [sys.executable, "-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "2"],
    cwd=Path(__file__).parent, stderr=subprocess.DEVNULL,
)  # fmt: skip
try:
    for number in range(50):
        work.send(number)
    flaky.send(1)
    work.send_with_options(args=(99,), delay=500)
    dead.send()
    wanted = {f"work {number}" for number in [*range(50), 99]} | {"flaky 1"}
    deadline = time.time() + 60
    broker = dramatiq.get_broker()
    while not wanted <= set(done.read_text().split("\n")) or broker.get_queue_message_counts("dramatiq-work")[2] != 1:
        assert time.time() < deadline, wanted - set(done.read_text().split("\n"))
        time.sleep(0.05)
finally:
    worker.terminate()
    worker.wait(60)
for queue in ("dramatiq-work", "dramatiq-work.DQ", "dramatiq-work.XQ"):
    broker.channel.queue_delete(queue)
print("fine")
