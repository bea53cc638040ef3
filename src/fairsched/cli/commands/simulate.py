"""``fairsched simulate``: simulate brokers, queues and consumers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.parameters import check_picture
from fairsched.simulator import Result, Scenario, load_scenario, scenario_names
from fairsched.simulator import simulate as run_scenario


@click.command(epilog=exits.EPILOG)
@click.argument("scenario", required=False)
@click.option("--list", "listing", is_flag=True, help="List the built-in scenarios.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the scenario, such as broker.delay=100ms, consumers.*.prefetch=51 or queues.p0.quantum=40. "
    "May be repeated.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Random seed. [default: the scenario's]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables; times in seconds.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Plot shares, busy workers and waiting times.",
)
def simulate(
    scenario: str | None, listing: bool, settings: Sequence[str], seed: int | None, as_json: bool, plot: Path | None
) -> None:
    """Simulate SCENARIO: a TOML file, or the name of a built-in scenario (--list).

    A scenario has queues with arrivals, consumers with prefetch, workers and handler times, and network delays between
    them and the broker. Scheduling and CoDel are those of real consumers.
    """
    if listing:
        _list(as_json)
        return
    if scenario is None:
        raise click.UsageError(f"SCENARIO must be a TOML file or one of {', '.join(scenario_names())}")
    draw = _plotter(plot) if plot else None
    changed = dict(_setting(setting) for setting in settings)
    if seed is not None:
        changed["seed"] = seed
    loaded = load_scenario(scenario)
    result = run_scenario(loaded.replaced(changed) if changed else loaded)
    if draw:
        draw(result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        _print(result)


def _setting(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE; the value is read as TOML if it is valid, else taken as text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"must be KEY=VALUE, such as seed=7, got {text!r}", param_hint="'--set'")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _scenarios() -> list[Scenario]:
    return [load_scenario(name) for name in scenario_names()]


def _list(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"name": one.name, "about": " ".join(one.about.split())} for one in _scenarios()]))
        return
    from rich.console import Console

    from fairsched.cli.output.simulation_table import scenarios_table

    Console().print(scenarios_table(_scenarios()))


def _print(result: Result) -> None:
    from rich.console import Console

    from fairsched.cli.output.simulation_table import consumers_table, shares_table, summary, waits_table

    console = Console()
    if result.scenario.about:
        console.print(" ".join(result.scenario.about.split()), highlight=False)
    if len(result.queues) > 1:
        console.print(shares_table(result))
    console.print(waits_table(result))
    console.print(consumers_table(result))
    console.print(summary(result), highlight=False)


def _plotter(path: Path) -> Callable[[Result], None]:
    check_picture(path)
    from fairsched.cli.output.simulation_plot import draw_simulation

    return lambda result: draw_simulation(result, path)
