"""``fairsched demo``: the article's experiment, where everybody can see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fairsched.cli import exits
from fairsched.cli.experiment import MESSAGES, PREFETCH, QUANTA, SERVICE_TIME, Meter, Plan, Watch, run_in_process
from fairsched.cli.parameters import Duration, check_picture
from fairsched.config import Settings
from fairsched.durations import format_duration
from fairsched.fairness import Report, report

#: Above this error, in a run long enough to judge by, the reader is told what happened.
_FLATTENED = 0.05


@click.command(epilog=exits.EPILOG)
@click.option("--url", metavar="URL", help="Consume from this broker (ten temporary queues) instead of in process.")
@click.option("--messages", type=click.IntRange(min=1), default=MESSAGES, show_default=True, help="Stop after so many.")
@click.option(
    "--service-time",
    type=Duration(),
    default=format_duration(SERVICE_TIME),
    show_default=True,
    help="How long each message keeps the handler busy.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 65_535),
    default=PREFETCH,
    show_default=True,
    help="Messages of each queue in this process at a time. Try 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Draw share and ideal of each queue.",
)
def demo(url: str | None, messages: int, service_time: float, prefetch: int, as_json: bool, plot: Path | None) -> None:
    """Show ten weighted queues getting their shares.

    Ten queues with the quanta 4, 8, ..., 40 hold more messages than can be handled. Each should be served in
    proportion to its quantum: p9 ten times as often as p0.
    """
    draw = _plotter(plot) if plot else None
    plan = Plan(messages, service_time, prefetch)
    where = "in process"
    experiment: Callable[[Plan, Watch], Meter] = run_in_process
    if url is not None:
        from fairsched.amqp.urls import endpoint
        from fairsched.cli.brokerexperiment import on_broker

        (checked,) = Settings(url=(url,)).url
        where, experiment = f"on {endpoint(checked)}", on_broker(checked)
    title = f"Ten queues, {format_duration(service_time)} a message, prefetch {prefetch}, {where}"
    with _display(title, as_json) as watch:
        meter = experiment(plan, watch)
    found = report(meter.served, QUANTA, meter.seconds)
    if draw:
        draw(found)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        _print(found, title, plan)


@contextmanager
def _display(title: str, silent: bool) -> Iterator[Watch]:
    """Yield what shows the figures while they grow: a live table where there is a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from fairsched.cli.output.shares_table import view

    console = Console()
    if silent or not console.is_terminal:
        yield lambda _served, _seconds: None
        return
    # Refreshed by us, in the handling thread, and erased in the end: the final table takes its place.
    empty = report({}, QUANTA, 0.0)
    with Live(view(empty, title), console=console, auto_refresh=False, transient=True) as live:
        yield lambda served, seconds: live.update(view(report(served, QUANTA, seconds), title), refresh=True)


def _print(found: Report, title: str, plan: Plan) -> None:
    from rich.console import Console

    from fairsched.cli.output.shares_table import view

    Console().print(view(found, title))
    worst = max(found["queues"], key=lambda row: abs(row["error"]))
    if abs(worst["error"]) > _FLATTENED and plan.messages >= MESSAGES:
        click.echo(
            f"Shares flattened: {worst['name']} is {worst['error']:+.0%} from its ideal. A queue whose window of "
            f"{plan.prefetch} is empty when its turn comes loses the turn; a larger --prefetch gives it back.",
            err=True,
        )


def _plotter(path: Path) -> Callable[[Report], None]:
    """Check the path and import the library before the experiment, so that neither costs one."""
    check_picture(path)
    from fairsched.cli.output.shares_plot import draw_shares

    return lambda found: draw_shares(found, path)
