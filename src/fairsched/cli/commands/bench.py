"""``fairsched bench``: how long quiet tenants wait while another floods a worker."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.flood import CONTESTANTS, PREFETCH, Outcome, Plan, run
from fairsched.cli.parameters import Duration, check_picture
from fairsched.config.durations import format_duration
from fairsched.config.settings import Settings

_DEFAULT = Plan()


@click.command(epilog=exits.EPILOG)
@click.option("--url", metavar="URL", help="Use temporary queues on this broker. [default: an embedded broker]")
@click.option(
    "--flood", type=click.IntRange(min=1), default=_DEFAULT.flood, show_default=True,
    help="Messages of the tenant that floods.",
)  # fmt: skip
@click.option(
    "--tenants", type=click.IntRange(1, 1000), default=_DEFAULT.tenants, show_default=True, help="Quiet tenants."
)
@click.option(
    "--each", type=click.IntRange(min=1), default=_DEFAULT.each, show_default=True,
    help="Messages of each quiet tenant.",
)  # fmt: skip
@click.option(
    "--service-time", type=Duration(), default=format_duration(_DEFAULT.service_time), show_default=True,
    help="Handler time per message.",
)  # fmt: skip
@click.option("--seed", type=int, default=_DEFAULT.seed, show_default=True, help="Random seed of the arrivals.")
@click.option(
    "--consumer", "names", type=click.Choice([one.name for one in CONTESTANTS]), multiple=True,
    help="Measure this consumer alone; may be repeated.  [default: all]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of the table.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE.png",
    help="Plot how long each message of a quiet tenant waited.",
)  # fmt: skip
def bench(
    url: str | None, flood: int, tenants: int, each: int, service_time: float, seed: int, names: tuple[str, ...],
    as_json: bool, plot: Path | None,
) -> None:  # fmt: skip
    """Measure how long quiet tenants wait while another floods a worker.

    One tenant publishes its flood before the worker starts; the quiet tenants publish now and then while the worker
    handles the flood. Five consumers handle the same messages, one consumer after the other: pika with one queue for
    all tenants (FIFO), pika with a queue per tenant, basic.get from each of these queues in turn (round robin),
    fairsched with these queues, and fairsched with one name for all tenants that is spread over lanes.
    """
    if plot:
        check_picture(plot)
        from fairsched.cli.output.bench_plot import draw_waits  # if that fails, then before the experiment
    plan = Plan(flood, tenants, each, service_time, seed)
    outcomes: list[Outcome] = []
    with _place(url) as (address, where):
        for contestant in (one for one in CONTESTANTS if not names or one.name in names):
            if not as_json:
                click.echo(f"{contestant.name}: {contestant.description} …", err=True)
            outcomes.append(run(contestant, address, plan))
    if plot:
        draw_waits(outcomes, plan, plot)
    if as_json:
        click.echo(json.dumps(_figures(outcomes, plan, where), allow_nan=False))
    else:
        from rich.console import Console

        from fairsched.cli.output.bench_table import view

        Console().print(view(outcomes, plan, where))


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, str]]:
    """Yield the URL of the broker, and where it is, in words."""
    from fairsched.amqp.urls import endpoint

    if url is not None:
        (checked,) = Settings(url=(url,)).url
        yield checked, f"on {endpoint(checked)}"
        return
    if sys.platform == "win32":
        raise click.UsageError("there is no embedded broker on Windows: name a broker by --url")
    from fairsched.broker import Broker

    with Broker() as broker:
        yield broker.url, "on an embedded broker"


def _figures(outcomes: list[Outcome], plan: Plan, where: str) -> dict[str, Any]:
    return {
        "plan": {
            "flood": plan.flood, "tenants": plan.tenants, "each": plan.each, "service_time": plan.service_time,
            "seed": plan.seed, "prefetch": PREFETCH,
        },
        "broker": where,
        "machine": {
            "python": platform.python_version(), "system": platform.system(), "processor": platform.machine(),
            "fairsched": version("fairsched"), "pika": version("pika"),
        },
        "contestants": [
            {
                "name": one.name, "p50": one.p50, "p99": one.p99, "longest": one.longest, "lag": one.lag,
                "jain": one.jain, "rate": one.rate,
            }
            for one in outcomes
        ],
    }  # fmt: skip
