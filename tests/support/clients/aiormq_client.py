"""aiormq: confirms, deliveries, and a channel that the broker closes."""

from __future__ import annotations

import asyncio
import sys

import aiormq
import pytest


async def main(url: str) -> None:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    queue = (await channel.queue_declare("", exclusive=True)).queue
    for number in range(100):
        confirmation = await channel.basic_publish(b"%d" % number, routing_key=queue)
        assert type(confirmation).__name__ == "Ack"
    seen: list[bytes] = []
    done = asyncio.Event()

    async def delivered(message: aiormq.abc.DeliveredMessage) -> None:
        seen.append(message.body)
        await message.channel.basic_ack(message.delivery.delivery_tag)
        if len(seen) == 100:
            done.set()

    await channel.basic_qos(prefetch_count=7)
    await channel.basic_consume(queue, delivered)
    await asyncio.wait_for(done.wait(), 20)
    assert seen == [b"%d" % number for number in range(100)]
    other = await connection.channel()
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
        await other.queue_declare("not-there", passive=True)
    await connection.close()
    print("fine")


asyncio.run(main(sys.argv[1]))
