"""pika's BlockingConnection: declare, confirm, consume, acknowledge, return, and an error."""

from __future__ import annotations

import sys

import pika
import pytest

with pika.BlockingConnection(pika.URLParameters(sys.argv[1])) as connection:
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as unroutable:
        channel.basic_publish("amq.direct", "nowhere", b"lost", mandatory=True)
    assert unroutable.value.messages[0].body == b"lost"
    channel.basic_qos(prefetch_count=10)
    seen = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=20):
        assert method is not None, "nothing comes"
        seen.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 100:
            break
    assert seen == [b"%d" % number for number in range(100)]
    assert channel.cancel() == 0
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("not-there", passive=True)
    assert closed.value.reply_code == 404
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0
print("fine")
