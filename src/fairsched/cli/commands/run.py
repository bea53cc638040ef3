"""``fairsched run``: an application's handlers, until told to stop."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.loading import load_app
from fairsched.cli.parameters import config_option, settings_options
from fairsched.config import Settings
from fairsched.config.options import LOG_LEVEL
from fairsched.consumer import App
from fairsched.errors import FairschedError

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command(epilog=exits.EPILOG)
@click.argument("reference", metavar="MODULE:APP")
@settings_options
@config_option
def run(reference: str, config: Path | None, **given: Any) -> None:
    """Consume with the handlers of an app until SIGTERM or SIGINT.

    MODULE:APP names a fairsched.App, such as "workers.mail:app"; the current directory is importable. The first
    signal stops the intake, finishes and acknowledges what is here, and ends; the second returns to the broker what
    was not begun and lets handlers finish; the third ends at once.

    Settings come from the file, the environment and these options, each overriding the former, and all of them
    override what the app says itself. Without weights, --queues selects among the queues that the app declares.
    """
    settings = Settings.load(given, file=config)
    _set_up_logging(settings.log_level or LOG_LEVEL.default)
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
