"""The page that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from prometheus_client.registry import Collector

from fairsched.cli.httpserver import Page
from fairsched.consumer.app import App
from fairsched.metrics import collector

_KIND = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


def exposition(collected: Collector) -> Page:
    """Return the metrics of a collector, such as a registry, in the format of Prometheus."""
    return Page(generate_latest(collected).decode(), _KIND)


@contextmanager
def metrics_pages(app: App) -> Iterator[dict[str, Callable[[], Page]]]:
    """Have the default registry of prometheus_client export an app, and yield the page ``/metrics`` that shows it.

    Parameters
    ----------
    app : App
        Whose consumer is exported, beside all that its handlers count in that registry themselves.

    Yields
    ------
    dict
        By path, what makes the page.

    Raises
    ------
    ValueError
        If the registry has a collector of a consumer already.
    """
    found = collector(app)
    REGISTRY.register(found)
    try:
        yield {"/metrics": lambda: exposition(REGISTRY)}
    finally:
        REGISTRY.unregister(found)
