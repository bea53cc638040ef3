"""A broker that blocks its publishers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from support.rabbitmq import Broker
from support.waiting import eventually

from fairsched import Publisher, PublishFailed


@contextlib.contextmanager
def blocked(broker: Broker) -> Iterator[None]:
    """Have the broker block publishers: it looks at its memory only now and then."""
    with Publisher(broker.url, mandatory=False, confirm_timeout=1.0) as publisher:
        broker.raise_memory_alarm()

        def is_blocked() -> bool:
            with contextlib.suppress(PublishFailed):  # it is, or was just then
                publisher.publish(b"", "nowhere")
            return publisher._client.io_thread.blocked is not None

        eventually(is_blocked, every=0.05)
        yield
        broker.clear_memory_alarm()
        eventually(lambda: publisher._client.window.unconfirmed == 0)
