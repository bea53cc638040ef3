"""A thread that runs pika: one connection, made and made again until its owner closes it, or is gone."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from fairsched.amqp.connection import Connection
from fairsched.amqp.flag import Flag
from fairsched.amqp.polling.ioloop import Loop
from fairsched.amqp.transport import Transport

__all__ = ["ConnectionEvents", "ConnectionThread"]

#: How often it is asked whether the owner can still be used, in seconds, and how long the end may take if not.
_WATCH_PERIOD, _LONGEST_END = 1.0, 5.0


class ConnectionEvents:
    """Events of a connection that its thread tells the client of; the thread calls every method."""

    def ready(self) -> None:
        """Go on: for the first time, all is as it should be."""

    def failed(self, error: BaseException) -> None:
        """Take note that the work cannot begin, or cannot go on."""

    def orphan(self) -> bool:
        """Return whether the client cannot be used any more; asked now and then."""
        return False


class ConnectionThread(ABC):
    """Runs pika in a thread of its own, and keeps a connection.

    Parameters
    ----------
    urls : sequence of str
        Tried in turn.
    owner : ConnectionEvents
        Told how the work begins and ends.
    name : str
        Of the thread.
    kind : type
        Class of the connection.
    fast, connection_name
        As `Connection` documents them.

    Notes
    -----
    `start`, `close`, `ended`, `is_current`, `last_error`, `is_connected` and `since` are safe from any thread;
    everything else belongs to the thread itself. Methods that begin with `_on_` are called with what happens to the
    connection.

    However the thread ends, by an error too, it closes its socket, so that the broker has back what is unsettled. The
    owner refers to its user weakly (`ConnectionEvents.orphan`): a client that was dropped ends, and so does one whose
    event loop was closed.
    """

    def __init__(
        self,
        urls: Sequence[str],
        owner: ConnectionEvents,
        name: str,
        *,
        kind: type[Transport] = Transport,
        fast: bool | None = None,
        connection_name: str | None = None,
    ) -> None:
        self._owner = owner
        self._loop = Loop()
        self._new_connection = functools.partial(
            Connection,
            self._loop,
            tuple(urls),
            fast,
            blocked=self._on_blocked,
            kind=kind,
            name=connection_name,
        )
        self._connection = self._new_connection(
            connected=self._on_connected,
            disconnected=self._on_disconnected,
            refused=self._fail,
            closed=self._on_closed,
        )
        self._launched, self._ended = False, Flag()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects at once."""
        # An interrupt in the midst of this leaves a thread of which `threading` does not yet say that it is alive.
        self._launched = True
        self._thread.start()

    @property
    def last_error(self) -> str | None:
        """The last reason why there was no connection, or why it was of no use."""
        return self._connection.last_error

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection.is_open

    @property
    def since(self) -> float | None:
        """The time when the connection was opened, or else lost, on the clock of `time.time`; None: not yet."""
        return self._connection.since

    @property
    def ended(self) -> bool:
        """Whether the thread is done."""
        return self._ended.is_set()

    def is_current(self) -> bool:
        """Return whether the caller runs in this thread."""
        return self._thread is threading.current_thread()

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in this thread, after so many seconds."""
        self._loop.add_callback_threadsafe(lambda: self._loop.call_later(seconds, function))

    def close(self, timeout: float) -> None:
        """Close the connection in good order and end the thread, waiting `timeout` seconds at most."""
        if not self._launched:
            return
        self._loop.add_callback_threadsafe(lambda: self._close(timeout))
        if not self._ended.wait(timeout):
            self._on_late(timeout)
            self._loop.add_callback_threadsafe(self._loop.stop)
        if self._ended.wait(1.0):
            self._thread.join(1.0)

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._watch()
            self._connection.connect()
            self._loop.start()
        except BaseException as error:  # SystemExit of a function of the user too, which would end a thread silently
            failure = error
        try:
            self._drop()
            self._finish(failure)
        finally:
            self._loop.close()
            self._ended.set()
            self._after_end()

    def _watch(self) -> None:
        """End if the owner cannot be used any more."""
        self._look()
        if self._owner.orphan():
            self._close(_LONGEST_END)
            self._loop.call_later(_LONGEST_END, self._loop.stop)
        else:
            self._loop.call_later(_WATCH_PERIOD, self._watch)

    def _fail(self, error: BaseException) -> None:
        self._owner.failed(error)
        self._close(_LONGEST_END)

    # What a kind of client does its own way ----------------------------------------------------------------------

    @abstractmethod
    def _look(self) -> None:
        """Do what is to be done once a second."""

    def _drop(self) -> None:
        """Close the socket, since the loop has ended."""
        self._connection.drop()

    def _on_closed(self) -> None:
        """End the loop: the connection is closed, as was asked for."""
        self._loop.stop()

    def _close(self, longest: float) -> None:
        """Close the connection in good order, which may take so many seconds."""
        self._connection.close()

    @abstractmethod
    def _finish(self, failure: BaseException | None) -> None:
        """Tell the owner how the thread ends; the socket is closed."""

    def _after_end(self) -> None:  # noqa: B027  # a client may have nothing left to do
        """Do what is left when `ended` is true."""

    @abstractmethod
    def _on_late(self, waited: float) -> None:
        """Log that the broker has not confirmed the close for so many seconds."""

    @abstractmethod
    def _on_connected(self, transport: Transport, again: bool) -> None:
        """Take a new connection; `again` if it is not the first."""

    @abstractmethod
    def _on_disconnected(self, error: BaseException) -> None:
        """Note that the connection is gone."""

    def _on_blocked(self, reason: str | None) -> None:  # noqa: B027  # it matters to publishers only
        """Note that the broker takes no messages for now, and why; or does again: None."""
