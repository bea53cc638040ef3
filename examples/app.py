"""A worker with two queues, which it declares: ten messages of gold are handled for each message of free.

Run it with ``fairsched run app:app`` or as a script. The broker's URL is taken from FAIRSCHED_URL.
"""

from __future__ import annotations

import fairsched

app = fairsched.App(on_error="reject")


@app.consumer("gold", weight=40, durable=True)
@app.consumer("free", weight=4, durable=True)
def handle(message: fairsched.Message) -> None:
    """Returning acks the message; raising dead-letters it."""
    print(f"{message.queue}: {message.body.decode()}", flush=True)


if __name__ == "__main__":
    app.run()
