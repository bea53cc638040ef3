"""Answers to the probes of a supervisor, such as Kubernetes, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from fairsched.cli.httpserver import Page
from fairsched.consumer.state import ConsumerState


def health_pages(state: Callable[[], ConsumerState]) -> dict[str, Callable[[], Page]]:
    """Return two pages, ``/healthz`` for liveness and ``/readyz`` for consuming, with status 200 or 503.

    Parameters
    ----------
    state : callable
        Returns the state of the consumer.

    Returns
    -------
    dict
        By path, what makes the page.

    Notes
    -----
    A kubelet asks a pod's address, not its loopback. So what is answered is for everybody: a line that has names of
    queues at most.
    """
    return {"/healthz": lambda: _page(_ailment(state())), "/readyz": lambda: _page(_hindrance(state()))}


def _page(problem: str) -> Page:
    return Page(f"{problem}\n", code=HTTPStatus.SERVICE_UNAVAILABLE) if problem else Page("ok\n")


def _ailment(state: ConsumerState) -> str:
    """Return the reason why a consumer is not alive, if any."""
    # The text of an error may be anything.
    return "" if state.alive else str(state.problem).partition(":")[0]


def _hindrance(state: ConsumerState) -> str:
    """Return the reason why a consumer is not ready, if any."""
    if state.ready:
        return ""
    if state.stopping:
        return "it was stopped"
    if not state.connected:
        return "not connected to a broker"
    missing = [name for name, consumed in state.consuming.items() if not consumed and name not in state.paused]
    return f"not consumed: {', '.join(map(repr, missing[:3]))}" + (f" and {len(missing) - 3} more" * (len(missing) > 3))
