"""Compare the queues that a broker's consistent-hash exchange chooses with those that `RabbitMQHash` computes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

import pika

from fairsched.cli.broker import Session
from fairsched.routing import RabbitMQHash

#: The keys that are compared.
KEYS = tuple(str(number) for number in range(1000))


class Mismatch(NamedTuple):
    """A key, the queue that the broker chose and the one that was computed."""

    key: str
    found: str
    computed: str | None


class ExchangeSession(Session):
    """A session that can also declare temporary exchanges and queues, bind them, and get messages."""

    def declare_exchange(self, name: str, kind: str) -> None:
        """Declare an exchange that is deleted with its last binding."""
        self.ask("exchange_declare", name, kind, auto_delete=True, durable=False)

    def declare_exclusive(self, queue: str) -> None:
        """Declare a queue that is deleted with this connection."""
        self.ask("queue_declare", queue, exclusive=True)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue."""
        self.ask("queue_bind", queue, exchange, key)

    def publish_to(self, exchange: str, keys: Iterable[str]) -> None:
        """Publish a message for each routing key, with the key as its body."""
        channel = self.usable_channel()
        for key in keys:
            channel.basic_publish(exchange, key, key.encode())

    def take(self, queue: str) -> list[str]:
        """Get all messages of a queue.

        Until it is empty: the broker's message count may not yet include what was just published.
        """
        channel = self.usable_channel()
        answers: list[bytes | None] = []

        def note(body: bytes | None) -> None:
            answers.append(body)
            self.stop()

        channel.add_callback(lambda _frame: note(None), [pika.spec.Basic.GetEmpty], one_shot=True)
        while not answers or answers[-1] is not None:
            known = len(answers)
            channel.basic_get(queue, lambda *got: note(got[3]), auto_ack=True)
            self.run(lambda known=known: len(answers) > known, self._timeout, "basic.get")  # type: ignore[misc]
        return [body.decode() for body in answers if body is not None]


def compare(url: str, timeout: float, bindings: Iterable[tuple[str, str]]) -> list[Mismatch]:
    """Bind temporary queues to a temporary exchange, publish, and compare.

    Parameters
    ----------
    url : str
        The broker.
    timeout : float
        Seconds for each step.
    bindings : iterable of (str, str)
        Queues and binding keys in the order of binding. Temporary queues are used in place of these.

    Returns
    -------
    list of Mismatch
        Empty if every key was routed as computed.

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
