"""``fairsched spread``: move the messages of an ingress queue to lanes until SIGTERM or SIGINT."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli import exits
from fairsched.cli.commands.check import DEFAULT_URL
from fairsched.cli.parameters import ArgumentParameter, config_option, some_settings_options
from fairsched.cli.serving import serve_pages, set_up_logging
from fairsched.config.consumer_options import LOG_LEVEL
from fairsched.config.lanes import Lanes
from fairsched.config.settings import Settings
from fairsched.consumer.signals import graceful
from fairsched.errors import PublishFailed
from fairsched.lanes.relay import Relay
from fairsched.scheduling.greenlets import in_main_thread

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


@click.command(epilog=exits.EPILOG)
@click.argument("queue")
@click.option("--key", required=True, metavar="KEY", help="Whose a message is: header:NAME or property:NAME.")
@click.option("--buckets", default=16, show_default=True, help="Number of buckets, the same in all programs.")
@click.option(
    "--ordered",
    is_flag=True,
    help="Keep the order of each tenant over all relays and workers: one relay moves messages, and others stand by.",
)
@click.option(
    "--argument",
    "arguments",
    type=ArgumentParameter(),
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the lanes, such as x-queue-type=quorum, the same in all programs. May be repeated.",
)
@click.option(
    "--window", default=2000, show_default=True, help="Maximum number of messages that are taken and not yet moved."
)
@some_settings_options("url", "connect_timeout", "shutdown_timeout", "log_level", "health_port", "metrics_port")
@config_option
def spread(
    queue: str,
    key: str,
    buckets: int,
    ordered: bool,
    arguments: tuple[tuple[str, Any], ...],
    window: int,
    config: Path | None,
    **given: Any,
) -> None:
    """Move the messages of QUEUE to its lanes, until SIGTERM or SIGINT.

    For producers that cannot publish to lanes themselves: they publish to QUEUE as before. A message is acknowledged
    once the broker has confirmed its copy, so none is lost, and a fault may repeat some. Without --ordered several
    relays divide the messages of the queue.

    The first signal stops taking messages, moves and acknowledges those already taken, and exits. The second returns
    messages that are not yet published to QUEUE. The third exits at once.
    """
    settings = Settings.load(given, file=config)
    set_up_logging(settings.log_level or LOG_LEVEL.default)
    lanes = Lanes(queue, key=key, buckets=buckets, ordered=ordered, arguments=dict(arguments) or None)
    options = settings.consumer_options()
    options = {name: options[name] for name in ("connect_timeout", "shutdown_timeout") if name in options}
    relay = Relay(settings.url or DEFAULT_URL, lanes, window=window, **options)
    with ExitStack() as serving:
        serve_pages(settings, serving, lambda: relay.state, lambda: _metrics_of(relay))
        try:
            with graceful(relay.stop) if in_main_thread() else nullcontext():
                relay.run()
        except PublishFailed as error:
            raise exits.Failure(str(error), exits.CONNECTION) from error


def _metrics_of(relay: Relay) -> Collector:
    from fairsched.lanes.relay_metrics import RelayCollector

    return RelayCollector(relay)
