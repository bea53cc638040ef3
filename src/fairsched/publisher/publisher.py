"""The blocking publisher."""

from __future__ import annotations

import logging
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairsched.amqp.flag import Flag
from fairsched.config.arguments import made_by
from fairsched.errors import PublishFailed
from fairsched.publisher.client import Client, confirmations, message_count
from fairsched.publisher.options import PublisherOptions

if TYPE_CHECKING:
    from pika.spec import BasicProperties
    from typing_extensions import Buffer

    from fairsched.amqp._publishing import Confirmation
    from fairsched.delivery._delivery import Message
    from fairsched.publisher.client import Outgoing, Patience

__all__ = ["Publisher"]

_log = logging.getLogger(__name__)


class Publisher:
    """Publish to RabbitMQ with publisher confirms, with many unconfirmed messages in flight.

    Parameters
    ----------
    url, **options
        See `PublisherOptions`.

    Raises
    ------
    ConfigurationError
        If an argument is invalid.

    Notes
    -----
    `publish` returns as soon as the message is in the confirm window, and waits only if the window is full, or for the
    own lane of a tenant that has just become hot, two seconds at most. After a lost connection, unconfirmed messages
    are published again, in their order and before newer ones: no message is lost, and some may arrive twice. Messages
    of one thread arrive in the order of its calls.

    Every method is safe from any thread. Broker traffic runs in a separate thread, so heartbeats do not depend on how
    often messages are published.

    Examples
    --------
    >>> with Publisher(url) as publisher:  # doctest: +SKIP
    ...     for body in bodies:
    ...         publisher.publish(body, "orders")
    """

    @made_by(PublisherOptions)
    def __init__(self, settings: PublisherOptions) -> None:
        self._client = client = Client(settings)
        alive = weakref.ref(self)
        client.orphaned = lambda: alive() is None
        changed = self._changed = Flag()
        client.on_change = changed.set
        #: Held by the one thread that waits for room; a handler of a signal may publish meanwhile, in that thread.
        self._turn = threading.RLock()

    # Beginning and end -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect; returns when messages can be published. Entering the ``with`` block calls it.

        Raises
        ------
        ConnectionFailed
            No broker could be reached in time, or the broker refused the connection.
        RuntimeError
            The publisher was opened before.
        """
        client = self._client
        client.start()
        try:
            self._changed.wait(client.settings.connect_timeout)
            if client.error is None and not client.begun:
                raise client.no_connection()
            if client.error is not None:
                raise client.error
        except BaseException:
            client.end()
            raise

    def close(self) -> None:
        """Wait until all messages are confirmed, then close the connection. Leaving the ``with`` block calls it.

        Raises
        ------
        PublishFailed
            Messages failed, as for `flush`; or messages are unconfirmed, and the broker has confirmed nothing for
            `confirm_timeout`: the error says how many. The connection is closed in any case.
        RuntimeError
            In a done callback of a `Confirmation`, which the I/O thread calls; nothing is closed.
        """
        self._client.check_may_wait()
        try:
            if self._client.is_open:
                self.flush()
        finally:
            self._client.end()
        self._client.check_end()

    def __enter__(self) -> Publisher:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._client.check_may_wait()
        # Messages published before the exception are still sent; but an exception must not wait for long.
        try:
            if self._client.is_open:
                self.flush(self._client.leave_timeout())
        except PublishFailed as problem:
            _log.error("an exception ends the publisher: %s", problem)
        finally:
            if count := self._client.end():
                _log.error("%s of the publisher were not confirmed", message_count(count))

    def __del__(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.warn_if_open()

    # Messages ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        body: Buffer,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        properties: BasicProperties | None = None,
        **values: Any,
    ) -> Confirmation:
        """Publish a message.

        Parameters
        ----------
        body : bytes-like
            The content.
        routing_key : str
            On the default exchange, the name of the queue. At most 255 bytes.
        exchange : str
            By default the default exchange. At most 255 bytes.
        mandatory : bool, optional
            Whether the message fails if it is routed to no queue; by default the publisher's setting. A direct
            reply (``amq.rabbitmq.reply-to``) never is mandatory: the broker would deliver and return it.
        properties : BasicProperties, optional
            Properties to start from, for example those of a message that is forwarded; `values` replace individual
            ones.
        **values
            The properties by name: `content_type`, `content_encoding`, `headers` (a mapping), `delivery_mode` (2,
            persistent, unless given; or 1), `priority` (0 to 255), `correlation_id`, `reply_to`, `expiration` (seconds
            as a number, or milliseconds as a str), `message_id`, `timestamp` (seconds, or a datetime), `type`,
            `user_id`, `app_id`.

        Returns
        -------
        Confirmation
            Its result, once the broker has confirmed the message; it need not be kept.

        Raises
        ------
        TypeError, ValueError
            A value is invalid; nothing is published.
        PublishFailed
            The window was full, or the connection blocked, and the broker confirmed nothing for `confirm_timeout`; or
            publishing cannot continue. This message is not published.
        RuntimeError
            The publisher is not open, or this is a child process that was forked after it was opened. Or there is no
            room, and this is a done callback of a `Confirmation`, which the I/O thread calls.

        Notes
        -----
        O(length of the message). If the call is interrupted while it waits, the message is not published.
        """
        client = self._client
        message = client.message(body, routing_key, exchange, mandatory, properties, values)
        if message[5] is not None and client.waits_for_lane(message):
            client.await_lanes()
            message = client.placed_again(message)
        found: Confirmation | None = client.window.put(*message)
        return self._put_in_turn(message) if found is None else found

    def reply(self, message: Message, body: Buffer, **values: Any) -> Confirmation:
        """Reply to a message: publish to the queue named by its `reply_to`, with its `correlation_id`.

        Parameters
        ----------
        message : Message
            A message that a consumer received.
        body : bytes-like
            The content of the reply.
        **values
            `mandatory` and properties, as for `publish`.

        Returns
        -------
        Confirmation
            Wait for it before you acknowledge the message, unless the reply may be lost if this process ends.

        Raises
        ------
        ValueError
            The message has no `reply_to`.
        Exception
            As for `publish`.
        """
        routing_key, values = self._client.answer(message, values)
        return self.publish(body, routing_key, **values)

    def _put(self, message: Outgoing) -> Confirmation:
        """Put an encoded message into the window, waiting for room; raise as `publish` does."""
        found: Confirmation | None = self._client.window.put(*message)
        return self._put_in_turn(message) if found is None else found

    def _put_in_turn(self, message: Outgoing) -> Confirmation:
        """Wait for room: one thread at a time, the others for their turn.

        A call from a handler of a signal, in the thread that waits, has its turn within the one that it interrupts.
        """
        client = self._client
        client.check_open()
        client.check_may_wait()
        client.window.wake_again()
        patience = client.patience()
        held: list[bool] = []
        try:
            # The lock and the note of it are one step: the handler of a signal may raise after each call, and a lock
            # that nothing releases would keep all other threads out.
            while not held or not held[-1]:
                client.check_open()
                if held and patience.left() == 0:
                    raise client.no_room(client.settings.confirm_timeout)
                held.extend(map(self._turn.acquire, (True,), (patience.left(),)))
            return self._put_when_room(message, patience)
        finally:
            if held and held[-1]:
                self._turn.release()

    def _put_when_room(self, message: Outgoing, patience: Patience) -> Confirmation:
        """Wait for room; this thread has its turn."""
        client = self._client
        interrupts = client.window.queueing
        try:
            client.window.queueing = True
            while True:
                self._changed.clear()
                found: Confirmation | None = client.window.put(*message, in_turn=True)
                if found is not None:
                    return found
                client.check_open()
                if not self._changed.wait(patience.left()) and patience.left() == 0:
                    raise client.no_room(client.settings.confirm_timeout)
        finally:
            client.window.queueing = interrupts
            if interrupts:
                self._changed.set()  # make the interrupted call check again: its change may have been cleared here

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all published messages are confirmed.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; by default the call waits as long as the broker confirms something within each
            `confirm_timeout`.

        Raises
        ------
        PublishFailed
            Messages failed, and their `Confirmation` was not asked; or messages are still unconfirmed. These remain in
            flight, and another call may wait for them.
        TypeError, ValueError
            The timeout is not a number, or is negative or NaN.
        RuntimeError
            As for `publish`.
        """
        client = self._client
        client.check_open()
        client.window.wake_again()
        patience = client.patience(timeout)
        for one in confirmations(client.window.outstanding()):
            while not one._wait(patience.left()):
                if patience.left() == 0:
                    raise patience.over()
        client.check_failures()

    def check(self) -> None:
        """Raise PublishFailed, as `flush` does, if messages have failed so far; do not wait."""
        self._client.check_open()
        self._client.check_failures()

    def stats(self) -> dict[str, Any]:
        """Return counters.

        Returns
        -------
        dict
            Numbers of ``published``, ``confirmed``, ``failed``, ``unconfirmed`` and ``republished`` messages, and of
            ``reconnects``. Republished messages may have arrived twice.
        """
        return self._client.stats()
