"""``fairsched explain``: say why a queue or a tenant of a running worker waits."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fairsched.cli import exits
from fairsched.cli.asking import printable, result_of, socket_path, worker_options


@click.command(epilog=exits.EPILOG)
@click.argument("name")
@worker_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with all fields instead of the sentence.")
def explain(name: str, control: str | None, config: Path | None, as_json: bool) -> None:
    """Say why a queue or a tenant of a running worker waits.

    NAME is a queue (with key: a tenant). The worker must have been started by "fairsched run" with --control.
    """
    found = result_of(socket_path(control, config), command="explain", name=name)
    click.echo(json.dumps(found) if as_json else printable(found["sentence"]))
