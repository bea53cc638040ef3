"""Consumers that pages of the manual show, run as they are printed."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from support.rabbitmq import Node, eventually, numbered

import fairsched

PAGES = Path(__file__).parents[2] / "docs" / "howto"
COUNT = 20


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "number", "queues"),
    [
        ("freshness", 0, ["orders"]),
        ("freshness", 1, ["quotes"]),
        ("ordering", 0, ["payments", "mails"]),
        ("prefetch", 1, ["gold", "free"]),
        ("tenants", 0, ["jobs"]),
    ],
)
def test_a_consumer(broker: Node, monkeypatch: pytest.MonkeyPatch, page: str, number: int, queues: list[str]) -> None:
    made: list[fairsched.Consumer] = []
    handled: list[bytes] = []

    class Recorded(fairsched.Consumer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    def handle(message: Any) -> None:
        handled.append(message.body)

    def run() -> None:
        exec(blocks(page)[number], names)
        if not blocks(page)[number].rstrip().endswith(".run(handle)"):
            made[0].run(handle)

    broker.delete(*queues)
    broker.declare(*queues)
    for queue in queues:
        broker.publish(queue, numbered(COUNT), headers={"tenant": "acme", "account": "1"})
    monkeypatch.setattr(fairsched, "Consumer", Recorded)
    names = {"Consumer": Recorded, "CoDel": fairsched.CoDel, "url": broker.url, "handle": handle}
    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: broker.left(*queues) == 0)
    finally:
        for consumer in made:
            consumer.stop()
        thread.join(30)
    # What waited too long for its turn may have been given up.
    assert set(handled) <= set(numbered(COUNT))
    assert handled


def test_a_queue_with_one_active_consumer(broker: Node) -> None:
    broker.delete("payments")
    with broker.connect() as channel:
        exec(blocks("ordering")[1], {"channel": channel})
    broker.delete("payments")
