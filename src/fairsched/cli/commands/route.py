"""``fairsched route``: which queue has which key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from fairsched.cli import exits
from fairsched.cli.parameters import bindings_option


@click.command(epilog=exits.EPILOG)
@bindings_option
@click.option("--rabbitmq", is_flag=True, help="Place as RabbitMQ's consistent-hash exchange does with routing keys.")
@click.option(
    "--points", type=click.IntRange(1), default=1, show_default=True, help="Points on the ring for each unit of weight."
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Another ring.")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def route(bindings: tuple[tuple[str, str], ...], rabbitmq: bool, points: int, seed: int, keys: tuple[str, ...]) -> None:
    """Show which queue has which key.

    Prints key and queue, with a tab between them. Keys are placed on a ring, which moves only what must move when
    queues come and go, or with --rabbitmq as the broker's exchange places them, whose order of binding counts. A
    lone "-" reads keys from standard input, one a line.
    """
    place = _by_rabbitmq(bindings) if rabbitmq else _by_ring(bindings, points, seed)
    for key in _each(keys):
        click.echo(f"{key}\t{place(key)}")


def _by_rabbitmq(bindings: tuple[tuple[str, str], ...]) -> Callable[[str], str | None]:
    from fairsched.routing import RabbitMQHash

    return RabbitMQHash(bindings).route


def _by_ring(bindings: tuple[tuple[str, str], ...], points: int, seed: int) -> Callable[[str], str | None]:
    from fairsched._routing import HashRing
    from fairsched.bindingkey import weight_of
    from fairsched.errors import ConfigurationError

    weights: dict[str, int] = {}
    for queue, key in bindings:
        if queue in weights:
            raise ConfigurationError(f"--binding {queue}={key}: {queue} is on the ring already")
        weights[queue] = weight_of(key)
    return HashRing(weights, points_per_weight=points, seed=seed).route


def _each(keys: tuple[str, ...]) -> Iterator[str]:
    if keys != ("-",):
        yield from keys
        return
    with click.open_file("-") as lines:
        for line in lines:
            yield line.rstrip("\n")
