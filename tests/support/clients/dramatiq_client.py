"""A dramatiq worker and its client: messages, retries, a delay, and a dead letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dramatiq
from dramatiq_app import dead, flaky, work
from support.waiting import eventually

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
    broker = dramatiq.get_broker()

    def over() -> bool:
        all_done = wanted <= set(done.read_text().split("\n"))
        return all_done and broker.get_queue_message_counts("dramatiq-work")[2] == 1

    eventually(over, 60, "everything is done, and one is dead")
finally:
    worker.terminate()
    worker.wait(60)
for queue in ("dramatiq-work", "dramatiq-work.DQ", "dramatiq-work.XQ"):
    broker.channel.queue_delete(queue)
print("fine")
