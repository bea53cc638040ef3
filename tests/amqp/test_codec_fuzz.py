"""Mutated frames by the million: the codec may read anything from them, as long as it stays inside them."""

from __future__ import annotations

import os

import pytest
from pamqp import commands, frame
from pamqp.header import ContentHeader
from support.amqpmethods import BROKERS, CLIENTS, EXAMPLES, filled

from fairsched import _probe_codec as probe

#: All that is asked for takes minutes; in every run of the tests it is a second's worth.
COUNT = 10_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "expensive" else 200_000

#: A value of every kind, after a name of one octet.
TABLE = (
    b"\1at\1\1bb\xff\1cB\xff\1ds\0\1\1eU\0\1\1fu\0\1\1gI\0\0\0\1\1hi\0\0\0\1\1il\0\0\0\0\0\0\0\1\1jL\0\0\0\0\0\0\0\1"
    b"\1kf\0\0\0\0\1ld\0\0\0\0\0\0\0\0\1mD\2\0\0\0\1\1nT\0\0\0\0\0\0\0\1\1oV\1pS\0\0\0\2\xff\xfe\1qx\0\0\0\1x"
    b"\1rF\0\0\0\x0a\1aA\0\0\0\3Vt\1\1sA\0\0\0\x0fF\0\0\0\4\1at\0S\0\0\0\1z"
)


def whole(kind: int, payload: bytes) -> bytes:
    return bytes((kind, 0, 1)) + len(payload).to_bytes(4, "big") + payload + b"\xce"


def seeds() -> list[bytes]:
    """Every method, some with tables that have all kinds of values, and content headers."""
    found = [frame.marshal(filled(kind, EXAMPLES), 1) for kind in CLIENTS + BROKERS]
    table = len(TABLE).to_bytes(4, "big") + TABLE
    assert probe.table(table) is not None
    found += [whole(1, b"\0\x32\0\x0a\0\0\2qu\x1f" + table), whole(1, b"\0\x3c\0\x14\0\0\1q\1t\x0f" + table)] * 6
    texts = dict.fromkeys(("content_type", "correlation_id", "expiration", "message_id", "user_id"), "12")
    plain = frame.marshal(ContentHeader(0, 7, commands.Basic.Properties(**texts, priority=3, delivery_mode=2)), 1)
    return found + [plain, whole(2, probe.rewrite(plain[7:-1], 0, table))] * 8


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_frames_are_read_within_their_bounds(seed: int) -> None:
    done = probe.fuzz(seeds(), seed, COUNT // 2)
    # It reached all that it is for: a fuzzer whose frames are all refused at the door finds nothing.
    assert min(done[name] for name in ("methods", "refused", "headers", "tables")) > COUNT // 100
