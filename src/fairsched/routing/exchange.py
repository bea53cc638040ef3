"""RabbitMQ's consistent-hash exchange: what is hashed, its rules and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairsched.errors import ConfigurationError
from fairsched.routing.rabbitmqhash import MISSING, RabbitMQHash

#: Message properties that an exchange can hash.
PROPERTIES = ("correlation_id", "message_id", "timestamp")


class ConsistentHashExchange:
    """RabbitMQ's consistent-hash exchange, computed in the client: its rules, errors and placement.

    Parameters
    ----------
    bindings : iterable of (str, str)
        Queues and binding keys in the order in which they were bound.
    hash_header : str, optional
        Hash this header.
    hash_property : str, optional
        Hash this property: ``message_id``, ``correlation_id`` or ``timestamp``. With neither, the routing key.
    **options
        As for `RabbitMQHash`: typed_headers, max_weight.

    Raises
    ------
    ConfigurationError
        Both are given, the property is not supported, or a binding key is not a weight. Messages are the broker's.

    Notes
    -----
    Routes to at most one queue; to none if nothing is bound. All messages without the header or property go to the same
    queue.

    Complexity and thread safety as for `RabbitMQHash`.

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
        """Remove a binding; see `RabbitMQHash.unbind`."""
        self.hash.unbind(queue, key)

    def delete_queue(self, queue: str) -> None:
        """Remove all bindings of a queue."""
        self.hash.delete_queue(queue)

    def route(
        self, routing_key: str | bytes = "", properties: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> str | None:
        """Return the queue of a message.

        Parameters
        ----------
        routing_key : str or bytes
            The message's routing key.
        properties : object, optional
            An object with message_id, correlation_id, timestamp and headers, such as `pika.BasicProperties`.
        headers : Mapping[str, object], optional
            The message's headers, instead of those of `properties`.

        Returns
        -------
        str or None
            None if nothing is bound.

        Raises
        ------
        TypeError, OverflowError
            As for `RabbitMQHash.route`.
        """
        if self.hash_header is not None:
            found = headers if headers is not None else getattr(properties, "headers", None)
            return self.hash.route(header=(found or {}).get(self.hash_header, MISSING))
        if self.hash_property is not None:
            return self.hash.route(property=getattr(properties, self.hash_property, None))
        return self.hash.route(routing_key)
