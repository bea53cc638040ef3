"""``fairsched run``: an application's handlers, until told to stop."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.loading import load_app
from fairsched.cli.parameters import config_option, queues_option, urls_option
from fairsched.config import Settings
from fairsched.config.values import LOG_LEVELS
from fairsched.consumer import App
from fairsched.errors import FairschedError

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command(epilog=exits.EPILOG)
@click.argument("reference", metavar="MODULE:APP")
@queues_option
@click.option(
    "-t",
    "--threads",
    "workers",
    metavar="N|SIZE:PRIORITY,...",
    help="Threads that run handlers, or pools of them: those of a lower priority help while all others are busy. "
    "[env: FAIRSCHED_WORKERS]",
)
@urls_option
@click.option(
    "--prefetch",
    metavar="auto|N|NAME=N,...",
    help="Unsettled messages in all, or for each queue; auto: found by measuring. [env: FAIRSCHED_PREFETCH]",
)
@click.option(
    "--target-delay",
    metavar="DURATION",
    help="With --prefetch auto: how long a message may wait here. [env: FAIRSCHED_TARGET_DELAY]",
)
@click.option(
    "--codel",
    metavar="TARGET|NAME=VALUE,...",
    help="Return messages that wait here longer than TARGET, for another consumer. [env: FAIRSCHED_CODEL]",
)
@click.option(
    "--shutdown-timeout",
    metavar="DURATION",
    help="How long a stop takes in all, at most; below what the supervisor allows. [env: FAIRSCHED_SHUTDOWN_TIMEOUT]",
)
@click.option("--log-level", metavar="|".join(LOG_LEVELS), help="What is logged. [env: FAIRSCHED_LOG_LEVEL]")
@config_option
def run(reference: str, config: Path | None, urls: tuple[str, ...], queues: tuple[str, ...], **options: Any) -> None:
    """Consume with the handlers of an app until SIGTERM or SIGINT.

    MODULE:APP names a fairsched.App, such as "workers.mail:app"; the current directory is importable. The first
    signal stops the intake, finishes and acknowledges what is here, and ends; the second returns to the broker what
    was not begun and lets handlers finish; the third ends at once.

    Settings come from the file, the environment and these options, each overriding the former, and all of them
    override what the app says itself. Without weights, --queues selects among the queues that the app declares.
    """
    settings = Settings.load({"url": urls or None, "queues": ",".join(queues) or None, **options}, file=config)
    _set_up_logging(settings.log_level or "info")
    _run(load_app(reference), settings)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format=_FORMAT)
    if level != "debug":
        # Of every lost connection pika tells ten times what our own logger says once.
        logging.getLogger("pika").setLevel(logging.CRITICAL)


def _run(app: App, settings: Settings) -> None:
    """Run an app; whatever it lets escape is its failure."""
    overrides = settings.consumer_options()
    if settings.queues:
        overrides["queues"] = settings.queues
    try:
        app.run(settings.url or None, **overrides)
    except FairschedError:
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise exits.Failure(f"the application ended with {error!r}", exits.APPLICATION) from error
