"""``fairsched demo``: consume ten weighted queues, and show the share each gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fairsched.cli import exits
from fairsched.cli.experiment import MESSAGES, PREFETCH, QUANTA, SERVICE_TIME, Meter, Plan, Watch, run_in_process
from fairsched.cli.parameters import Duration, check_picture
from fairsched.config.durations import format_duration
from fairsched.config.settings import Settings
from fairsched.fairness import Report, report
from fairsched.prefetch import LARGEST_PREFETCH

#: Above this relative error of a share, in a run that is long enough, a hint is printed.
_FLATTENED = 0.05


@click.command(epilog=exits.EPILOG)
@click.option("--url", metavar="URL", help="Use ten temporary queues on this broker. [default: an embedded broker]")
@click.option(
    "--messages", type=click.IntRange(min=1), default=MESSAGES, show_default=True, help="Messages to process."
)
@click.option(
    "--service-time",
    type=Duration(),
    default=format_duration(SERVICE_TIME),
    show_default=True,
    help="Handler time per message.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, LARGEST_PREFETCH),
    default=PREFETCH,
    show_default=True,
    help="Prefetch per queue. Try 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of the table.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Plot actual and ideal share of each queue.",
)
def demo(url: str | None, messages: int, service_time: float, prefetch: int, as_json: bool, plot: Path | None) -> None:
    """Consume ten weighted queues, and show the share each gets.

    Ten queues, p0 to p9, have the weights (quanta) 4, 8, ..., 40, and more messages than are processed. Each should
    be served in proportion to its weight: p9 ten times as often as p0.
    """
    draw = _plotter(plot) if plot else None
    plan = Plan(messages, service_time, prefetch)
    with _place(url) as (where, experiment):
        title = f"Ten queues, {format_duration(service_time)} per message, prefetch {prefetch}, {where}"
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
def _place(url: str | None) -> Iterator[tuple[str, Callable[[Plan, Watch], Meter]]]:
    """Yield where the experiment is made, in words, and the experiment."""
    from fairsched.amqp.urls import endpoint
    from fairsched.cli.brokerexperiment import on_broker

    if url is not None:
        (checked,) = Settings(url=(url,)).url
        yield f"on {endpoint(checked)}", on_broker(checked)
        return
    if sys.platform == "win32":  # where the embedded broker is not built
        yield "in this process", run_in_process
        return
    from fairsched.broker import Broker

    with Broker() as broker:
        yield "on an embedded broker", on_broker(broker.url)


@contextmanager
def _display(title: str, silent: bool) -> Iterator[Watch]:
    """Yield a function that shows the figures so far: in a live table if there is a terminal, else not at all."""
    from rich.console import Console
    from rich.live import Live

    from fairsched.cli.output.shares_table import view

    console = Console()
    if silent or not console.is_terminal:
        yield lambda _served, _seconds: None
        return
    # Refreshed in the handling thread, and erased at the end: the final table takes its place.
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
            f"The shares deviate: {worst['name']} is {worst['error']:+.0%} off its ideal. A queue with no buffered "
            "message when its turn comes loses the turn; a larger --prefetch avoids that.",
            err=True,
        )


def _plotter(path: Path) -> Callable[[Report], None]:
    """Check the path and import matplotlib before the experiment, which would be lost if they failed after it."""
    check_picture(path)
    from fairsched.cli.output.shares_plot import draw_shares

    return lambda found: draw_shares(found, path)
