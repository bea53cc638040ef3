"""``fairsched move``: move messages of a queue to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.sweeps import sweep, sweep_options


@click.command(epilog=exits.EPILOG)
@click.argument("queue")
@click.argument("destination")
@sweep_options
def move(
    queue: str, destination: str, where: tuple[str, ...], dry_run: bool, config: Path | None, **given: Any
) -> None:
    """Move messages of QUEUE to the queue DESTINATION, which must exist.

    A message is acknowledged in QUEUE once the broker has confirmed its copy, so none is lost. After an interrupt, run
    the command again: it goes on with what is left, and what was under way may come twice.
    """
    sweep(queue, "moved", where, dry_run, config, given, destination)
