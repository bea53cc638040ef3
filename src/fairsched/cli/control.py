"""Commands that a running worker accepts on its control socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from fairsched.consumer.explanation import Explanation
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.consumer import App
    from fairsched.consumer.client import Client

_log = logging.getLogger(__name__)

#: Most queues or tenants in an overview: those with the most messages here, then those served most.
MOST_SHOWN = 100


class Control:
    """Answers requests about an app, and carries out those that change it.

    Parameters
    ----------
    app : App
        Whose running consumer is meant.

    Notes
    -----
    A request is an object of JSON: ``{"command": "weight", "name": "gold", "weight": 40}``. The answer is
    ``{"result": ...}``, or ``{"error": "..."}`` if it was not understood, not allowed, or no consumer is running.
    Names that are no text, such as numbers that a `key` returned, may be given as text. Safe from any thread.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        #: Function and arguments of each command.
        self._commands: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
            "state": (self._state, ()),
            "stats": (self._stats, ()),
            "overview": (self._overview, ()),
            "explain": (self._explain, ("name",)),
            "weight": (self._weight, ("name", "weight")),
            "pause": (self._pause, ("queue",)),
            "resume": (self._resume, ("queue",)),
        }

    def __call__(self, request: Any) -> dict[str, Any]:
        """Answer a request."""
        try:
            return {"result": self._obey(request)}
        except (FairschedError, RuntimeError, TypeError, ValueError) as error:
            return {"error": str(error)}
        except Exception:
            _log.exception("a request at the control socket failed")
            return {"error": "the request failed; the log of the worker says why"}

    def _obey(self, request: Any) -> Any:
        if not isinstance(request, Mapping) or request.get("command") not in self._commands:
            raise ValueError(f"a request is an object with a command, one of {', '.join(self._commands)}")
        command = request["command"]
        function, wanted = self._commands[command]
        given = {key: value for key, value in request.items() if key != "command"}
        if set(given) != set(wanted):
            raise ValueError(
                f"{command} takes {' and '.join(wanted) or 'nothing'}, got {' and '.join(given) or 'nothing'}"
            )
        return function(**given)

    def _client(self) -> Client:
        return self._app._running()._client

    def _state(self) -> Any:
        state = self._app.state
        found = {name: getattr(state, name) for name in state.__dataclass_fields__}
        found["since"] = None if state.since is None else state.since.isoformat()
        found["consuming"], found["paused"] = dict(state.consuming), sorted(state.paused)
        return {**found, "ready": state.ready, "alive": state.alive}

    def _stats(self) -> Any:
        found = self._client().stats()
        slots = found.pop("slots")
        codel = found.pop("codel", None)
        answer = {**found, "slots": {str(name): slot._asdict() for name, slot in slots.items()}}
        if codel is not None:
            laws = {str(name): law._asdict() for name, law in codel["slots"].items()}
            answer["codel"] = {**codel, "slots": laws}
        return answer

    def _overview(self) -> Any:
        """Return the state, and an explanation of the queues and tenants with the most messages here."""
        client = self._client()
        slots = client.worker_queues.stats()
        chosen = sorted(slots, key=lambda name: (-slots[name].queued, -slots[name].served))[:MOST_SHOWN]
        return {
            "kind": "queue" if client.settings.key is None else "tenant",
            "state": self._state(),
            "shown": [_plain(why) for why in client.explain_slots(chosen)],
            "known": len(slots),
        }

    def _explain(self, name: Any) -> Any:
        client = self._client()
        return _plain(client.explain(_meant(client, name)))

    def _weight(self, name: Any, weight: Any) -> Any:
        client = self._client()
        meant = _meant(client, name)
        client.set_weight(meant, weight)
        _log.info("control socket: the weight of %.200r is now %r", meant, weight)
        return _plain(client.explain(meant))

    def _pause(self, queue: Any) -> Any:
        self._app.pause(queue)
        _log.info("control socket: queue %r is paused", queue)
        return self._state()

    def _resume(self, queue: Any) -> Any:
        self._app.resume(queue)
        _log.info("control socket: queue %r is resumed", queue)
        return self._state()


def _meant(client: Client, name: Any) -> Hashable:
    """Return the slot with a name; the request may have the name as text."""
    if isinstance(name, str) and name not in client.settings.windows and client.worker_queues.outlook(name) is None:
        return next((slot for slot in client.worker_queues.stats() if str(slot) == name), name)
    found: Hashable = name
    return found


def _plain(why: Explanation) -> dict[str, Any]:
    """Return an explanation for JSON, with its sentence."""
    found = {name: getattr(why, name) for name in why.__dataclass_fields__}
    found |= {"name": str(why.name), "awaited": None if why.awaited is None else str(why.awaited)}
    found["busiest"] = None if why.busiest is None else [(str(subkey), number) for subkey, number in why.busiest]
    return {**found, "sentence": str(why)}
