"""rabbitpy: confirms, getting and consuming."""

from __future__ import annotations

import sys

import rabbitpy

with rabbitpy.Connection(sys.argv[1]) as connection, connection.channel() as channel:
    queue = rabbitpy.Queue(channel, "rabbitpy-queue", auto_delete=True)
    queue.declare()
    channel.enable_publisher_confirms()
    for number in range(20):
        assert rabbitpy.Message(channel, b"%d" % number).publish("", queue.name)
    seen = []
    for message in queue.consume(prefetch=5):
        seen.append(message.body)
        message.ack()
        if len(seen) == 20:
            break
    assert seen == [b"%d" % number for number in range(20)]
print("fine")
