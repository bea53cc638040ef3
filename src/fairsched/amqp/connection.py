"""A pika connection that is opened again when it is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched.amqp.backoff import Backoff
from fairsched.amqp.errors import describe, is_refusal
from fairsched.amqp.transport import Transport
from fairsched.amqp.urls import endpoint, mask_url, parameters
from fairsched.errors import ConfigurationError, ConnectionFailed, FairschedError

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

_log = logging.getLogger(__name__)

#: Seconds that a connection has to finish opening after `close`.
_GRACE = 1.0


class Connection:
    """Keeps one connection to one of several brokers.

    Parameters
    ----------
    loop : pika IOLoop
        Shared by all connections, one after the other, so that other threads can always call it.
    urls : tuple of str
        Tried in turn. Only a complete round of failures is followed by a pause.
    fast : bool or None
        As `ConsumerOptions` documents it.
    connected : callable
        ``connected(transport, again)``: a connection is open; `again` if it is not the first.
    disconnected : callable
        ``disconnected(error)``: the connection is lost.
    refused : callable
        ``refused(error)``: the broker refused the connection, or pika lacks a part that `fast` requires; there is no
        other attempt.
    closed : callable
        ``closed()``: the connection ended because of `close`.
    blocked : callable, optional
        ``blocked(reason)``: the broker stopped accepting messages on the connection; None: it accepts them again.
    kind : type
        Class of the connection.
    name : str, optional
        Name under which the broker lists the connection.

    Notes
    -----
    Only the I/O thread may use it, except `last_error`, `is_open` and `since`.
    """

    def __init__(
        self,
        loop: IOLoop,
        urls: tuple[str, ...],
        fast: bool | None = None,
        *,
        connected: Callable[[Transport, bool], None],
        disconnected: Callable[[BaseException], None],
        refused: Callable[[FairschedError], None],
        closed: Callable[[], None],
        blocked: Callable[[str | None], None] = lambda _reason: None,
        kind: type[Transport] = Transport,
        name: str | None = None,
    ) -> None:
        self.address = ""
        #: Text of the last error, without a password.
        self.last_error: str | None = None
        #: Time at which the connection was opened or, if it is not open, lost (`time.time`); None before the first.
        self.since: float | None = None
        self._loop = loop
        self._urls = urls
        self._fast = fast
        self._connected = connected
        self._disconnected = disconnected
        self._refused = refused
        self._closed = closed
        self._blocked = blocked
        self._kind = kind
        self._name = name
        self._backoff = Backoff()
        self._attempts = 0
        self._transport: Transport | None = None
        self._was_open = self._wanted = self._closing = False

    @property
    def transport(self) -> Transport | None:
        """The connection; None unless it is open."""
        found = self._transport
        return found if found is not None and found.is_open else None

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self.transport is not None

    def connect(self) -> None:
        """Connect, and retry until `close` or `give_up`."""
        self._wanted = True
        self._attempt()

    def follow(self, other: Connection) -> None:
        """Begin with the URL that another connection, of the same URLs, tried last."""
        self._attempts = max(0, other._attempts - 1)

    def give_up(self) -> None:
        """Make no further attempt; an open connection stays."""
        self._wanted = False

    def close(self) -> None:
        """Close the connection; then `closed` is called."""
        self._wanted = False
        if self._closing:
            return
        self._closing = True
        if self._transport is None or self._transport.is_closed:
            self._closed()
        elif self._transport.is_open:
            self._transport.close()
        elif not self._transport.is_closing:
            # Closing while it opens trips an assertion in pika 1.4: let it open or fail, but not for long.
            self._loop.call_later(_GRACE, self._closed)

    def drop(self) -> None:
        """Close the socket, if there is one, without a handshake, after the loop has ended."""
        self._wanted = False
        connection, self._transport = self._transport, None
        if connection is not None:
            connection.drop()

    def useful(self) -> None:
        """Note that the connection was useful, however short it was."""
        self._backoff.useful()

    def _attempt(self) -> None:
        if not self._wanted:
            return
        url = self._urls[self._attempts % len(self._urls)]
        self._attempts += 1
        self.address = endpoint(url)
        _log.debug("connecting to %s", mask_url(url))
        try:
            found = parameters(url)
            if self._name is not None:
                found.client_properties = {**(found.client_properties or {}), "connection_name": self._name}
            self._transport = self._kind(
                found,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_open_error,
                on_close_callback=self._on_close,
                custom_ioloop=self._loop,
            )
        except Exception as error:
            self._on_open_error(None, error)

    def _on_open(self, connection: Any) -> None:
        if not self._wanted:
            connection.close()
            return
        try:
            connection.open_shortcut(self._fast)
        except ConfigurationError as error:
            self._wanted = False
            self._refused(error)
            return
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._backoff.succeeded()
        _log.info("connected to %s", self.address)
        again, self._was_open = self._was_open, True
        self.since = time.time()
        self._connected(connection, again)

    def _on_open_error(self, _connection: Any, error: BaseException) -> None:
        self._transport = None
        self.last_error = f"{self.address}: {mask_url(describe(error))}"
        if self._closing:
            self._closed()
        elif not self._was_open and is_refusal(error):
            self._wanted = False
            self._refused(ConnectionFailed(f"the broker refused the connection: {self.last_error}"))
        else:
            self._retry("no connection")

    def _on_close(self, _connection: Any, error: BaseException) -> None:
        self._transport = None
        self.since = time.time()
        self._disconnected(error)
        if self._closing:
            self._closed()
        else:
            self.last_error = f"{self.address}: {mask_url(describe(error))}"
            self._retry("the connection was lost")

    def _retry(self, why: str) -> None:
        if self._wanted:
            another = self._attempts % len(self._urls) != 0
            delay = 0.0 if another else self._backoff.failed()
            _log.warning("%s, connecting again in %.2f s: %s", why, delay, self.last_error)
            self._loop.call_later(delay, self._attempt)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        _log.warning(
            "%s blocked the connection: %s; publishing waits, consuming continues", self.address, frame.method.reason
        )
        self._blocked(str(frame.method.reason))

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        _log.info("%s unblocked the connection", self.address)
        self._blocked(None)
