"""kombu with py-amqp: entities, a producer with confirms, a consumer, a simple queue, heartbeats."""

from __future__ import annotations

import sys
from typing import Any

import kombu

exchange = kombu.Exchange("kombu-direct", "direct", durable=False, auto_delete=True)
queue = kombu.Queue("kombu-queue", exchange, routing_key="k", durable=False, auto_delete=True)
seen: list[Any] = []


def delivered(body: Any, message: Any) -> None:
    seen.append(body)
    message.ack()


with kombu.Connection(sys.argv[1], heartbeat=10, transport_options={"confirm_publish": True}) as connection:
    with connection.Consumer(queue, callbacks=[delivered], prefetch_count=5):
        producer = connection.Producer(serializer="json")
        for number in range(100):
            producer.publish({"number": number}, exchange=exchange, routing_key="k", declare=[queue], priority=3)
        while len(seen) < 100:
            connection.drain_events(timeout=20)
    connection.heartbeat_check()
    assert seen == [{"number": number} for number in range(100)]
    with connection.SimpleQueue("kombu-simple", queue_opts={"durable": False, "auto_delete": True}) as simple:
        simple.put("text")
        message = simple.get(timeout=20)
        assert message.payload == "text"
        message.ack()
        assert simple.qsize() == 0
    connection.default_channel.queue_delete("kombu-simple")
print("fine")
