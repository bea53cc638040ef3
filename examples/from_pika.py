"""An unchanged pika callback, with fair scheduling, recovery and heartbeats from a thread of their own."""

from __future__ import annotations

import os
from typing import Any

import fairsched
from fairsched.consumer.signals import graceful


def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    """The callback once passed to ``channel.basic_consume``."""
    print(f"{method.routing_key}: {body.decode()}", flush=True)
    channel.basic_ack(delivery_tag=method.delivery_tag)


consumer = fairsched.Consumer(os.environ["FAIRSCHED_URL"], {"gold": 40, "free": 4})
with graceful(consumer.stop):
    consumer.run(fairsched.from_pika(callback))
