"""``fairsched drop``: drop messages of a queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.sweeps import sweep, sweep_options


@click.command(epilog=exits.EPILOG)
@click.argument("queue")
@sweep_options
def drop(queue: str, where: tuple[str, ...], dry_run: bool, config: Path | None, **given: Any) -> None:
    """Drop the messages of QUEUE that meet the conditions; there must be one.

    They are gone for good: try it with --dry-run, or move them to another queue instead.
    """
    if not where:
        raise click.UsageError("which messages? Give --where; to empty a queue, purge it")
    sweep(queue, "dropped", where, dry_run, config, given)
