"""The tables of ``fairsched prefetch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from fairsched.config.durations import format_duration

if TYPE_CHECKING:
    from fairsched.prefetch import Analysis

_HEADINGS = ("utilisation", "msg/s", "ahead", "buffer wait", "latency", "in buffer")


def rows_table(rows: Sequence[Analysis], title: str, recommended: int, chosen: int) -> Table:
    """Lay out one row for each prefetch count.

    Parameters
    ----------
    rows : sequence of Analysis
        In rising order of prefetch.
    title : str
        Stands above the table.
    recommended, chosen : int
        Marked.

    Returns
    -------
    rich.table.Table
        With utilisation, throughput, messages ahead of a new one, its wait and its latency.
    """
    table = _table(title, "prefetch")
    for row in rows:
        mark = " *" if row.prefetch == recommended else " <" if row.prefetch == chosen else "  "
        table.add_row(f"{row.prefetch}{mark}", *_figures(row), style="bold" if row.prefetch == chosen else None)
    table.caption = "* recommended" + ("" if chosen == recommended else ", < chosen")
    table.caption_justify = "left"
    return table


def changes_table(cases: Mapping[str, Analysis], title: str) -> Table:
    """Lay out one row for each case: as given, and with a slower network or handler; see `rows_table`."""
    table = _table(title, "when")
    for name, figures in cases.items():
        table.add_row(name, *_figures(figures))
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED)
    table.add_column(first, justify="right" if first == "prefetch" else "left", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    return table


def _figures(row: Analysis) -> list[str | Text]:
    return [
        Text(f"{row.utilisation:.2%}", style="green" if row.utilisation == 1 else "yellow"),
        f"{row.throughput:,.4g}",
        str(row.waiting_ahead),
        format_duration(row.exact_wait),
        format_duration(row.latency),
        f"{row.buffer_share:.1%}",
    ]
