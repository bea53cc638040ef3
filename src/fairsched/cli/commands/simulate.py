"""``fairsched simulate``: brokers, queues and consumers tried out before there are any."""

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
@click.option("--list", "listing", is_flag=True, help="List the scenarios that come with fairsched.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change the scenario: seed=7, broker.delay=100ms, consumers.*.prefetch=51, queues.p0.quantum=40. Repeat it.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Seed of all chance, instead of the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else; times in seconds.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Draw shares, busy workers and waits.",
)
def simulate(
    scenario: str | None, listing: bool, settings: Sequence[str], seed: int | None, as_json: bool, plot: Path | None
) -> None:
    """Simulate SCENARIO: a TOML file, or one that comes with fairsched.

    Links with a delay, queues with arrivals, consumers with prefetch, workers and a handler that takes its time; the
    schedule and CoDel are the engine's own.
    """
    if listing:
        _list(as_json)
        return
    if scenario is None:
        raise click.UsageError(f"name a scenario file, or one of {', '.join(scenario_names())}")
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
    """Split KEY=VALUE; a value is one of TOML's, or else the text itself."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"a key and a value are needed, as in seed=7, got {text!r}", param_hint="'--set'")
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
