"""``fairsched prefetch``: recommend a prefetch count, and show utilisation and latency."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from fairsched.cli import exits
from fairsched.cli.parameters import Duration, check_picture
from fairsched.config.durations import format_duration
from fairsched.prefetch import LARGEST_PREFETCH, Analysis, analyse, recommend


@click.command(epilog=exits.EPILOG)
@click.option(
    "--round-trip",
    type=Duration(),
    required=True,
    help="Network round trip between worker and broker: from an ack to the delivery of the next message.",
)
@click.option("--service", type=Duration(positive=True), required=True, help="Handler time per message.")
@click.option(
    "--prefetch",
    "chosen",
    type=click.IntRange(1, LARGEST_PREFETCH),
    help="Also show this prefetch, and use it in the second table.",
)
@click.option(
    "--headroom",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="Multiply the recommendation by this factor.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables; times in seconds.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Plot utilisation and latency over prefetch.",
)
def prefetch(
    round_trip: float, service: float, chosen: int | None, headroom: float, as_json: bool, plot: Path | None
) -> None:
    """Calculate the prefetch that keeps a handler busy.

    The recommendation is the smallest that keeps one worker busy; multiply it by the number of workers. The first
    table compares it with others; the second shows what happens when the network or the handler slows down.
    """
    draw = _plotter(plot) if plot else None
    recommended = recommend(round_trip, service, headroom=headroom)
    shown = chosen or recommended
    rows = [analyse(one, round_trip / 2, service) for one in _neighbours(round_trip, service, recommended, chosen)]
    changes = _changes(shown, round_trip, service)
    if draw:
        draw(rows, shown)
    if as_json:
        click.echo(json.dumps(_object(round_trip, service, headroom, recommended, rows, changes), allow_nan=False))
    else:
        _print(recommended, shown, rows, changes)


def _neighbours(round_trip: float, service: float, recommended: int, chosen: int | None) -> list[int]:
    """Choose prefetch counts to compare: too few, just enough, one more, enough for a round trip twice as long."""
    least = recommend(round_trip, service)
    doubled = recommend(2 * round_trip, service)
    candidates = {1, least // 2, least - 1, least, least + 1, doubled, recommended, chosen or recommended}
    return sorted(one for one in candidates if one >= 1)


def _changes(shown: int, round_trip: float, service: float) -> dict[str, Analysis]:
    """Analyse what happens when the network or the handler slows down; the keys say by how much."""
    delay = round_trip / 2
    return {
        "now": analyse(shown, delay, service),
        "round trip x 2": analyse(shown, 2 * delay, service),
        "service x 5": analyse(shown, delay, 5 * service),
        "service x 10": analyse(shown, delay, 10 * service),
    }


def _object(
    round_trip: float,
    service: float,
    headroom: float,
    recommended: int,
    rows: Sequence[Analysis],
    changes: Mapping[str, Analysis],
) -> dict[str, object]:
    return {
        "round_trip": round_trip,
        "service_time": service,
        "headroom": headroom,
        "recommended": recommended,
        "rows": [row._asdict() for row in rows],
        "changes": [{"name": name, **figures._asdict()} for name, figures in changes.items()],
    }


def _print(recommended: int, shown: int, rows: Sequence[Analysis], changes: Mapping[str, Analysis]) -> None:
    from rich.console import Console

    from fairsched.cli.output.prefetch_table import changes_table, rows_table

    first = rows[0]
    trip, service = format_duration(2 * first.one_way_delay), format_duration(first.service_time)
    console = Console()
    console.print(rows_table(rows, f"Round trip {trip}, service {service}", recommended, shown))
    console.print(changes_table(changes, f"Prefetch {shown} when things change"))
    click.echo(
        f"Prefetch {first.saturating} = ({trip} + {service}) / {service}, rounded up, is the smallest that keeps the "
        "handler busy; each further message only waits in this process, where no other consumer can get it."
    )
    if recommended > LARGEST_PREFETCH:
        click.echo(f"AMQP allows at most {LARGEST_PREFETCH} per consumer: use more consumers.", err=True)


def _plotter(path: Path) -> Callable[[Sequence[Analysis], int], None]:
    check_picture(path)
    from fairsched.cli.output.prefetch_plot import draw_prefetch

    return lambda rows, shown: draw_prefetch(rows[0].one_way_delay, rows[0].service_time, shown, path)
