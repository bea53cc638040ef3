"""Many tenants in one queue, each served in proportion to its weight, whatever the others publish.

Only prefetched messages can be reordered, so the prefetch is large.
"""

from __future__ import annotations

import os

import fairsched
from fairsched.consumer.signals import graceful

consumer = fairsched.Consumer(
    os.environ["FAIRSCHED_URL"],
    ["jobs"],
    key="header:tenant",
    tenants={"paying": 5},
    prefetch=1000,
    cost="time",
)


def handle(message: fairsched.Message) -> None:
    """Handle one message of the tenant whose turn it is."""
    print(f"{message.headers.get('tenant')}: {message.body.decode()}", flush=True)


with graceful(consumer.stop):
    consumer.run(handle)
