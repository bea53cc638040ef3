"""SIGHUP: a worker reloads its settings and applies their weights."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairsched.config.consumer_options import OPTIONS
from fairsched.config.lanes import queues_and_lanes
from fairsched.config.queue_source import without_source
from fairsched.config.queues import Queue
from fairsched.config.settings import Settings
from fairsched.config.tenants import OTHERS, Tenant, as_tenants, weights_of
from fairsched.consumer import App
from fairsched.consumer.signals import RELOAD
from fairsched.errors import FairschedError

_log = logging.getLogger(__name__)

#: Options that can change while a worker runs.
_APPLIED = ("queues", "tenants")


def is_wanted() -> bool:
    """Return whether SIGHUP asks to reload, as for a daemon: not if the terminal was closed, or it is ignored."""
    if RELOAD is None or signal.getsignal(RELOAD) != signal.SIG_DFL:
        return False
    return sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty()


class Reload:
    """Applies the weights of reloaded settings to a running app.

    Parameters
    ----------
    app : App
        Whose weights change.
    given : mapping of str to object
        Options of the command line.
    file : Path or None
        As for `Settings.load`.
    settings : Settings
        Those that the app was started with.

    Notes
    -----
    A call changes all weights or, where anything is wrong, none; and never raises for that, but logs it. For one thread
    at a time.
    """

    def __init__(self, app: App, given: Mapping[str, Any], file: Path | None, settings: Settings) -> None:
        self._app = app
        self._given = dict(given)
        self._file = file
        self._settings = settings

    def __call__(self) -> None:
        """Reload the settings, apply the weights, and log other changes as not applied."""
        try:
            found = Settings.load(self._given, file=self._file)
            changed = self._apply(found)
        except FairschedError as error:
            _log.error("SIGHUP: the weights stay as they are: %s", error)
            return
        _log.info("SIGHUP: %s", "weights are now " + _listed(changed) if changed else "no weight has changed")
        fixed = [key for key in OPTIONS if key not in _APPLIED and getattr(found, key) != getattr(self._settings, key)]
        if fixed:
            _log.warning("SIGHUP: without effect until the next start: %s", ", ".join(fixed))

    def _apply(self, found: Settings) -> dict[Any, int]:
        """Change the weights that differ; return the new ones."""
        consumer = self._app._consumer
        if consumer is None:
            return {}
        running = consumer._client.settings
        selected, _ = without_source(self._app._selected(found.queues or self._app.options.get("queues")))
        queues, _ = ({}, ()) if selected is None else queues_and_lanes(selected, running.others.weight or 1)
        wanted = {name: queue.weight for name, queue in queues.items()}
        added, removed = sorted(wanted.keys() - running.weights.keys()), sorted(running.weights.keys() - wanted.keys())
        if running.source is not None:  # which has them removed
            removed = []
        if added or removed:
            _log.warning("SIGHUP: without effect until the next start: queues %s", ", ".join([*added, *removed]))
        for name, queue in queues.items():
            if differing := _differing(queue, running.queues.get(name, queue)):
                _log.warning("SIGHUP: without effect until the next start: %s of queue %r", ", ".join(differing), name)
        before: dict[Any, int]
        if running.key is None:
            before, now = running.weights, {name: wanted.get(name, old) for name, old in running.weights.items()}
        else:
            options = {**self._app.options, **found.consumer_options()}
            tenants, others = as_tenants(options.get("tenants"))
            _warn_of_tenants({**running.tenants, OTHERS: running.others}, {**tenants, OTHERS: others})
            before = weights_of(running.tenants)
            now = {**dict.fromkeys(before, running.others.weight or 1), **weights_of(tenants)}
        changed = {name: weight for name, weight in now.items() if before.get(name) != weight}
        if changed:
            # Not those that the app declares: they hold again when the file has none.
            consumer._client.set_weights(changed)
        return changed


def _warn_of_tenants(before: Mapping[Any, Tenant], now: Mapping[Any, Tenant]) -> None:
    """Log what differs between two sets of tenants and cannot change."""
    for name in {**before, **now}:
        one, other = before.get(name, Tenant()), now.get(name, Tenant())
        differing = _differing(one, other)
        if name == OTHERS and one.weight != other.weight:
            differing.insert(0, "weight")
        if differing:
            _log.warning("SIGHUP: without effect until the next start: %s of tenant %r", ", ".join(differing), name)


def _differing(one: Queue | Tenant, other: Queue | Tenant) -> list[str]:
    """Return the options, except the weight, in which two queues or tenants differ."""
    names = [option.name for option in fields(one) if option.name != "weight"]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def _listed(weights: Mapping[Any, int]) -> str:
    """List weights."""
    return ", ".join(f"{name}={weight}" for name, weight in weights.items())
