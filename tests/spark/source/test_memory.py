"""Memory: a task's is bounded whatever its share. That nothing grows with time, test_soak.py shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rabbitmq import Node
from support.spark.processes import MEGABYTE
from support.spark.running import fill, options_of

COUNT = 200_000


@pytest.mark.slow
@pytest.mark.parametrize(("count", "headers"), [(COUNT, {}), (2500, {"a": "x" * 100_000})], ids=["bodies", "headers"])
def test_a_worker_holds_a_segment_however_large_its_share(
    count: int, headers: dict[str, str], launch: Any, broker: Node, queues: Callable[..., list[str]], tmp_path: Path,
    record_property: Any,
) -> None:  # fmt: skip
    [few, *names] = queues(3)
    fill(broker, [few], 10)
    for name in names:
        broker.publish(name, [b"x" * 200] * (count // 2), headers=headers)
    small = options_of(broker, {few: 1}, tmp_path / "few", numPartitions=1)
    large = options_of(
        broker,
        dict.fromkeys(names, 1),
        tmp_path / "spool",
        maxMessagesPerTrigger=COUNT,
        maxBytesPerTrigger=0,
        numPartitions=1,
    )
    driver = launch("measured", json.dumps(small), json.dumps(large), str(tmp_path))
    said, _ = driver.communicate(timeout=280)
    assert driver.returncode == 0, said
    found = json.loads(said)
    record_property("memory", found)
    print(found)
    assert [one for one in found["batches"] if one] == [count]
    assert found["above"]
    assert max(found["above"].values()) <= 100 * MEGABYTE
