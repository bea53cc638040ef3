"""``fairsched top``: show shares and buffered messages of a running worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.asking import result_of, socket_path, worker_options
from fairsched.cli.parameters import Duration


@click.command(epilog=exits.EPILOG)
@worker_options
@click.option("--interval", type=Duration(positive=True), default="1s", show_default=True, help="How often to refresh.")
@click.option("--once", is_flag=True, help="Print once and exit, as a table always does without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per refresh, one per line.")
def top(control: str | None, config: Path | None, interval: float, once: bool, as_json: bool) -> None:
    """Show shares and buffered messages of a running worker, until Ctrl-C.

    The table has a row for each queue (with key: for each tenant), those with most buffered messages first, 100 at
    most. The first table shows shares of the cost served since the start, later ones since the table before. The
    worker must have been started by "fairsched run" with --control.
    """
    views = _views(socket_path(control, config), interval)
    try:
        if as_json:
            for view in views:
                click.echo(json.dumps(view))
                if once:
                    return
        else:
            _show(views, once)
    except KeyboardInterrupt:
        pass


def _views(path: str, interval: float) -> Iterator[dict[str, Any]]:
    """Yield the view of each poll of the worker."""
    before: dict[str, dict[str, Any]] = {}
    looked = 0.0
    while True:
        found, now = result_of(path, command="overview"), time.monotonic()
        rows = [_row(why) for why in found["shown"]]
        since = [_progress(why, before.get(why["name"])) if before else why["work"] for why in found["shown"]]
        whole = sum(work for work in since if work is not None)
        for row, work in zip(rows, since, strict=True):
            row["share"] = work / whole if whole and work is not None else None
        for row in rows:
            old = before.get(row["name"])
            row["rate"] = None if old is None else max(0, row["served"] - old["served"]) / max(now - looked, 1e-9)
        yield {"kind": found["kind"], "state": found["state"], "known": found["known"], "rows": rows}
        before, looked = {why["name"]: why for why in found["shown"]}, now
        time.sleep(min(interval, threading.TIMEOUT_MAX))


def _progress(why: dict[str, Any], old: dict[str, Any] | None) -> int | None:
    """Return the cost served since the last poll; None without one. Estimates may be corrected downwards."""
    return None if old is None else max(0, why["work"] - old["work"])


_COPIED = ("name", "weight", "served", "buffered", "oldest", "unsettled", "window", "rank", "deficit", "quantum")


def _row(why: dict[str, Any]) -> dict[str, Any]:
    return {**{key: why[key] for key in _COPIED}, "state": _state(why)}


def _state(why: dict[str, Any]) -> str:
    """Describe the state in a word or two."""
    words = {
        "stopping": why["stopping"] or why["problem"] is not None,
        "no connection": not why["connected"],
        "paused": why["paused"],
        "not consumed": not why["consuming"],
        "returning": why["returning"],
        "waits": why["buffered"],
        "awaited": why["awaited"] == why["name"],
        "on hold": why["held"],
    }
    return next((word for word, true in words.items() if true), "idle")


def _show(views: Iterator[dict[str, Any]], once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from fairsched.cli.output.top_table import top_view

    console = Console()
    first = next(views)
    if once or not console.is_terminal:
        console.print(top_view(first))
        return
    with Live(top_view(first), console=console, auto_refresh=False) as live:
        for view in views:
            live.update(top_view(view), refresh=True)
