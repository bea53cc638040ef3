"""The handler of the soak, for `fairsched run`: messages take a while, fail once if a header says so, and are noted.

SOAKED_QUEUES is a JSON object of queues and weights, and SOAKED_SEEN the file to which bodies are appended.
"""

from __future__ import annotations

import json
import os
import threading

from fairsched import App, Message

#: Seconds that a message takes.
WORK = 0.0004

app = App()
pause = threading.Event()
seen = os.open(os.environ["SOAKED_SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def handle(message: Message) -> None:
    pause.wait(WORK)
    if message.headers.get("fails") and "x-attempts" not in message.headers:
        raise RuntimeError("as it was told to")
    os.write(seen, message.body + b"\n")


for queue, weight in json.loads(os.environ["SOAKED_QUEUES"]).items():
    app.consumer(queue, weight=weight)(handle)
