"""The memory a broker keeps: little for a message, and nothing once it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rabbitmq import EmbeddedNode
from support.waiting import eventually

import fairsched

MEBIBYTE = 1 << 20


def resident(node: EmbeddedNode) -> int:
    """Bytes of memory that the broker's process has."""
    [line] = [line for line in Path(f"/proc/{node.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) * 1024


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as started:
        yield started


def test_a_queued_message_of_100_octets_takes_300(node):
    node.declare("q")
    node.publish("q", [b"x" * 100] * 20_000)
    before = resident(node)
    node.publish("q", [b"x" * 100] * 40_000)
    # The pool grows by chunks of half a mebibyte: 13 octets a message, more or less.
    assert (resident(node) - before) / 40_000 <= 300 + 13


def test_memory_of_messages_that_are_gone_is_given_back(node):
    node.declare("q", "kept")
    before = resident(node)
    with node.connect() as channel:
        for number in range(25_000):
            # What stays is everywhere between what goes.
            channel.basic_publish("", "q" if number % 100 else "kept", b"x" * 1000)
        channel.queue_declare("q", passive=True)
        assert resident(node) - before > 25 * MEBIBYTE
        channel.queue_purge("q")
    eventually(lambda: resident(node) - before < 8 * MEBIBYTE, what="memory is given back")


def test_a_message_may_be_as_large_as_with_rabbitmq_at_most():
    assert fairsched.Broker(max_message_size=536870912) is not None
    with pytest.raises(ValueError, match="max_message_size must be 536870912 at most, got 536870913"):
        fairsched.Broker(max_message_size=536870913)
