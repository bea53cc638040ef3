"""The code of docs/howto/streams.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.rabbitmq import Node

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "streams.md"


@pytest.mark.rabbitmq("streams")
def test_the_code_of_the_page(broker: Node) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code.replace("rabbitmq-stream://guest:guest@localhost:5552/%2F", broker.stream_url), found)
    assert found["rows"] == 1000
    assert found["data"].startswith(b"event 1event 2event 3")
