"""``fairsched route``: show the queue that consistent hashing chooses for each key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import click

from fairsched.cli import exits
from fairsched.cli.parameters import bindings_option


@click.command(epilog=exits.EPILOG)
@bindings_option
@click.option("--rabbitmq", is_flag=True, help="Route as RabbitMQ's consistent-hash exchange does.")
@click.option(
    "--points", type=click.IntRange(1), default=1, show_default=True, help="Points on the hash ring per unit of weight."
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Seed of the hash ring.")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def route(bindings: tuple[tuple[str, str], ...], rabbitmq: bool, points: int, seed: int, keys: tuple[str, ...]) -> None:
    """Show the queue that consistent hashing chooses for each key.

    Prints key and queue, separated by a tab. By default keys are placed on a consistent-hash ring, so that few keys
    move when a queue is added or removed. With --rabbitmq they go where the broker's x-consistent-hash exchange sends
    them, which depends on the order of the bindings. "-" reads keys from standard input, one per line. Keys may be any
    bytes; text is UTF-8.
    """
    place = _by_rabbitmq(bindings) if rabbitmq else _by_ring(bindings, points, seed)
    for key in _each(keys):
        click.echo(key + f"\t{place(key)}".encode())


def _by_rabbitmq(bindings: tuple[tuple[str, str], ...]) -> Callable[[bytes], str | None]:
    from fairsched.routing import RabbitMQHash

    return RabbitMQHash(bindings).route


def _by_ring(bindings: tuple[tuple[str, str], ...], points: int, seed: int) -> Callable[[bytes], str | None]:
    from fairsched.errors import ConfigurationError
    from fairsched.routing._ring import HashRing
    from fairsched.routing.bindingkey import weight_of

    weights: dict[str, int] = {}
    for queue, key in bindings:
        if queue in weights:
            raise ConfigurationError(f"--binding {queue}={key}: queue {queue} is given twice")
        weights[queue] = weight_of(key)
    return HashRing(weights, points_per_weight=points, seed=seed).route


def _each(keys: tuple[str, ...]) -> Iterator[bytes]:
    if keys == ("-",):
        with click.open_file("-", "rb") as lines:
            for line in lines:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    else:
        yield from map(os.fsencode, keys)
