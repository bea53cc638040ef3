"""Many tenants in one queue: however much one of them sends, the others get their share of what waits here.

Only what the window lets in can be put into order, so the window is large.
"""

from __future__ import annotations

import os

import fairsched
from fairsched.consumer.signals import graceful

consumer = fairsched.Consumer(
    os.environ["FAIRSCHED_URL"],
    ["jobs"],
    key="header:tenant",
    weights={"paying": 5},
    prefetch=1000,
    cost="time",
)


def handle(message: fairsched.Message) -> None:
    """Work for whoever's turn it is."""
    print(f"{message.headers.get('tenant')}: {message.body.decode()}", flush=True)


with graceful(consumer.stop):
    consumer.run(handle)
