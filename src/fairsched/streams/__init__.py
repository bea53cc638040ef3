"""RabbitMQ's streams over their own protocol: chunks of messages from the broker's page cache, not one by one.

Read in this order: `commands` (what is in frames), `link` (the socket), `connection`, and `_records`, which makes
columns of chunks. Importing it needs neither pika nor pyarrow.
"""

from __future__ import annotations

from fairsched.streams._records import StreamRecords, unpack_gzip
from fairsched.streams.connection import Chunk, Place, StreamConnection, data_message, stream_url

__all__ = ["Chunk", "Place", "StreamConnection", "StreamRecords", "data_message", "stream_url", "unpack_gzip"]
