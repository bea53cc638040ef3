"""Up to fifty coroutine handlers at a time, on asyncio."""

from __future__ import annotations

import asyncio
import os

import fairsched
from fairsched import aio


async def main() -> None:
    """Consume until a message with the body ``last``."""
    async with aio.Consumer(os.environ["FAIRSCHED_URL"], {"gold": 40, "free": 4}, workers=50) as consumer:

        async def handle(message: fairsched.Message) -> None:
            await asyncio.sleep(0.001)
            print(f"{message.queue}: {message.body.decode()}", flush=True)
            if message.body == b"last":
                consumer.stop()

        await consumer.run(handle)


asyncio.run(main())
