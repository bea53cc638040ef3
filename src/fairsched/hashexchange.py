"""A consistent-hash exchange: its rules and errors around its placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairsched.errors import ConfigurationError
from fairsched.routing import MISSING, RabbitMQHash

#: Message properties that an exchange may hash.
PROPERTIES = ("correlation_id", "message_id", "timestamp")


class ConsistentHashExchange:
    """A consistent-hash exchange: rules, errors and placement of RabbitMQ's, on this side of the wire.

    Parameters
    ----------
    bindings : iterable of (str, str)
        Queues and binding keys in the order in which they were bound.
    hash_header : str, optional
        Hash this header.
    hash_property : str, optional
        Hash this property: ``message_id``, ``correlation_id`` or ``timestamp``. With neither, the routing key.
    **options
        As for `RabbitMQHash`: typed_headers, ring, seed, max_weight.

    Raises
    ------
    ConfigurationError
        Both are given, the property is another one, or a binding key is no weight. In the words of the broker.

    Notes
    -----
    Delivers to at most one queue; to none when nothing is bound. Messages without the header or property all go to
    one and the same queue.

    Complexity and thread safety as of `RabbitMQHash`.

    Examples
    --------
    >>> exchange = ConsistentHashExchange([("q0", "1"), ("q1", "1")], hash_header="account")
    >>> exchange.route("ignored", headers={"account": "user-42"}) == exchange.route(headers={"account": "user-42"})
    True
    """

    def __init__(
        self,
        bindings: Iterable[tuple[str, str]] = (),
        *,
        hash_header: str | None = None,
        hash_property: str | None = None,
        **options: Any,
    ) -> None:
        if hash_header is not None and hash_property is not None:
            raise ConfigurationError("hash-header and hash-property are mutually exclusive")
        if hash_property is not None and hash_property not in PROPERTIES:
            raise ConfigurationError(f"Unsupported property: {hash_property}")
        self.hash_header = hash_header
        self.hash_property = hash_property
        self.hash = RabbitMQHash(bindings, **options)

    def bind(self, queue: str, key: str) -> None:
        """Bind a queue; see `RabbitMQHash.bind`."""
        self.hash.bind(queue, key)

    def unbind(self, queue: str, key: str) -> None:
        """Undo a binding; see `RabbitMQHash.unbind`."""
        self.hash.unbind(queue, key)

    def delete_queue(self, queue: str) -> None:
        """Undo all bindings of a queue."""
        self.hash.delete_queue(queue)

    def route(
        self, routing_key: str | bytes = "", properties: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> str | None:
        """Name the queue of a message.

        Parameters
        ----------
        routing_key : str or bytes
            The message's.
        properties : object, optional
            With attributes message_id, correlation_id, timestamp and headers, such as `pika.BasicProperties`.
        headers : Mapping[str, object], optional
            The message's headers, in place of those of `properties`.

        Returns
        -------
        str or None
            None when nothing is bound.

        Raises
        ------
        TypeError, OverflowError
            As by `RabbitMQHash.route`.
        """
        if self.hash_header is not None:
            found = headers if headers is not None else getattr(properties, "headers", None)
            return self.hash.route(header=(found or {}).get(self.hash_header, MISSING))
        if self.hash_property is not None:
            return self.hash.route(property=getattr(properties, self.hash_property, None))
        return self.hash.route(routing_key)
