"""pika's adapters with callbacks: Select, Asyncio, Gevent and Tornado; which one is the second argument."""

from __future__ import annotations

import sys
from typing import Any

import pika

if sys.argv[2] == "select":
    from pika.adapters.select_connection import SelectConnection as Connection
elif sys.argv[2] == "asyncio":
    from pika.adapters.asyncio_connection import AsyncioConnection as Connection
else:
    from pika.adapters.gevent_connection import GeventConnection as Connection

COUNT = 200


class Client:
    """Publishes with confirms, and consumes what it published."""

    def __init__(self, url: str) -> None:
        self.bodies: list[bytes] = []
        self.confirmed = 0
        self.code = 0
        self.connection = Connection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=lambda connection, error: sys.exit(f"not connected: {error!r}"),
            on_close_callback=self.closed,
        )

    def opened(self, channel: Any) -> None:
        self.channel = channel
        channel.queue_declare("", exclusive=True, callback=self.declared)

    def declared(self, frame: Any) -> None:
        self.queue = frame.method.queue
        self.channel.confirm_delivery(self.acked)
        self.channel.basic_qos(prefetch_count=20, callback=lambda _frame: self.go())

    def go(self) -> None:
        self.channel.basic_consume(self.queue, self.delivered)
        for number in range(COUNT):
            self.channel.basic_publish("", self.queue, b"%d" % number)

    def acked(self, frame: Any) -> None:
        method = frame.method
        self.confirmed = method.delivery_tag if method.multiple else self.confirmed + 1
        self.leave_when_done()

    def delivered(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        self.leave_when_done()

    def leave_when_done(self) -> None:
        if len(self.bodies) == self.confirmed == COUNT and self.connection.is_open:
            self.connection.close()

    def closed(self, _connection: Any, reason: Any) -> None:
        self.code = reason.reply_code
        self.connection.ioloop.stop()


client = Client(sys.argv[1])
loop = client.connection.ioloop
loop.start() if hasattr(loop, "start") else loop.run_forever()
assert client.bodies == [b"%d" % number for number in range(COUNT)]
assert client.code == 200
print("fine")
