"""A connection and a thread beside those of a consumer, for what it tells other consumers and hears from them."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from fairsched.amqp.backoff import LONGEST, Backoff
from fairsched.amqp.flag import Flag
from fairsched.amqp.session import Session


class SideConnection(ABC):
    """Takes part on a session of its own, again and again with growing delays, until the consumer ends.

    Parameters
    ----------
    urls : sequence of str
        The brokers, which are tried in turn.
    thread : str
        Name of the thread.
    heartbeat : int, optional
        Seconds; by default as the URL says.
    longest_pause : float
        Longest delay of an attempt to connect again, in seconds.

    Notes
    -----
    A connection of its own, since a broker in need of memory stops reading from connections that publish, and
    acknowledgements must go on. Nothing waits for the thread.

    `start` and `end` are for the owner, one after the other. `connected` and the session are single references that the
    thread writes and any thread may read, `_ended` is a flag. All else belongs to the thread.
    """

    def __init__(
        self, urls: Sequence[str], thread: str, heartbeat: int | None = None, longest_pause: float = LONGEST
    ) -> None:
        #: Whether this takes part now: what it needs is set up, and the connection is open.
        self.connected = False
        self._urls = urls
        self._heartbeat, self._longest_pause = heartbeat, longest_pause
        self._session: Session | None = None
        self._ended = Flag()
        #: Says whether the consumer has ended, closed or not.
        self._over: Callable[[], bool] = self._ended.is_set
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    def start(self, over: Callable[[], bool]) -> None:
        """Connect as soon as that can be, and take part until `over`."""
        self._over = lambda: self._ended.is_set() or over()
        self._thread.start()

    def end(self, timeout: float) -> None:
        """End, waiting for at most so many seconds."""
        self._ended.set()
        session = self._session
        if session is not None:
            with contextlib.suppress(Exception):  # its loop may be closed by now
                session.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def over(self) -> bool:
        """Whether this must end."""
        return self._over()

    # The thread --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Use the open session until `over`, or until an exception ends it; call `working` when all is set up."""

    @abstractmethod
    def _lose(self, error: BaseException) -> None:
        """Go on without the connection: an exception ended `_take_part`, which is called again after a delay."""

    def _run(self) -> None:
        backoff, attempts = Backoff(longest=self._longest_pause), 0
        while not self._over():
            try:
                self._connect(self._urls[attempts % len(self._urls)], backoff)
            except (Exception, KeyboardInterrupt) as error:  # the latter by `end`, and by nothing else in a thread
                if not self._over():
                    self._lose(error)
            attempts += 1
            self._ended.wait(backoff.failed())

    def _connect(self, url: str, backoff: Backoff) -> None:
        session = self._session = Session(url, heartbeat=self._heartbeat)

        def working() -> None:
            backoff.succeeded()
            self.connected = True

        try:
            session.open()
            self._take_part(session, working)
        finally:
            self.connected = False
            self._session = None
            if self._over():
                session.close()
            else:
                session.drop()
