"""``fairsched run``: run an app's handlers until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli import exits
from fairsched.cli.loading import load_app
from fairsched.cli.parameters import config_option, settings_options
from fairsched.cli.reloading import Reload, is_wanted
from fairsched.config.consumer_options import LOG_LEVEL
from fairsched.config.settings import Settings
from fairsched.config.values import OFF
from fairsched.consumer import App
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.cli.httpserver import Page

_log = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
    _set_up_logging(settings.log_level or LOG_LEVEL.default)
    app = load_app(reference)
    if is_wanted():
        app._reload = Reload(app, given, config, settings)
    with ExitStack() as serving:
        _serve(app, settings, serving)
        _run(app, settings)


def _serve(app: App, settings: Settings, serving: ExitStack) -> None:
    """Serve the app's health probes, metrics and control socket, as far as they are set: one server for each port."""
    pages: dict[int, dict[str, Callable[[], Page]]] = {}
    if settings.health_port not in (None, OFF):
        from fairsched.cli.health import health_pages

        pages[int(settings.health_port)] = health_pages(lambda: app.state)
    if settings.metrics_port not in (None, OFF):
        try:
            pages.setdefault(int(settings.metrics_port), {}).update(serving.enter_context(_metrics(app)))
        except ValueError as error:  # the app has registered a collector of its own
            raise exits.Failure(f"cannot export metrics: {error}", exits.USAGE) from error
    if settings.control not in (None, OFF):
        from fairsched.cli.control import Control
        from fairsched.cli.controlsocket import ControlSocket

        control = serving.enter_context(ControlSocket(str(settings.control), Control(app)))
        _log.info("control socket: %s", control.path)
    for port, answers in pages.items():
        from fairsched.cli.httpserver import EVERYWHERE, HttpServer

        try:
            server = serving.enter_context(HttpServer(answers, port, EVERYWHERE))
        except OSError as error:
            raise exits.Failure(f"cannot listen on port {port}: {error.strerror or error}", exits.USAGE) from error
        _log.info("port %d of all interfaces answers: %s", server.port, ", ".join(answers))


def _metrics(app: App) -> AbstractContextManager[dict[str, Callable[[], Page]]]:
    try:
        from fairsched.cli.metricspage import metrics_pages
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        reason = "metrics_port needs prometheus_client: pip install 'fairsched[metrics]'"
        raise exits.Failure(reason, exits.IMPORT) from None
    return metrics_pages(app)


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
