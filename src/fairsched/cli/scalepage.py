"""The page that KEDA's scaler for metrics APIs asks: how many seconds the workers take to drain their queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fairsched.cli.httpserver import Page
from fairsched.consumer.drain_time.drain import Drain, QueueDrain, TenantDrain
from fairsched.errors import FairschedError
from fairsched.metrics import text

#: Decimals of seconds.
_DECIMALS = 6


def scale_pages(drain: Callable[[], Drain]) -> dict[str, Callable[[], Page]]:
    """Return the page ``/scale``, an object of JSON.

    Parameters
    ----------
    drain : callable
        Returns the time to drain; called for each request.

    Returns
    -------
    dict
        By path, what makes the page.

    Notes
    -----
    The status is 503, and ``seconds`` is null, while the time is unknown: KEDA leaves this worker out of its mean. A
    guess would scale.
    """
    return {"/scale": lambda: _page(drain)}


def _page(drain: Callable[[], Drain]) -> Page:
    try:
        found = drain()
    except (FairschedError, RuntimeError) as error:
        return _answer({"seconds": None, "problem": str(error)})
    return _answer(described(found))


def _answer(table: dict[str, Any]) -> Page:
    code = HTTPStatus.SERVICE_UNAVAILABLE if table["seconds"] is None else HTTPStatus.OK
    return Page(json.dumps(table) + "\n", "application/json", code)


def described(found: Drain) -> dict[str, Any]:
    """Return the time to drain as an object for JSON."""
    table: dict[str, Any] = {"seconds": _rounded(found.seconds), "backlog": found.backlog, "age": _rounded(found.age)}
    if found.seconds is None:
        table["problem"] = "no handler time is known: none has returned yet, or one deferred its message"
    table["queues"] = [_queue(one) for one in found.queues]
    table["tenants"] = [_tenant(one) for one in found.tenants]
    return table


def _queue(one: QueueDrain) -> dict[str, Any]:
    return {
        "name": text(one.name),
        "seconds": _rounded(one.seconds),
        "backlog": one.backlog,
        "ready": one.ready,
        "handler_seconds": _rounded(one.handler_seconds),
        "workers": one.workers,
    }


def _tenant(one: TenantDrain) -> dict[str, Any]:
    return {
        "name": text(one.name),
        "seconds": _rounded(one.seconds),
        "backlog": one.backlog,
        "handler_seconds": _rounded(one.handler_seconds),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DECIMALS)
