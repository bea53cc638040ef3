"""Publish a hundred orders and wait until the broker has all of them; one has no queue, and is reported."""

from __future__ import annotations

import os

from fairsched import MessageReturned, Publisher

with Publisher(os.environ["FAIRSCHED_URL"]) as publisher:
    for number in range(100):
        publisher.publish(b"order %d" % number, "orders", content_type="text/plain", message_id=f"order-{number}")
    publisher.flush()
    print(f"{publisher.stats()['confirmed']} orders are confirmed")

    lost = publisher.publish(b"order 100", "no-such-queue")
    try:
        lost.result()
    except MessageReturned as error:
        print(f"returned: {error.reply_code} {error.reply_text}, routing key {error.routing_key}")
