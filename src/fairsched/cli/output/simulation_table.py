"""The tables of ``fairsched simulate``."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from fairsched.cli.output.shares_table import error_style
from fairsched.config.durations import format_duration
from fairsched.simulator import Distribution, Result, Scenario


def shares_table(result: Result) -> Table:
    """Lay out the share each queue got beside the ideal share by its quantum."""
    table = _table(f"Shares of {result.scenario.name}", "queue")
    for heading in ("quantum", "served", "msg/s", "share", "ideal", "error"):
        table.add_column(heading, justify="right")
    for queue in result.queues:
        table.add_row(
            queue.name,
            str(queue.quantum),
            f"{queue.served:,}",
            f"{queue.rate:,.1f}",
            f"{queue.share:.2%}",
            f"{queue.ideal:.2%}",
            Text(f"{queue.error:+.2%}", style=error_style(queue.error)),
        )
    return table


def waits_table(result: Result) -> Table:
    """Lay out how long the messages of each queue waited, and how many are still queued."""
    table = _table(f"Waits of {result.scenario.name}", "queue")
    for heading in ("served", "left", "wait", "wait p99", "latency", "age", "age p99"):
        table.add_column(heading, justify="right")
    for queue in result.queues:
        table.add_row(
            queue.name,
            f"{queue.served:,}",
            f"{queue.ready:,}",
            _mean(queue.wait),
            _p99(queue.wait),
            _mean(queue.latency),
            _mean(queue.age),
            _p99(queue.age),
        )
    return table


def consumers_table(result: Result) -> Table:
    """Lay out how busy each consumer was, and how many messages it returned.

    Parameters
    ----------
    result : Result
        Of a simulation.

    Returns
    -------
    rich.table.Table
        With columns for messages returned, received again and handled twice only where that happened.
    """
    returned = any(consumer.returned for consumer in result.consumers)
    repeated = any(consumer.redelivered for consumer in result.consumers)
    table = _table("Consumers", "consumer")
    extra = (("back",) if returned else ()) + (("again", "twice") if repeated else ())
    for heading in ("served", "busy", *extra, "wait", "wait p99"):
        table.add_column(heading, justify="right")
    for consumer in result.consumers:
        cells = [consumer.name, f"{consumer.served:,}", f"{consumer.utilisation:.2%}"]
        cells += [f"{consumer.returned:,}"] if returned else []
        cells += [f"{consumer.redelivered:,}", f"{consumer.repeated:,}"] if repeated else []
        table.add_row(*cells, _mean(consumer.wait), _p99(consumer.wait))
    return table


def scenarios_table(scenarios: Sequence[Scenario]) -> Table:
    """Lay out the names of scenarios and their descriptions."""
    table = Table(box=box.ROUNDED, show_lines=True)
    table.add_column("scenario", no_wrap=True)
    table.add_column("about")
    for scenario in scenarios:
        table.add_row(scenario.name, " ".join(scenario.about.split()))
    return table


def summary(result: Result) -> str:
    """Sum up the simulation in one line."""
    index = f"Jain's index {result.jain:.5f}   " if len(result.queues) > 1 else ""
    return (
        f"{index}{result.served:,} messages in {format_duration(result.seconds)} simulated, "
        f"{result.throughput:,.1f} per second   {result.events:,} events   seed {result.scenario.seed}"
    )


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED)
    table.add_column(first)
    return table


def _mean(distribution: Distribution) -> str:
    return format_duration(float(f"{distribution.mean:.4g}"))


def _p99(distribution: Distribution) -> str:
    return format_duration(float(f"{distribution.percentile(99):.4g}"))
