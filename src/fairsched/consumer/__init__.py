"""Consuming RabbitMQ in weighted fair order: pika in a thread of its own, recovery, settlement, workers.

What happens to a message, and where:

1. `io_thread` runs pika (`fairsched.amqp.connection_thread`), with a `channel` for each queue; `channels` opens them,
   on as many `connections` as that takes.
2. `fairsched.delivery._delivery` makes a `Message` of each delivery, with its `keys` and its `cost`, and puts it into
   one of the `worker_queues`.
3. `client` takes messages out in fair order for the workers of `handling/`, an iterator (`consumer`) or coroutines
   (`fairsched.aio`); several at once for `batching/`. What waited too long goes back: `requeueing/`.
4. `handling/` calls handlers and says what becomes of a message when they raised, perhaps a retry, in queues that
   `declarations` declares; `AckPolicy` and `flush_timer` say when that is sent to the broker.

`prefetch/` says how many messages each queue may have here; `settings` has what the user asked for.
"""

from __future__ import annotations

from fairsched.consumer.adapter import from_pika
from fairsched.consumer.app import App
from fairsched.consumer.batching.arrow import ArrowBatch
from fairsched.consumer.batching.batches import MessageBatch
from fairsched.consumer.consumer import Consumer
from fairsched.consumer.explanation import Explanation
from fairsched.consumer.state import ConsumerState
from fairsched.delivery._delivery import Message

__all__ = ["App", "ArrowBatch", "Consumer", "ConsumerState", "Explanation", "Message", "MessageBatch", "from_pika"]
