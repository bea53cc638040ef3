"""The table of ``fairsched top``: what a worker serves, and what waits."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairsched.cli.asking import printable

#: Characters of a name that are shown, at most.
_LONGEST_NAME = 40


def top_view(view: dict[str, Any]) -> Group:
    """Lay out a look at a worker.

    Parameters
    ----------
    view : dict
        Its kind, state and rows, as ``fairsched top --json`` prints them.

    Returns
    -------
    rich.console.Group
        A line about the worker, and a table with a row for each queue or tenant.
    """
    # Without lines, so that it fits in 80 columns; where it does not, names are shortened.
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(view["kind"], overflow="ellipsis")
    for heading in ("weight", "share", "msg/s", "served", "buffered", "oldest", "unsettled"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for row in view["rows"]:
        table.add_row(
            Text(_short(printable(row["name"]))),  # not markup, whatever brackets there are
            str(row["weight"]),
            "–" if row["share"] is None else f"{row['share']:.1%}",
            "–" if row["rate"] is None else f"{row['rate']:,.0f}",
            f"{row['served']:,}",
            f"{row['buffered']:,}",
            "–" if row["oldest"] is None else f"{row['oldest']:.1f} s",
            _unsettled(view["kind"], row),
            Text(row["state"], style=_STYLES.get(row["state"], "yellow")),
        )
    return Group(Text(printable(_headline(view))), table)


_STYLES = {"idle": "dim", "waits": "green", "awaited": "green", "on hold": "green", "no connection": "red"}


def _headline(view: dict[str, Any]) -> str:
    state = view["state"]
    parts = [
        f"problem: {state['problem']}" if state["problem"] is not None else "",
        "stopping" if state["stopping"] else "connected" if state["connected"] else "no connection",
        f"{sum(state['consuming'].values())} of {len(state['consuming'])} queues consumed",
        f"paused: {', '.join(state['paused'])}" if state["paused"] else "",
        f"{state['buffered']:,} buffered",
        f"{state['in_hand']:,} in hand",
        f"{len(view['rows'])} of {view['known']:,} {view['kind']}s" if len(view["rows"]) < view["known"] else "",
    ]
    return "   ".join(part for part in parts if part)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _unsettled(kind: str, row: dict[str, Any]) -> str:
    """Show how full a window is; tenants share those of all queues."""
    return "–" if kind != "queue" or row["unsettled"] is None else f"{row['unsettled']:,}/{row['window']:,}"
