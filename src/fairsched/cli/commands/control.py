"""``fairsched control``: change weights, and pause queues, of a running worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.asking import printable, result_of, socket_path, worker_options


@click.group(epilog=exits.EPILOG)
def control() -> None:
    """Change weights, and pause queues, of a running worker.

    The worker must have been started by "fairsched run" with --control. Changes last until the worker ends; a changed
    weight lasts until SIGHUP reloads the settings.
    """


@control.command(epilog=exits.EPILOG)
@click.argument("name")
@click.argument("weight", type=int)
@worker_options
def weight(name: str, weight: int, control: str | None, config: Path | None) -> None:
    """Change the weight of a queue (with key: of a tenant)."""
    found = result_of(socket_path(control, config), command="weight", name=name, weight=weight)
    click.echo(printable(f"{found['kind']} {name}: weight {found['weight']}"))


@control.command(epilog=exits.EPILOG)
@click.argument("queue")
@worker_options
def pause(queue: str, control: str | None, config: Path | None) -> None:
    """Stop consuming a queue; its buffered messages are still handled."""
    _print_paused(result_of(socket_path(control, config), command="pause", queue=queue))


@control.command(epilog=exits.EPILOG)
@click.argument("queue")
@worker_options
def resume(queue: str, control: str | None, config: Path | None) -> None:
    """Consume a paused queue again."""
    _print_paused(result_of(socket_path(control, config), command="resume", queue=queue))


@control.command(epilog=exits.EPILOG)
@worker_options
def state(control: str | None, config: Path | None) -> None:
    """Print the state of the worker as a JSON object."""
    click.echo(json.dumps(result_of(socket_path(control, config), command="state")))


@control.command(epilog=exits.EPILOG)
@worker_options
def stats(control: str | None, config: Path | None) -> None:
    """Print the statistics of the worker as a JSON object."""
    click.echo(json.dumps(result_of(socket_path(control, config), command="stats")))


def _print_paused(found: dict[str, Any]) -> None:
    click.echo(printable(f"paused: {', '.join(found['paused']) or 'nothing'}"))
