"""The broker's addresses, the patience with it, and connections to it.

A task that reads drives its connection itself, call by call.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairsched.amqp.backoff import Backoff
from fairsched.amqp.session import Session
from fairsched.errors import ConnectionFailed, RequestRefused

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds: the ceiling of the first pause between two attempts, and of all later ones.
_BACKOFF = (0.5, 10.0)


@dataclass(frozen=True)
class Broker:
    """Addresses of the broker, with timeouts and retries.

    Parameters
    ----------
    urls : tuple of str
        Tried in turn.
    heartbeat : int
        Seconds; 0 switches heartbeats off.
    timeout : float
        Seconds for a connection, and for each answer.
    retries : int
        Further rounds over the URLs.
    """

    urls: tuple[str, ...] = field(repr=False)
    heartbeat: int = 60
    timeout: float = 10.0
    retries: int = 3


class Retries:
    """Counter of consecutive failures of an operation on the broker; it ends the retries.

    Parameters
    ----------
    broker : Broker
        ``retries`` are allowed.
    wait : callable
        Lets so many seconds pass.
    """

    def __init__(self, broker: Broker, *, wait: Callable[[float], None] = time.sleep) -> None:
        self._most = self._left = broker.retries
        self._backoff = Backoff(*_BACKOFF)
        self._wait = wait

    def failed(self, error: ConnectionFailed) -> None:
        """Wait before the next attempt; raise the error if there is none left."""
        if self._left == 0 or isinstance(error, RequestRefused):
            raise error
        self._left -= 1
        _log.warning("trying again: %s", error)
        self._wait(self._backoff.failed())

    def succeeded(self) -> None:
        """Note a success, which resets the number of allowed failures."""
        if self._left < self._most:
            self._left = self._most
            self._backoff.succeeded()


def over_session(broker: Broker, work: Callable[[Session], T], end: Callable[[Session], None]) -> T:
    """Do something that can be done again over a connection, and over new ones when it is lost.

    Parameters
    ----------
    broker : Broker
        Where, and how patiently.
    work : callable
        Called with an open session.
    end : callable
        Ends it: `Session.close`, or `Session.drop`.

    Returns
    -------
    object
        What `work` returned.

    Raises
    ------
    ConnectionFailed
        The connection was lost ``1 + broker.retries`` times, or none was had.
    """
    retries = Retries(broker)
    while True:
        session = open_session(broker)
        try:
            return work(session)
        except ConnectionFailed as error:
            retries.failed(error)
        finally:
            end(session)


def open_session(broker: Broker, *, wait: Callable[[float], None] = time.sleep) -> Session:
    """Connect to the first URL that answers.

    Parameters
    ----------
    broker : Broker
        Where, and how patiently.
    wait : callable
        Lets so many seconds pass.

    Returns
    -------
    Session
        Open.

    Raises
    ------
    ConnectionFailed
        None answered in ``1 + broker.retries`` rounds; the message names hosts and ports only. `RequestRefused` at once
        if all refused the login.
    """
    backoff = Backoff(*_BACKOFF)
    problems: dict[str, ConnectionFailed] = {}
    for attempt in range(1 + broker.retries):
        for url in broker.urls:
            session = Session(url, timeout=broker.timeout, heartbeat=broker.heartbeat)
            try:
                session.open()
            except ConnectionFailed as error:
                problems[session.address] = error
            else:
                return session
        refused = all(isinstance(error, RequestRefused) for error in problems.values())
        if refused:
            break
        if attempt < broker.retries:
            wait(backoff.failed())
    raise (RequestRefused if refused else ConnectionFailed)("; ".join(map(str, problems.values())))


def with_heartbeat(url: str, seconds: int) -> str:
    """Return a URL that asks for a heartbeat of so many seconds, whatever it asked for; 0 switches them off."""
    rest = re.sub(r"([?&])heartbeat=[^&]*&?", r"\1", url).rstrip("?&")
    return f"{rest}{'&' if '?' in rest else '?'}heartbeat={seconds}"


def close_channel(session: Session, channel: Any, patience: int = 1) -> None:
    """Close a channel, and wait until the broker has processed everything sent on it; see `Session.call`."""

    def close(callback: Callable[[Any], None]) -> None:
        channel.add_on_close_callback(lambda _channel, _reason: callback(None))
        channel.close()

    session.call([close], "channel.close", patience=patience)
