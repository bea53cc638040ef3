"""aio-pika: a robust connection, confirms, an iterator, a topic exchange, and a queue that expires its messages."""

from __future__ import annotations

import asyncio
import sys

import aio_pika
import pytest


async def main(url: str) -> None:
    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel(on_return_raises=True)
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange("aio-pika-topic", aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "a.#")
        for number in range(100):
            message = aio_pika.Message(b"%d" % number, headers={"number": number}, delivery_mode=2)
            await exchange.publish(message, "a.b")
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await exchange.publish(aio_pika.Message(b"lost"), "nowhere")
        seen = []
        async with queue.iterator(timeout=20) as messages:
            async for message in messages:
                async with message.process():
                    seen.append((message.body, message.headers["number"]))
                if len(seen) == 100:
                    break
        assert seen == [(b"%d" % number, number) for number in range(100)]
        async with await connection.channel(publisher_confirms=False) as plain, plain.transaction():
            await plain.default_exchange.publish(aio_pika.Message(b"1"), queue.name)
        incoming = await queue.get(timeout=20)
        await incoming.nack(requeue=True)
        again = await queue.get(timeout=20)
        assert again.redelivered
        await again.ack()
    print("fine")


asyncio.run(main(sys.argv[1]))
