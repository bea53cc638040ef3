"""The content of a message, by which it is known again: nothing else of it stays the same in all kinds of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairsched.consumer.requeueing.budget import COUNTS

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message


def content_of(message: Message) -> int:
    """Return a number for the content, without what the broker counts in the headers.

    Equal messages have equal numbers. O(length of the message). Safe from any thread.
    """
    try:
        properties = message.properties
        headers = {name: value for name, value in (properties.headers or {}).items() if name not in COUNTS}
        described = f"{properties.message_id} {headers}"
    except Exception:
        described = ""  # what cannot be decoded
    return hash((message.queue, message.body, described))
