"""A plugin of pytest that lists the tests marked `rabbitmq`, as docs/reference/rabbitmq-only.md has them.

PYTHONPATH=tests python -m pytest -p support.onlyrabbitmq --collect-only -q tests
"""

from __future__ import annotations

import pytest

#: Before each row, so that it can be told from what else pytest prints.
ROW = "| `tests/"


def pytest_collection_finish(session: pytest.Session) -> None:
    needs: dict[str, str] = {}
    others: set[str] = set()
    for item in session.items:
        test = item.nodeid.partition("[")[0]
        if marker := item.get_closest_marker("rabbitmq"):
            needs[test] = marker.args[0]
        else:
            others.add(test)
    print()
    for test, need in sorted(needs.items()):
        print(f"| `{test}` | {need}{', in some of its cases' if test in others else ''} |")
