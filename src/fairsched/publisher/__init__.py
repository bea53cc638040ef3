"""Publish to RabbitMQ with confirms: a window of unconfirmed messages, none of which is lost.

What happens to a message, and where:

1. `contents` encodes its properties, `fairsched.amqp._publishing.PublishWindow` the rest, in the thread that publishes.
2. `io_thread` sends what the window has, over a `transport` that reads confirms; what is unconfirmed when the
   connection is lost is sent again.
3. `client` is what the faces share: `publisher` blocks, `asynchronous` (`fairsched.aio`) awaits.
4. `calls` are requests that wait for replies, which `reply_consumer` receives on the same channel.
"""

from __future__ import annotations

from fairsched.amqp._publishing import Confirmation
from fairsched.publisher.publisher import Publisher

__all__ = ["Confirmation", "Publisher"]
