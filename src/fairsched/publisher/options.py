"""The options of a publisher: the window of unconfirmed messages, timeouts, whether messages must be routed, lanes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from fairsched._core import checked_timeout
from fairsched.amqp.urls import check_urls
from fairsched.config.lanes import Lanes
from fairsched.errors import ConfigurationError

#: Unconfirmed messages, unless given.
CONFIRM_WINDOW = 2000


class PublisherOptions:
    """The options of a publisher, checked.

    Parameters
    ----------
    url : str or sequence of str
        Broker URL, amqp:// or amqps://; several are tried in order.
    mandatory : bool
        Whether a message fails if it cannot be routed to a queue; otherwise the broker drops and confirms it. `publish`
        can override this per message.
    confirm_window : int
        Maximum number of unconfirmed messages, at least 1.
    confirm_bytes : int
        Maximum number of their bytes as sent, at least 1; a single message may be larger.
    confirm_timeout : float
        Seconds without any confirm after which `flush`, and a `publish` that waits for room, fail.
    connect_timeout : float
        Seconds to wait for the first connection; then opening fails.
    lanes : Lanes or sequence of Lanes, optional
        Names that are no queues, but spread over lanes: a message that is published to one of them on the default
        exchange goes to the lane of its tenant. A lane that does not exist is declared.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names it.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        mandatory: bool = True,
        confirm_window: int = CONFIRM_WINDOW,
        confirm_bytes: int = 32 << 20,
        confirm_timeout: float = 30.0,
        connect_timeout: float = 30.0,
        lanes: Lanes | Sequence[Lanes] | None = None,
    ) -> None:
        self.urls = check_urls(url)
        if not isinstance(mandatory, bool):
            raise ConfigurationError(f"mandatory must be True or False, got {mandatory!r}")
        self.mandatory = mandatory
        self.confirm_window = _whole("confirm_window", confirm_window)
        self.confirm_bytes = _whole("confirm_bytes", confirm_bytes)
        self.confirm_timeout = _seconds("confirm_timeout", confirm_timeout)
        self.connect_timeout = _seconds("connect_timeout", connect_timeout)
        self.lanes = _lanes(lanes)


def _lanes(lanes: object) -> tuple[Lanes, ...]:
    several = () if lanes is None else [lanes] if isinstance(lanes, Lanes) else lanes
    if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
        raise ConfigurationError(f"lanes must be a Lanes or several, got {lanes!r}")
    found: dict[str, Lanes] = {}
    for one in several:
        if not isinstance(one, Lanes):
            raise ConfigurationError(f"lanes must be a Lanes or several, got {one!r} among them")
        if one.name in found:
            raise ConfigurationError(f"lanes must have different names, got {one.name!r} twice")
        found[one.name] = one
    return tuple(found.values())


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**62:
        raise ConfigurationError(f"{name} must be an int of at least 1, got {value!r}")
    return value


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{name} must be a positive number of seconds, got {value!r}")
    return min(checked_timeout(value, name), threading.TIMEOUT_MAX)
