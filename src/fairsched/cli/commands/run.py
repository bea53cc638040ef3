"""``fairsched run``: run an app's handlers until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.loading import load_app, load_function
from fairsched.cli.parameters import config_option, settings_options
from fairsched.cli.reloading import Reload, is_wanted
from fairsched.cli.serving import metrics_of, serve_pages, set_up_logging
from fairsched.config.consumer_options import LOG_LEVEL
from fairsched.config.settings import Settings
from fairsched.config.source_table import source_of
from fairsched.config.values import OFF
from fairsched.consumer import App
from fairsched.errors import FairschedError

_log = logging.getLogger(__name__)


@click.command(epilog=exits.EPILOG)
@click.argument("reference", metavar="MODULE:APP")
@settings_options
@config_option
def run(reference: str, config: Path | None, **given: Any) -> None:
    """Consume queues with the handlers of your app, until SIGTERM or SIGINT.

    MODULE:APP names a fairsched.App, such as "workers.mail:app"; the current directory is importable. The first
    signal is a warm shutdown: take no more messages, handle and acknowledge those already received, and exit. The
    second requeues messages whose handler has not started, and waits for those that are running. The third exits at
    once. SIGHUP rereads the settings and applies the weights in them, unless the worker runs in a terminal.

    Settings come from the app, the configuration file, environment variables (FAIRSCHED_PREFETCH for --prefetch) and
    these options; later ones override earlier ones. Without weights, --queues selects some of the app's queues.
    """
    settings = Settings.load(given, file=config)
    set_up_logging(settings.log_level or LOG_LEVEL.default)
    app = load_app(reference)
    if is_wanted():
        app._reload = Reload(app, given, config, settings)
    with ExitStack() as serving:
        serve_pages(settings, serving, lambda: app.state, lambda: metrics_of(app))
        _serve_control(app, settings, serving)
        _run(app, settings)


def _serve_control(app: App, settings: Settings, serving: ExitStack) -> None:
    """Serve the app's control socket, if it is set."""
    if settings.control not in (None, OFF):
        from fairsched.cli.control import Control
        from fairsched.cli.controlsocket import ControlSocket

        control = serving.enter_context(ControlSocket(str(settings.control), Control(app)))
        _log.info("control socket: %s", control.path)


def _run(app: App, settings: Settings) -> None:
    """Run an app; an exception that it lets escape becomes the exit code for a failed application."""
    overrides = settings.consumer_options()
    if settings.queues:
        overrides["queues"] = settings.queues
    if settings.queue_source is not None:
        overrides["source"] = source_of(settings.queue_source, load_function)
    try:
        app.run(settings.url or None, **overrides)
    except FairschedError:
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise exits.Failure(f"the application failed: {error!r}", exits.APPLICATION) from error
