"""The table of fairsched top."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from fairsched.cli.output.top_table import top_view


def shown(kind: str = "queue", width: int = 80, rows: list[dict[str, Any]] | None = None, **changes: Any) -> str:
    state = {
        "connected": True, "stopping": False, "problem": None, "paused": [], "buffered": 1499, "in_hand": 1,
        "consuming": {"gold": True, "free": False}, **changes,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    rows = [row()] if rows is None else rows
    console.print(top_view({"kind": kind, "state": state, "known": len(rows), "rows": rows}))
    return console.file.getvalue()


def row(**changes: Any) -> dict[str, Any]:
    return {
        "name": "gold", "weight": 3, "share": 0.749, "rate": 1234.5, "served": 104_712, "buffered": 375, "oldest": 1.93,
        "unsettled": 375, "window": 500, "state": "no connection", **changes,
    }  # fmt: skip


def test_all_of_it_in_eighty_columns() -> None:
    headline, headings, line = shown().splitlines()
    assert headline.split("   ") == ["connected", "1 of 2 queues consumed", "1,499 buffered", "1 in hand"]
    assert " ".join(headings.split()) == "queue weight share msg/s served buffered oldest unsettled state"
    assert " ".join(line.split()) == "gold 3 74.9% 1,234 104,712 375 1.9 s 375/500 no connection"


def test_what_is_not_known() -> None:
    line = shown("tenant", rows=[row(share=None, rate=None, oldest=None)]).splitlines()[2]
    assert " ".join(line.split()) == "gold 3 – – 104,712 375 – – no connection"


def test_names_may_be_anything() -> None:
    names = ["[red]x[/red]", "\x1b[2J", "a\nb", "\udcff", "x" * 500, "名" * 30]
    found = shown(rows=[row(name=name) for name in names])
    assert "[red]x" in found
    assert "\\x1b[2J" in found
    assert "\x1b" not in found
    assert len(found.splitlines()) == 2 + len(names)
    assert all(len(line) <= 80 for line in found.splitlines())


def test_what_is_wrong() -> None:
    headline = shown(connected=False, stopping=True, problem="OSError:\nfull", paused=["free"]).splitlines()[0]
    assert headline.startswith("problem: OSError:\\nfull   stopping   ")
    assert "paused: free" in shown(paused=["free"])
    assert "no connection" in shown(connected=False).splitlines()[0]
