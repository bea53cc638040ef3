"""``fairsched run``: run an app's handlers until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.loading import load_app
from fairsched.cli.parameters import config_option, settings_options
from fairsched.cli.reloading import Reload, is_wanted
from fairsched.config import Settings
from fairsched.config.options import LOG_LEVEL
from fairsched.config.values import OFF
from fairsched.consumer import App
from fairsched.errors import FairschedError

_log = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command(epilog=exits.EPILOG)
@click.argument("reference", metavar="MODULE:APP")
@settings_options
@config_option
def run(reference: str, config: Path | None, **given: Any) -> None:
    """Consume with the handlers of an app until SIGTERM or SIGINT.

    MODULE:APP names a fairsched.App, such as "workers.mail:app"; the current directory is importable. The first
    signal is a warm shutdown: take no more messages, handle and acknowledge those already received, and exit. The
    second requeues messages whose handler has not started, and waits for those that are running. The third exits at
    once. SIGHUP rereads the settings and applies the weights in them, unless this runs in a terminal.

    Settings come from the app, the configuration file, environment variables (FAIRSCHED_PREFETCH for --prefetch) and
    these options; later ones override earlier ones. Without weights, --queues selects some of the app's queues.
    """
    settings = Settings.load(given, file=config)
    _set_up_logging(settings.log_level or LOG_LEVEL.default)
    app = load_app(reference)
    if is_wanted():
        app._reload = Reload(app, given, config, settings)
    with _probes(app, settings.health_port):
        _run(app, settings)


def _probes(app: App, port: int | str | None) -> AbstractContextManager[object]:
    """Answer probes about an app, if that is wanted."""
    if port is None or port == OFF:
        return nullcontext()
    from fairsched.cli.health import HealthServer

    try:
        server = HealthServer(lambda: app.state, int(port))
    except OSError as error:
        raise exits.Failure(f"cannot listen on port {port}: {error.strerror or error}", exits.USAGE) from error
    _log.info("probes are answered on port %d of all interfaces: /healthz and /readyz", server.port)
    return server


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format=_FORMAT)
    if level != "debug":
        # pika logs every lost connection about ten times; our own logger logs it once.
        logging.getLogger("pika").setLevel(logging.CRITICAL)


def _run(app: App, settings: Settings) -> None:
    """Run an app; an exception that it lets escape becomes the exit code for a failed application."""
    overrides = settings.consumer_options()
    if settings.queues:
        overrides["queues"] = settings.queues
    try:
        app.run(settings.url or None, **overrides)
    except FairschedError:
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise exits.Failure(f"the application failed: {error!r}", exits.APPLICATION) from error
