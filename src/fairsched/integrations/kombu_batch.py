"""Messages that are published together and confirmed together: what ``Producer.batch()`` of kombu uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp.exceptions import MessageNacked, RecoverableConnectionError

__all__ = ["PublishBatch"]

#: Messages between two looks at what the broker has sent.
_LOOK_EVERY = 64


class PublishBatch:
    """A batch of messages on a channel in confirm mode.

    Parameters
    ----------
    channel : Channel
        The channel; it is put into confirm mode.
    max_size : int
        With so many messages, `flush` is called by itself.

    Attributes
    ----------
    unconfirmed : list of (message, dict)
        After a `flush` that failed: messages that the broker refused or has not confirmed, each with its options. Some
        of the latter may have arrived.

    Notes
    -----
    A message is kept until the broker has confirmed it. Thread safety: as a channel of py-amqp, one thread at a time.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self.unconfirmed: list[tuple[Any, Mapping[str, Any]]] = []
        self._max_size = max_size
        self._messages: list[tuple[Any, Mapping[str, Any]]] = []
        self._sent = 0

    def publish(self, message: Any, **options: Any) -> None:
        """Add a message, with the options of ``Channel.basic_publish``."""
        self._messages.append((message, options))
        if len(self._messages) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Publish all messages, and return when the broker has confirmed each of them.

        Raises
        ------
        MessageNacked
            If the broker refused messages.
        Exception
            What ends the channel or the connection before that, or `TimeoutError` after ``confirm_timeout``.
        """
        messages, self._messages = self._messages, []
        if not messages:
            return
        self.unconfirmed = messages
        self._sent = 0
        settlements = self.channel._confirming()
        try:
            self._send(messages)
            timeout = messages[-1][1].get("confirm_timeout") or messages[-1][1].get("timeout")
            while settlements.outstanding:
                self._await_confirm(settlements, timeout)
            if settlements.refusals:
                raise MessageNacked
            self.unconfirmed = []
        except BaseException as error:
            # Those that were not sent are none of the outstanding.
            left = {*settlements.end_batch(), *range(self._sent, len(messages))}
            self.unconfirmed = [messages[index] for index in sorted(left)]
            error.add_note(f"{len(left)} of {len(messages)} messages of the batch are not confirmed")
            raise

    def _await_confirm(self, settlements: Any, timeout: float | None) -> None:
        connection = self.channel.connection
        if settlements.closed or connection is None:
            raise RecoverableConnectionError("the channel was closed before all messages were confirmed")
        connection.drain_events(timeout=timeout)

    def _send(self, messages: list[tuple[Any, Mapping[str, Any]]]) -> None:
        """Publish messages; `_sent` counts them."""
        connection = self.channel.connection
        for index, (message, options) in enumerate(messages):
            if index % _LOOK_EVERY == 0:
                connection._look()
            self.channel._post(index, message, **options)
            self._sent += 1
        connection._link.flush()

    def discard(self) -> None:
        """Forget the messages that were not published."""
        self._messages = []

    def close(self) -> None:
        """End; messages that were not published are forgotten."""
        self.discard()
