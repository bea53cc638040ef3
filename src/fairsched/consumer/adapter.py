"""Callbacks written for pika, used as handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairsched.delivery.handlers import check_plain

if TYPE_CHECKING:
    from fairsched.delivery._delivery import Message


class PikaChannel:
    """Stand-in for the channel of a pika callback: it settles one message, from any thread.

    Notes
    -----
    It settles the message it was made for and no other: settlement is coalesced by the consumer, so
    ``multiple=True`` is refused. `connection` offers ``add_callback_threadsafe``, which pika's users need to settle
    from other threads; here it calls at once.
    """

    __slots__ = ("_message",)

    is_open = True

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def connection(self) -> PikaChannel:
        """An object that has ``add_callback_threadsafe``."""
        return self

    def add_callback_threadsafe(self, callback: Callable[[], object]) -> None:
        """Call `callback` now: settlement is safe from any thread."""
        callback()

    def basic_ack(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        """Ack the message."""
        self._check(delivery_tag, multiple)
        self._message.ack()

    def basic_nack(self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True) -> None:
        """Requeue or drop the message."""
        self._check(delivery_tag, multiple)
        self._message.nack(requeue)

    def basic_reject(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        """Requeue or drop the message."""
        self._check(delivery_tag, False)
        self._message.reject(requeue)

    def _check(self, delivery_tag: int, multiple: bool) -> None:
        if multiple:
            raise ValueError("multiple=True is not possible here: messages of several queues are handled in fair order")
        if delivery_tag not in (0, self._message.delivery_tag):
            raise ValueError(f"delivery_tag must be {self._message.delivery_tag}, this message's, got {delivery_tag}")


def from_pika(callback: Callable[[Any, Any, Any, bytes], object]) -> Callable[[Message], object]:
    """Make a handler of a callback written for ``pika``'s ``basic_consume``.

    Parameters
    ----------
    callback : callable
        ``callback(channel, method, properties, body)``. `channel` offers ``basic_ack``, ``basic_nack``,
        ``basic_reject`` and ``connection.add_callback_threadsafe``; `method` is pika's ``Basic.Deliver``.

    Returns
    -------
    callable
        A handler for `Consumer.run` or `App.consumer`.

    Raises
    ------
    ConfigurationError
        If `callback` is no function, or a coroutine function or a generator function, of which a call runs nothing.

    Notes
    -----
    As with pika, returning does not ack: the callback settles, now or later, from this or another thread. Raising
    settles by the consumer's ``on_error``.

    Examples
    --------
    >>> def callback(channel, method, properties, body):
    ...     channel.basic_ack(method.delivery_tag)
    >>> handler = from_pika(callback)
    """
    check_plain(callback, "callback")

    def handler(message: Message) -> object:
        message.defer()
        return callback(PikaChannel(message), message.delivery, message.properties, message.body)

    return handler
