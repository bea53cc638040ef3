"""amqpstorm: confirms, getting, consuming, transactions, and an error."""

from __future__ import annotations

import sys

import amqpstorm
import pytest

with amqpstorm.UriConnection(sys.argv[1] + "?heartbeat=5") as connection, connection.channel() as channel:
    queue = channel.queue.declare("", exclusive=True)["queue"]
    channel.confirm_deliveries()
    for number in range(100):
        assert channel.basic.publish(b"%d" % number, queue) is True
    seen: list[str] = []

    def delivered(message: amqpstorm.Message) -> None:
        seen.append(message.body)
        message.ack()
        if len(seen) == 99:
            channel.basic.cancel(tag)

    first = channel.basic.get(queue)
    assert first.body == "0"
    first.ack()
    channel.basic.qos(10)
    tag = channel.basic.consume(delivered, queue)
    channel.start_consuming()
    assert seen == [str(number) for number in range(1, 100)]
    other = connection.channel()
    other.tx.select()
    other.basic.publish("1", queue)
    other.tx.rollback()
    assert channel.queue.declare(queue, passive=True)["message_count"] == 0
    with pytest.raises(amqpstorm.AMQPChannelError) as closed:
        channel.queue.declare("not-there", passive=True)
    assert closed.value.error_code == 404
print("fine")
