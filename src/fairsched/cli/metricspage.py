"""The page that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from prometheus_client.registry import Collector

from fairsched.cli.httpserver import Page

_KIND = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


def exposition(collected: Collector) -> Page:
    """Return the metrics of a collector, such as a registry, in the format of Prometheus."""
    return Page(generate_latest(collected).decode(), _KIND)


@contextmanager
def metrics_pages(found: Collector) -> Iterator[dict[str, Callable[[], Page]]]:
    """Have the default registry of prometheus_client export a collector, and yield the page ``/metrics`` that shows it.

    Parameters
    ----------
    found : Collector
        What is exported, beside all that handlers count in that registry themselves.

    Yields
    ------
    dict
        By path, what makes the page.

    Raises
    ------
    ValueError
        If the registry has a collector of a consumer already.
    """
    REGISTRY.register(found)
    try:
        yield {"/metrics": lambda: exposition(REGISTRY)}
    finally:
        REGISTRY.unregister(found)
