"""Serving health probes and metrics beside a command that runs until a signal, and its log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fairsched.cli import exits
from fairsched.config.settings import Settings
from fairsched.config.values import OFF
from fairsched.consumer import App
from fairsched.consumer.state import ConsumerState

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from fairsched.cli.httpserver import Page
    from fairsched.consumer.drain_time.drain import Drain

_log = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str) -> None:
    """Log to standard error."""
    logging.basicConfig(level=level.upper(), format=_FORMAT)
    if level != "debug":
        # pika logs every lost connection about ten times; our own logger logs it once.
        logging.getLogger("pika").setLevel(logging.CRITICAL)


def metrics_of(app: App) -> Collector:
    """Return the metrics of an app's consumer."""
    from fairsched.metrics import collector

    return collector(app)


def drain_of(app: App) -> Drain:
    """Return how long the queues of an app's consumer take to drain; RuntimeError if none is running."""
    return app._running()._client.drain()


def serve_pages(
    settings: Settings,
    serving: ExitStack,
    state: Callable[[], ConsumerState],
    metrics: Callable[[], Collector],
    drain: Callable[[], Drain] | None = None,
) -> None:
    """Serve health probes and metrics as far as they are set, with one server for each port, until `serving` is left.

    Parameters
    ----------
    settings : Settings
        The ports.
    serving : ExitStack
        Ends the servers.
    state : callable
        Returns the state to answer probes with.
    metrics : callable
        Returns what is exported; called only if metrics are, since it needs prometheus_client.
    drain : callable, optional
        Returns how long queues take to drain; then the page is served beside the metrics.
    """
    pages: dict[int, dict[str, Callable[[], Page]]] = {}
    if settings.health_port not in (None, OFF):
        from fairsched.cli.health import health_pages

        pages[int(settings.health_port)] = health_pages(state)
    if settings.metrics_port not in (None, OFF):
        page = pages.setdefault(int(settings.metrics_port), {})
        page.update(_metrics_pages(metrics, serving))
        if drain is not None:
            from fairsched.cli.scalepage import scale_pages

            page.update(scale_pages(drain))
    for port, answers in pages.items():
        from fairsched.cli.httpserver import EVERYWHERE, HttpServer

        try:
            server = serving.enter_context(HttpServer(answers, port, EVERYWHERE))
        except OSError as error:
            raise exits.Failure(f"cannot listen on port {port}: {error.strerror or error}", exits.USAGE) from error
        _log.info("port %d of all interfaces answers: %s", server.port, ", ".join(answers))


def _metrics_pages(metrics: Callable[[], Collector], serving: ExitStack) -> dict[str, Callable[[], Page]]:
    try:
        from fairsched.cli.metricspage import metrics_pages

        return serving.enter_context(metrics_pages(metrics()))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        reason = "metrics_port needs prometheus_client: pip install 'fairsched[metrics]'"
        raise exits.Failure(reason, exits.IMPORT) from None
    except ValueError as error:  # the app has registered a collector of its own
        raise exits.Failure(f"cannot export metrics: {error}", exits.USAGE) from error
