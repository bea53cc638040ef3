"""``fairsched broker``: run a broker until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

import click

from fairsched.amqp.bounds import LARGEST_PORT
from fairsched.cli import exits
from fairsched.consumer.signals import graceful

#: AMQP's port, where clients look that are not told otherwise.
_PORT = 5672


@click.command(epilog=exits.EPILOG)
@click.option(
    "--port",
    type=click.IntRange(0, LARGEST_PORT),
    default=_PORT,
    show_default=True,
    help="Listen on this port of 127.0.0.1; 0: a free port.",
)
@click.option(
    "--status-port",
    type=click.IntRange(0, LARGEST_PORT),
    metavar="PORT",
    help="Show queues and consumers over HTTP on this port of 127.0.0.1; 0: a free port. [default: off]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Store durable exchanges and queues, and the persistent messages in them, in this directory, so that they "
    "survive a restart; it is created if missing. [default: keep everything in memory only]",
)
def broker(port: int, status_port: int | None, data_dir: str | None) -> None:
    """Run a small AMQP 0-9-1 broker, instead of RabbitMQ, until SIGTERM or SIGINT.

    Prints its URL, and below it the address of the status page, as soon as clients can connect. User and password are
    "guest".
    """
    from fairsched.broker import Broker

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")  # that the disk fails
    done = threading.Event()
    with ExitStack() as running:
        # Before the URL is printed: the process that reads it may send the signal at once.
        running.enter_context(graceful(lambda _now: done.set()))
        try:
            served = running.enter_context(Broker(port=port, data_dir=data_dir))
        except (RuntimeError, ValueError) as error:
            raise exits.Failure(str(error), exits.USAGE) from error
        except OSError as error:
            if error.filename is not None or error.errno is None:  # of the data directory
                raise exits.Failure(str(error), exits.USAGE) from error
            raise exits.Failure(f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}", exits.USAGE) from error
        click.echo(served.url)
        if status_port is not None:
            from fairsched.cli.statuspage import StatusPage

            try:
                page = running.enter_context(StatusPage(served.status, status_port))
            except OSError as error:
                reason = f"cannot listen on 127.0.0.1:{status_port}: {error.strerror or error}"
                raise exits.Failure(reason, exits.USAGE) from error
            click.echo(page.url)
        done.wait()
