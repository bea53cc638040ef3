"""Makes a session from a seed.

The generator follows what it has declared, so that most operations name something that exists; it does not know what
brokers answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from support.differences.operations import (
    BRIEF,
    EXPIRES,
    Ack,
    AwaitExpiry,
    Bind,
    BindExchange,
    Cancel,
    CloseChannel,
    CloseConnection,
    Commit,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Flow,
    Get,
    Nack,
    Operation,
    Publish,
    Purge,
    Qos,
    Recover,
    Reject,
    Rollback,
    SelectConfirms,
    SelectTransactions,
    Session,
    Unbind,
    UnbindExchange,
)  # fmt: skip

QUEUES = ["~a", "~b", "~c", "~d"]
EXCHANGES = ["~x", "~y", "~z"]
KINDS = ["direct", "topic", "headers", "fanout", "x-consistent-hash"]
KEYS = ["k", "k.l", "k.l.m", "l", "", "m.k", "k..l", *QUEUES]
PATTERNS = ["#", "*", "k.*", "#.m", "k.#", "*.l.#", "k.#.m", "*.*", "#.#", "k", "k.l", "l", "", "~a", "k.*.*.#"]
WEIGHTS = ["1", "2", "3", "10"]
HEADERS: list[tuple[str, Any]] = [
    ("h", "1"), ("h", 1), ("h", 2), ("h", True), ("h", None), ("i", "x"), ("i", 1.5), ("i", [1, "x"]), ("i", {"a": 1}),
    ("x-h", "1"), ("h", 1.0), ("i", bytearray(b"x")),
]  # fmt: skip

#: Of each argument of a queue, values that it may have, and values that it may not.
ARGUMENTS: dict[str, tuple[list[Any], list[Any]]] = {
    "x-message-ttl": ([0, BRIEF, BRIEF, 60_000, 315_360_000_000], [-1, "5", 1.5, True, None, 315_360_000_001, [5]]),
    "x-expires": ([EXPIRES, 60_000, 315_360_000_000], [0, -1, "x", False, 2**62, 1.0]),
    "x-max-length": ([0, 1, 2, 3, 5, 2**40], [-1, "3", 1.0, None, True]),
    "x-max-length-bytes": ([0, 2, 5, 10, 100], [-5, "3", {}]),
    "x-overflow": (["drop-head", "reject-publish", "reject-publish-dlx"], ["drop", "", 1, None]),
    "x-dead-letter-exchange": (["", "", "~x", "~y", "~nowhere"], [1, True, None, ["~x"]]),
    "x-dead-letter-routing-key": (["~a", "~b", "~c", "~d", "k.l"], [1, None]),
    "x-max-priority": ([1, 2, 3, 5, 10, 9, 0], [256, -1, "5", 2.0, None]),
    "x-single-active-consumer": ([True, False], [1, "true", None]),
    "x-queue-mode": (["lazy", "default"], ["eager", 1, True]),
    "x-queue-version": ([1, 2], [0, 3, "1", -1]),
    "x-queue-type": (["classic"], ["grand", 1]),
    "x-unheard-of": ([1, "what", None], []),
    "x-max-age": ([], ["1D"]),
    "x-max-in-memory-length": ([], [1]),
}
#: How often each of them is given.
OFTEN = {
    "x-message-ttl": 0.12, "x-expires": 0.04, "x-max-length": 0.2, "x-max-length-bytes": 0.08, "x-overflow": 0.15,
    "x-dead-letter-exchange": 0.4, "x-dead-letter-routing-key": 0.3, "x-max-priority": 0.12,
    "x-single-active-consumer": 0.1, "x-queue-mode": 0.06, "x-queue-version": 0.04, "x-queue-type": 0.03,
}  # fmt: skip
#: How often an argument is one that it may not be.
INVALID = 0.02

PROPERTIES: dict[str, list[Any]] = {
    "content_type": ["text/plain", ""],
    "content_encoding": ["gzip"],
    "delivery_mode": [1, 2, 2, 0, 3],
    "priority": [0, 1, 1, 2, 3, 4, 5, 9, 10, 200, 255],
    "correlation_id": ["c", ""],
    "reply_to": ["r"],
    "expiration": ["0", str(BRIEF), str(BRIEF), "60000", "+60000", "-1", "soon", "1.5", ""],
    "message_id": ["m"],
    "message_type": ["t"],
    "user_id": ["guest", "guest", "guest", "root", ""],
    "app_id": ["a"],
    "cluster_id": ["c"],
}
PROPERTY_OFTEN = {"priority": 0.25, "delivery_mode": 0.15, "expiration": 0.06, "user_id": 0.03}


class Generator:
    """Makes one session."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        #: Names that were declared so far, and are the likely ones.
        self.queues: list[str] = []
        self.exchanges: dict[str, str] = {}
        self.tags: list[tuple[int, str]] = []
        self.generated = 0
        #: Whether consumers of one queue may have one priority, and which of them is served is up to the broker.
        self.rivals = self.random.random() < 0.15
        self.everywhere = self.random.random() < 0.2
        self.operations: dict[Callable[[int], Operation], float] = {
            self.declare_queue: 5, self.delete_queue: 1.5, self.purge: 1.5, self.await_expiry: 0.15,
            self.declare_exchange: 3, self.delete_exchange: 0.7, self.bind: 6, self.unbind: 1,
            self.bind_exchange: 2, self.unbind_exchange: 0.5, self.publish: 18, self.get: 5, self.consume: 6,
            self.cancel: 2, self.ack: 4, self.nack: 4, self.reject: 3, self.recover: 1, self.qos: 2,
            self.modes: 1, self.finish: 2, self.close: 1,
        }  # fmt: skip

    def session(self) -> Session:
        """Return the session."""
        setting_up = [self.declare_queue(self.channel()) for _ in range(self.random.randint(1, 3))]
        made = [*setting_up]
        if self.random.random() < 0.7:
            made += [self.declare_exchange(self.channel()), self.bind(self.channel()), self.bind(self.channel())]
        if self.random.random() < 0.25:
            made.append(self.random.choice([SelectTransactions, SelectConfirms])(self.channel()))
        acts, weights = zip(*self.operations.items(), strict=True)
        while len(made) < 22:
            [act] = self.random.choices(acts, weights)
            made.append(self.unanswered(act(self.channel())))
        return made

    def unanswered(self, operation: Operation) -> Operation:
        """Have some operations not be answered, but those whose answer tells a name that the server made or changed."""
        named = [getattr(operation, "queue", "-"), getattr(operation, "tag", "-")]
        told = any(not name or "\n" in name for name in named)
        if told or not hasattr(operation, "nowait") or isinstance(operation, Unbind | UnbindExchange):
            return operation
        return replace(operation, nowait=self.chance(0.06))

    # Choices --------------------------------------------------------------------------------------------------------

    def chance(self, likely: float) -> bool:
        return self.random.random() < likely

    def choose(self, values: list[Any]) -> Any:
        return self.random.choice(values)

    def channel(self) -> int:
        return self.random.choices(range(4), [4, 2, 3, 1])[0]

    def queue(self) -> str:
        """A queue that exists, most of the time."""
        if self.queues and not self.chance(0.06):
            return str(self.choose(self.queues))
        return str(self.choose([*QUEUES, "", "~nothing", *(f"~gen{number}" for number in range(self.generated))]))

    def exchange(self) -> str:
        if self.exchanges and not self.chance(0.04):
            return str(self.choose([*self.exchanges]))
        return str(self.choose([*EXCHANGES, "", "~nowhere"]))

    # Queues ---------------------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """Arguments of a queue."""
        given: dict[str, Any] = {}
        for name, (valid, invalid) in ARGUMENTS.items():
            if not self.chance(OFTEN.get(name, 0.01)):
                continue
            bad = invalid and (not valid or self.chance(INVALID * 2))
            given[name] = self.choose(invalid if bad else valid)
        if "x-dead-letter-routing-key" in given and not self.chance(0.03):
            given.setdefault("x-dead-letter-exchange", self.choose(["", "~x"]))
        return given

    def declare_queue(self, on: int) -> Operation:
        if self.queues and self.chance(0.1):
            return DeclareQueue(on, self.queue(), passive=True)
        name = self.choose(QUEUES) if not self.chance(0.05) else self.choose(["", "amq.mine", "~with\n"])
        if name == "":
            name_later = f"~gen{self.generated}"
            self.generated += 1
        else:
            name_later = name
        if name_later not in self.queues and not name.startswith("amq.") and "\n" not in name:
            self.queues.append(name_later)
        return DeclareQueue(
            on,
            name,
            self.arguments() if self.chance(0.8) else {},
            durable=self.chance(0.15),
            exclusive=self.chance(0.08),
            auto_delete=self.chance(0.12),
        )

    def delete_queue(self, on: int) -> Operation:
        return DeleteQueue(on, self.queue(), if_unused=self.chance(0.3), if_empty=self.chance(0.3))

    def purge(self, on: int) -> Operation:
        return Purge(on, self.queue())

    def await_expiry(self, on: int) -> Operation:
        return AwaitExpiry(on, self.choose(self.queues or QUEUES))

    # Exchanges ------------------------------------------------------------------------------------------------------

    def declare_exchange(self, on: int) -> Operation:
        if self.exchanges and self.chance(0.1):
            return DeclareExchange(on, self.exchange(), passive=True)
        if self.chance(0.03):
            return DeclareExchange(on, self.choose(["", "amq.mine", "amq.direct"]), self.choose(["direct", "topic"]))
        name, kind = self.choose(EXCHANGES), self.choose(KINDS)
        arguments: dict[str, Any] = {}
        if self.chance(0.25):
            arguments["alternate-exchange"] = self.choose([*EXCHANGES, "~nowhere", "", 1 if self.chance(0.2) else "~x"])
        if kind == "x-consistent-hash" and self.chance(0.3):
            arguments["hash-property"] = self.choose(["message_id", "correlation_id", "timestamp", "nothing"])
        self.exchanges.setdefault(name, kind)
        return DeclareExchange(
            on,
            name,
            kind,
            arguments,
            durable=self.chance(0.1),
            auto_delete=self.chance(0.12),
            internal=self.chance(0.05),
        )

    def delete_exchange(self, on: int) -> Operation:
        return DeleteExchange(on, self.exchange(), if_unused=self.chance(0.4))

    def binding(self, exchange: str) -> tuple[str, dict[str, Any]]:
        """The key and the arguments of a binding."""
        kind = self.exchanges.get(exchange, "direct")
        if kind == "headers":
            arguments = dict(self.choose(HEADERS) for _ in range(self.random.randint(0, 2)))
            if self.chance(0.8):
                arguments["x-match"] = self.choose(
                    ["all", "any", "all-with-x", "any-with-x"] if not self.chance(0.03) else ["some", ""]
                )
            return self.choose(["", "k"]), arguments
        arguments = {"n": 1} if self.chance(0.05) else {}
        if kind == "x-consistent-hash":
            return self.choose(WEIGHTS if not self.chance(0.05) else ["0", "-1", "x", ""]), arguments
        return self.choose(PATTERNS if kind == "topic" else KEYS), arguments

    def bind(self, on: int) -> Operation:
        exchange = self.exchange()
        return Bind(on, self.queue(), exchange, *self.binding(exchange))

    def unbind(self, on: int) -> Operation:
        exchange = self.exchange()
        return Unbind(on, self.queue(), exchange, *self.binding(exchange))

    def bind_exchange(self, on: int) -> Operation:
        exchange = self.exchange()
        return BindExchange(on, self.exchange(), exchange, *self.binding(exchange))

    def unbind_exchange(self, on: int) -> Operation:
        exchange = self.exchange()
        return UnbindExchange(on, self.exchange(), exchange, *self.binding(exchange))

    # Messages -------------------------------------------------------------------------------------------------------

    def properties(self) -> dict[str, Any]:
        given = {
            name: self.choose(values)
            for name, values in PROPERTIES.items()
            if self.chance(PROPERTY_OFTEN.get(name, 0.02))
        }
        headers: dict[str, Any] = {}
        if self.chance(0.15):
            headers.update(self.choose(HEADERS) for _ in range(self.random.randint(0, 3)))
        for copies in ("CC", "BCC"):
            if self.chance(0.04):
                keys = [self.choose(KEYS) for _ in range(self.random.randint(0, 2))]
                headers[copies] = keys if not self.chance(0.05) else self.choose(["k", [1], 1])
        if headers or self.chance(0.02):
            given["headers"] = headers
        return given

    def publish(self, on: int) -> Operation:
        if self.chance(0.55) or not self.exchanges:
            exchange, key = "", self.queue()
        else:
            exchange, key = self.exchange(), self.choose(KEYS)
        return Publish(
            on,
            exchange,
            key,
            count=self.random.choices([1, 2, 3, 5], [5, 3, 2, 1])[0],
            size=self.choose([0, 0, 0, 4, 10]),
            mandatory=self.chance(0.15),
            immediate=self.chance(0.005),
            properties=self.properties() if self.chance(0.6) else {},
        )

    def get(self, on: int) -> Operation:
        return Get(on, self.queue(), no_ack=self.chance(0.4))

    def consume(self, on: int) -> Operation:
        used = [tag for at, tag in self.tags if at == on]
        tag = f"t{on}{len(used)}"
        if used and self.chance(0.03):
            tag = self.choose(used)
        elif self.chance(0.05):
            tag = ""
        arguments: dict[str, Any] = {}
        if tag:
            self.tags.append((on, tag))
        if self.chance(0.02):
            arguments["x-priority"] = self.choose(["high", None, 1.5, True])
        elif not self.rivals:
            arguments["x-priority"] = len(self.tags) if self.chance(0.5) else -len(self.tags)
        elif self.chance(0.3):
            arguments["x-priority"] = self.choose([-1, 0, 1, 2**31])
        return Consume(on, self.queue(), tag, no_ack=self.chance(0.3), exclusive=self.chance(0.07), arguments=arguments)

    def cancel(self, on: int) -> Operation:
        if self.tags and not self.chance(0.1):
            on, tag = self.choose(self.tags)
            return Cancel(on, tag)
        return Cancel(on, self.choose(["nobody", "", "~ctag0"]))

    def nth(self) -> int | None:
        value: int | None = self.choose([-1, None]) if self.chance(0.06) else self.random.randint(0, 3)
        return value

    def ack(self, on: int) -> Operation:
        return Ack(on, self.nth(), multiple=self.chance(0.3))

    def nack(self, on: int) -> Operation:
        return Nack(on, self.nth(), multiple=self.chance(0.3), requeue=self.chance(0.5))

    def reject(self, on: int) -> Operation:
        return Reject(on, self.nth(), requeue=self.chance(0.4))

    def recover(self, on: int) -> Operation:
        return Recover(on, requeue=not self.chance(0.05), answered=self.chance(0.7))

    def qos(self, on: int) -> Operation:
        everywhere = self.everywhere and self.chance(0.5)
        return Qos(on, self.choose([0, 1, 1, 2, 3]), everywhere=everywhere, size=1 if self.chance(0.02) else 0)

    def modes(self, on: int) -> Operation:
        return self.choose([SelectConfirms, SelectTransactions])(on)  # type: ignore[no-any-return]

    def finish(self, on: int) -> Operation:
        return self.choose([Commit, Commit, Rollback])(on)  # type: ignore[no-any-return]

    def close(self, on: int) -> Operation:
        if self.chance(0.1):
            return Flow(on, active=self.chance(0.5))
        if self.chance(0.6):
            return CloseChannel(on)
        return CloseConnection(on, abruptly=self.chance(0.5))


def generate(seed: int) -> Session:
    """Return the session of a seed."""
    return Generator(seed).session()
