"""Whether a broker places keys where they are computed to go: asked with an exchange made for the purpose."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pika

from fairsched.cli.broker import Session
from fairsched.routing import RabbitMQHash

#: Keys that are tried.
KEYS = tuple(str(number) for number in range(1000))


class Mismatch(NamedTuple):
    """A key, the queue that the broker chose and the one that was computed."""

    key: str
    found: str
    computed: str | None


class ExchangeSession(Session):
    """A session that also makes exchanges, binds, and takes messages; what it makes goes with it."""

    def declare_exchange(self, name: str, kind: str) -> None:
        """Create an exchange that goes with its last binding."""
        self._on_channel(
            lambda done: self._channel.exchange_declare(name, kind, auto_delete=True, durable=False, callback=done)
        )

    def declare_exclusive(self, queue: str) -> None:
        """Create a queue that goes with this connection."""
        self._on_channel(lambda done: self._channel.queue_declare(queue, exclusive=True, callback=done))

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue."""
        self._on_channel(lambda done: self._channel.queue_bind(queue, exchange, key, callback=done))

    def publish_to(self, exchange: str, keys: Iterable[str]) -> None:
        """Publish each routing key under itself."""
        for key in keys:
            self._channel.basic_publish(exchange, key, key.encode())

    def take(self, queue: str) -> list[str]:
        """Take everything out of a queue.

        Until it is empty: the broker counts a queue before it has taken in what was published before.
        """
        bodies: list[str] = []
        self._channel.add_callback(self._on_empty, [pika.spec.Basic.GetEmpty], one_shot=True)
        while (body := self._on_channel(lambda done: self._get(queue, done))) is not None:
            bodies.append(body.decode())
        return bodies

    def _get(self, queue: str, done: Callable[[bytes | None], None]) -> None:
        self._channel.basic_get(queue, lambda *got: done(got[3]), auto_ack=True)

    def _on_empty(self, _frame: object) -> None:
        self._done(None)


def compare(url: str, timeout: float, bindings: Iterable[tuple[str, str]]) -> list[Mismatch]:
    """Bind temporary queues to a temporary exchange, publish, and compare.

    Parameters
    ----------
    url : str
        The broker.
    timeout : float
        Seconds for each step.
    bindings : iterable of (str, str)
        Queues and binding keys in the order of binding. The queues themselves are not touched: each is stood in for.

    Returns
    -------
    list of Mismatch
        Empty when every key was placed as computed.

    Raises
    ------
    ConnectionFailed
        The broker cannot be reached, or has no such exchange type.
    """
    prefix = f"fairsched.check.{uuid.uuid4().hex}"
    computed = RabbitMQHash()
    names: dict[str, str] = {}
    with ExchangeSession(url, timeout) as session:
        session.declare_exchange(prefix, "x-consistent-hash")
        for queue, key in bindings:
            if queue not in names:
                names[queue] = f"{prefix}.{len(names)}"
                session.declare_exclusive(names[queue])
            computed.bind(queue, key)
            session.bind(names[queue], prefix, key)
        session.publish_to(prefix, KEYS)
        found = {key: queue for queue, stand_in in names.items() for key in session.take(stand_in)}
    return [
        Mismatch(key, found.get(key, "no queue"), computed.route(key))
        for key in KEYS
        if found.get(key) != computed.route(key)
    ]
