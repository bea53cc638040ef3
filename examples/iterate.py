"""Messages in fair order from a for loop; each is acked at the end of its with block."""

from __future__ import annotations

import os

import fairsched

with fairsched.Consumer(os.environ["FAIRSCHED_URL"], {"gold": 40, "free": 4}) as consumer:
    for message in consumer:
        with message:
            print(f"{message.queue}: {message.body.decode()}", flush=True)
        if message.body == b"last":
            consumer.stop()
