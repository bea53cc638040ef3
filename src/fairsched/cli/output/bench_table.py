"""The table of ``fairsched bench``."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from fairsched.cli.flood import CONTESTANTS, Outcome, Plan
from fairsched.config.durations import format_duration


def view(outcomes: Sequence[Outcome], plan: Plan, where: str) -> Group:
    """Lay out the figures of all contestants, and what they are."""
    title = (
        f"{plan.flood:,} messages of one tenant, {plan.each} of each of {plan.tenants} quiet tenants, "
        f"{format_duration(plan.service_time)} per message, {where}"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("consumer")
    for heading in ("wait p50", "wait p99", "longest", "lag", "Jain", "msg/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in outcomes:
        table.add_row(
            one.name, *(format_wait(wait) for wait in (one.p50, one.p99, one.longest)), f"{one.lag:,}",
            f"{one.jain:.3f}", f"{one.rate:,.0f}",
        )  # fmt: skip
    shown = {one.name for one in outcomes}
    notes = [f"{one.name}: {one.description}" for one in CONTESTANTS if one.name in shown]
    return Group(table, *notes, "All but msg/s: of the quiet tenants; lag: messages handled while one of theirs waits.")


def format_wait(seconds: float) -> str:
    """Return a wait with three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
