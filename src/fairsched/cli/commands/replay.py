"""``fairsched replay``: return dead letters to the queues they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.sweeps import sweep, sweep_options
from fairsched.sweeping.origin import queue_of_origin


@click.command(epilog=exits.EPILOG)
@click.argument("queue")
@sweep_options
def replay(queue: str, where: tuple[str, ...], dry_run: bool, config: Path | None, **given: Any) -> None:
    """Return the dead letters in QUEUE to the queues they came from.

    They go to the queue itself, not to the exchange that they were published to, and their attempts are counted anew.

    A message is acknowledged in QUEUE once the broker has confirmed its copy, so none is lost. After an interrupt, run
    the command again: it goes on with what is left, and what was under way may come twice.
    """
    sweep(queue, "returned", where, dry_run, config, given, queue_of_origin, replay=True)
